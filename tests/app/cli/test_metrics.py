"""`privsyn metrics`: Prometheus' text format, of public numbers."""

from __future__ import annotations

import re
import threading
import urllib.request
from pathlib import Path

import pytest

from privsyn_flower.app.cli import metrics as command
from privsyn_flower.app.cli.metrics import KIND, Metric, node_metrics, render, run_metrics
from privsyn_flower.app.report.serving import PageServer
from privsyn_flower.client_apps.node.lifetime import cost
from privsyn_flower.client_apps.node.node_log import note_answer, note_refusal
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
from privsyn_flower.privacy.ledger import Ledger, usage
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.runs import write_json
from tests.rigs.command_line import privsyn

SAMPLE = re.compile(r'^[a-z_]+(\{([a-z_]+="[^"\n]*",?)+\})? (\+Inf|[\d.e+-]+)$')


def values(found: list[Metric]) -> dict[str, object]:
    """Of metrics without labels, or with one row; labels and all of the others."""
    return {m.name: m.values[0][1] if len(m.values) == 1 else m.values for m in found}


def answer(folder: Path, rnd: int, users: list[str]) -> None:
    NodeRecords(folder / RECORDS_FILE).take("r", "votes", rnd, 1, users, 2.0, 1e-18, Policy())
    note_answer(folder, Ticket("r", "votes", rnd, 1), cost(2.0, 1e-18))


def test_a_nodes_numbers_are_the_same_whoever_took_part(tmp_path: Path) -> None:
    everybody, nobody = tmp_path / "everybody", tmp_path / "nobody"
    for folder, users in ((everybody, ["ann", "bob"]), (nobody, [])):
        folder.mkdir()
        for rnd in (1, 2, 3):
            answer(folder, rnd, users)
        note_refusal(folder, "policy", "why")
    found = [values(node_metrics(folder, None)) for folder in (everybody, nobody)]
    own = dict(found[0])
    for row in found:
        assert row["privsyn_node_disk_free_bytes"] % (256 << 20) == 0
        row.pop("privsyn_node_disk_free_bytes")  # of this machine
        row.pop("privsyn_node_last_answer_timestamp_seconds")
    assert found[0] == found[1]
    assert own["privsyn_node_answers_total"] == 3 and own["privsyn_node_refusals_total"] == 1
    spent = NodeRecords(everybody / RECORDS_FILE).status(1e-6)["max_spent_epsilon"]
    assert own["privsyn_node_epsilon_bound"] == pytest.approx(spent)


def test_answers_that_were_not_counted_have_no_bound(tmp_path: Path) -> None:
    answer(tmp_path, 1, ["ann"])
    (tmp_path / "counts.json").unlink()
    assert values(node_metrics(tmp_path, None))["privsyn_node_epsilon_bound"] == float("inf")
    result = privsyn("metrics", "--folder", tmp_path)
    assert 'privsyn_node_epsilon_bound{delta="1e-06"} +Inf\n' in result.stdout


def test_every_line_is_of_the_format(tmp_path: Path) -> None:
    answer(tmp_path, 1, ["ann"])
    result = privsyn("metrics", "--folder", tmp_path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert all(SAMPLE.match(line) for line in lines if not line.startswith("# "))
    assert {line.split()[1] for line in lines if line.startswith("#")} == {"HELP", "TYPE"}
    odd = Metric("a_total", "about", [({"x": 'q"\\\n'}, 2)])
    assert (
        render([odd])
        == '# HELP a_total about\n# TYPE a_total counter\na_total{x="q\\"\\\\\\n"} 2\n'
    )


def test_a_runs_numbers_are_its_own_on_a_shared_ledger(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text("rounds = 4\nepsilon = 7.5\ndelta = 1e-6\n")
    ledger = Ledger.open(tmp_path / "all", population="p", total_epsilon=9.0, total_delta=1e-6)
    for run in ("own", "another"):
        number = ledger.reserve(run=run, query="votes", round=1, attempt=1, noise_multiplier=8.0)
        ledger.mark_sent(number)
        ledger.commit(number)
    usage.export(ledger, "own", folder / "ledger.jsonl")
    write_json(folder / "checkpoints" / "run.json", "own")
    header = ledger.header.id
    write_json(folder / "checkpoints" / "ledger.json", {"id": header, "path": str(ledger.path)})
    (folder / "metrics.jsonl").write_text('{"round": 1}\n')
    found = values(run_metrics(folder))
    assert (found["privsyn_run_rounds"], found["privsyn_run_rounds_planned"]) == (1, 4)
    charged = found["privsyn_run_epsilon_charged"]
    assert charged == pytest.approx(ledger.spent_epsilon("own"))
    assert ({"state": "stopped"}, True) in found["privsyn_run_state"]  # type: ignore[operator]
    assert not [name for name in found if "node" in name or "user" in name or "weight" in name]


def test_a_folder_that_is_no_runs_and_two_places_are_refused(tmp_path: Path) -> None:
    result = privsyn("metrics", "--run", tmp_path)
    assert (result.exit_code, "holds no run" in result.stderr) == (2, True)
    result = privsyn("metrics", "--run", "a", "--folder", "b")
    assert (result.exit_code, "--run is of a server" in result.stderr) == (2, True)


def test_it_is_served_on_loopback_by_a_fixed_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PageServer(lambda: render(node_metrics(tmp_path, None)), path="/metrics", kind=KIND)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert server.address == f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(server.address) as reply:
            assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert b"privsyn_node_answers_total 0\n" in reply.read()
        with pytest.raises(ValueError, match="choose another --port"):
            command.serve(lambda: "", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
