"""A simulation tells what failed on its nodes, from files that only this machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.strategies.engine.callbacks import Callbacks
from privsyn_flower.strategies.engine.node_failures import (
    AllNodesFailed,
    NodeFailures,
    all_failed,
    read_failures,
    report,
)
from privsyn_flower.strategies.engine.rounds import Rounds
from tests.rigs.node_failures import note
from tests.rigs.rounds import Counting, VotingNode, engine

TICKET = Ticket("r", "votes", 1, 1)


def hellos(**changes: Any) -> list[Hello]:
    return [Hello(25, i, deployed=changes.get("deployed") == i) for i in range(4)]


def failing(cache: Path, nodes: dict[int, VotingNode], place: str = "{}-of-4", **row: Any) -> None:
    """Every node notes a failure, then answers as if nothing were wrong: zeros and noise."""
    for index, node in enumerate(nodes.values()):

        def before(ticket: Ticket, index: int = index) -> None:
            asked = {"run": ticket.run, "round": ticket.round, "attempt": ticket.attempt}
            note(cache, place.format(index), **{**asked, **row})

        node.before_answer = before


def begun(tmp_path: Path, loopback: Any, deployed: bool = False, **row: Any) -> Rounds:
    nodes = {100 + i: VotingNode(25, i, deployed=deployed and i == 3) for i in range(4)}
    failing(tmp_path / "cache", nodes, **row)
    run = engine(tmp_path, loopback(nodes), Counting())
    run.callbacks = Callbacks([NodeFailures(tmp_path / "cache")])
    return run


@pytest.mark.parametrize("row", [{}, {"kind": "users", "users": 0, "of": 0}, {"users": 3, "of": 3}])
def test_a_simulation_stops_before_round_2_when_all_nodes_fail(
    tmp_path: Path, loopback: Any, row: dict[str, Any]
) -> None:
    run = begun(tmp_path, loopback, **row)
    log = tmp_path / "cache" / "0-of-4" / "node.log"
    with pytest.raises(AllNodesFailed) as caught:
        run.run()
    assert f"4 of 4 nodes failed: NameError at train.py:12 ({log})" in str(caught.value)
    assert run.strategy.learned == {}  # type: ignore[attr-defined]
    assert [(c.round, c.state) for c in run.ledger.charges()] == [(1, "committed")]


def test_nothing_is_read_where_a_node_is_deployed(tmp_path: Path, loopback: Any) -> None:
    run = begun(tmp_path, loopback, deployed=True)
    assert run.run() == 3


def test_a_deployments_release_is_the_same_with_and_without_the_files(
    tmp_path: Path, loopback: Any
) -> None:
    """What is written, but for times, cannot tell whether a node failed."""
    seen = []
    for name, row in (("one", {}), ("two", {"run": "another"})):
        run = begun(tmp_path / name, loopback, deployed=True, **row)
        assert run.run() == 3
        seen.append(
            [(run.folder.path / "releases" / f"round-000{r}.npz").read_bytes() for r in (1, 2)]
        )
    assert seen[0] == seen[1]


def test_one_node_that_answers_is_enough_to_go_on(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = {100 + i: VotingNode(25, i) for i in range(4)}
    failing(tmp_path / "cache", nodes)
    nodes[103].before_answer = None
    run = engine(tmp_path, loopback(nodes), Counting())
    run.callbacks = Callbacks([NodeFailures(tmp_path / "cache")])
    assert run.run() == 3
    assert "NameError" not in caplog.text  # it may come of one user's text: the terminal's only
    (line,) = report(tmp_path / "cache", "r")
    assert line.startswith("NameError at train.py:12 on 3 nodes, 225 times: zeros")


def test_users_of_a_node_who_fail_one_by_one_add_up(tmp_path: Path) -> None:
    for place in range(4):
        for _ in range(24):
            note(tmp_path, f"{place}-of-4", users=1)
    assert all_failed(tmp_path, TICKET, hellos()) == ""
    for place in range(4):
        note(tmp_path, f"{place}-of-4", users=1, error="KeyError" if place == 2 else "NameError")
    assert all_failed(tmp_path, TICKET, hellos()).startswith("3 of 4 nodes failed: NameError at")


def test_other_rounds_runs_and_places_do_not_count(tmp_path: Path) -> None:
    for place in range(4):
        for change in ({"run": "s"}, {"round": 2}, {"attempt": 2}):
            note(tmp_path, f"{place}-of-4", **change)
        note(tmp_path, f"{place + 4}-of-8")
        note(tmp_path, f"node-{place}")
    assert all_failed(tmp_path, TICKET, hellos()) == ""
    for place in range(4):
        note(tmp_path, f"{place}-of-4")
    assert all_failed(tmp_path, TICKET, hellos(deployed=2)) == ""
    assert all_failed(tmp_path, TICKET, []) == ""
    assert "4 of 4" in all_failed(tmp_path, TICKET, hellos())


def test_garbage_and_absence_are_nothing(tmp_path: Path) -> None:
    assert list(read_failures(tmp_path / "none")) == [] and report(tmp_path, "r") == []
    path = note(tmp_path, "0-of-4")
    for change in (
        {"error": "two words"},
        {"error": 7},
        {"users": "x"},
        {"kind": "text"},
        {"round": None},
    ):
        note(tmp_path, "0-of-4", **change)
    note(tmp_path, "0-of-4", at="a\nb")
    with path.open("ab") as file:
        file.write(b"\xff\xfe\n[]\n7\n" + b"[" * 100_000 + b'\n{"run": "r"')
    (tmp_path / "1-of-4" / "failures.jsonl").mkdir(parents=True)
    assert [row.cause for row in read_failures(tmp_path)] == [
        "NameError at train.py:12",
        "NameError",
    ]


def test_a_simulated_start_prints_what_failed_for_the_terminal_alone(
    tmp_path: Path,
    loopback: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from privsyn_flower.strategies import DPFedAvg
    from privsyn_flower.strategies.engine.aggregation import PlainSum
    from tests.strategies.training_rig import record, trainers

    monkeypatch.setenv("HOME", str(tmp_path))
    caches = tmp_path / ".cache" / "privsyn-flower" / "nodes" / "drop-in"
    options: dict[str, Any] = {"epsilon": 50.0, "delta": 1e-5, "users": 4}
    options |= {"num_rounds": 2, "folder": tmp_path / "run", "aggregation": PlainSum()}
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "run.json").write_text('"a-run"')
    note(caches, "2-of-4", run="a-run", users=1, of=1)
    result = DPFedAvg().start(loopback(trainers()), record(), **options)
    assert (result.rounds, result.ended_early) == (2, "")
    assert "warning: NameError at train.py:12 on 1 nodes, 1 times" in capsys.readouterr().err
    assert "NameError" not in caplog.text + (tmp_path / "run" / "run.log").read_text()
    for place in range(4):
        note(caches, f"{place}-of-4", run="b-run", users=1, of=1)
    (tmp_path / "two" / "checkpoints").mkdir(parents=True)
    (tmp_path / "two" / "checkpoints" / "run.json").write_text('"b-run"')
    with pytest.raises(AllNodesFailed, match="4 of 4 nodes failed: NameError at train"):
        DPFedAvg().start(loopback(trainers()), record(), **{**options, "folder": tmp_path / "two"})
