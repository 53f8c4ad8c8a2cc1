"""The engine under secure aggregation: what an abort costs, and what a kill leaves behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.protocol import secure
from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies.engine.cohort import RoundPlan, TooFewNodes
from privsyn_flower.strategies.engine.rounds import MOST_ABORTS, NoRelease
from tests.rigs.answers import Device, expected, question
from tests.rigs.secure_rounds import Asking, engine, states


@pytest.fixture
def devices(tmp_path: Path) -> dict[int, Device]:
    return {100 + i: Device(tmp_path, i) for i in range(4)}


def test_rounds_release_the_exact_sum(
    tmp_path: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    strategy = Asking(rounds=2)
    run = engine(tmp_path, loopback(devices), strategy, multiplier=1e-3)
    assert run.run() == 2
    assert states(run) == [(1, 1, "committed", True), (2, 1, "committed", True)]
    want = expected(question(), [0, 1, 2, 3])
    for released in strategy.learned.values():
        assert released == pytest.approx(want, abs=0.02)  # truncation and a thousandth of noise
    row = run.folder.metrics()[0]
    assert row["surviving_weight"] == 20
    assert row["bytes_up_per_node"] > 10 * 3  # masked vector, shares and keys


@pytest.mark.parametrize("stage", ["advertise", "share", "mask"])
def test_an_abort_before_unmasking_is_free_and_releases_nothing(
    tmp_path: Path, loopback: Any, devices: dict[int, Device], stage: str
) -> None:
    devices[101].dies_at = devices[102].dies_at = stage
    run = engine(tmp_path, loopback(devices), Asking(rounds=1))
    with pytest.raises(NoRelease):
        run.run()
    aborts = 1 + MOST_ABORTS
    assert states(run) == [(1, n, "void", False) for n in range(1, aborts + 1)]
    assert run.ledger.spent_epsilon() == 0.0
    assert not list((tmp_path / "run" / "releases").glob("*"))
    assert "unmask" not in devices[100].stages


def test_an_abort_uses_no_spare_round(
    tmp_path: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    devices[101].dies_at = devices[102].dies_at = "mask"

    class Recovering(Asking):
        def ask(self, rnd: int) -> Query:
            devices[100].tamper = lambda message: self.recover()
            return super().ask(rnd)

        def recover(self) -> None:
            if devices[100].stages.count("mask") == 2:
                devices[101].dies_at = devices[102].dies_at = ""

    run = engine(tmp_path, loopback(devices), Recovering(rounds=1), spare=0)
    assert run.run() == 1
    assert [row[2] for row in states(run)] == ["void", "committed"]


def test_once_nodes_were_asked_to_unmask_the_charge_stands(
    tmp_path: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    """Too few shares come back: nothing is known, but it might be, so it counts."""
    for device in list(devices.values())[1:]:
        device.dies_at = "unmask"
    run = engine(tmp_path, loopback(devices), Asking(rounds=1), spare=1)
    with pytest.raises(NoRelease):
        run.run()
    assert states(run) == [(1, 1, "reserved", True), (1, 2, "reserved", True)]
    assert run.ledger.spent_epsilon() > 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_unmasking(
    tmp_path: Path,
    loopback: Any,
    devices: dict[int, Device],
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between reserve and commit: free before a node was asked to unmask, charged after."""
    stage = "mask" if when == "before" else "unmask"
    send = secure.Transport.stage

    def power_cut(self: Any, name: str, *args: Any) -> Any:
        if name == stage:
            raise KeyboardInterrupt
        return send(self, name, *args)

    grid = loopback(devices)
    with monkeypatch.context() as patch:
        patch.setattr(secure.Transport, "stage", power_cut)
        with pytest.raises(KeyboardInterrupt):
            engine(tmp_path, grid, Asking(rounds=1)).run()
    again = engine(tmp_path, grid, Asking(rounds=1))
    assert again.run() == 1
    first = "void" if when == "before" else "reserved"
    assert [row[2] for row in states(again)] == [first, "committed"]
    assert len(list((tmp_path / "run" / "releases").glob("*"))) == 1


def test_a_draw_may_hold_every_colluder() -> None:
    """A random draw of few nodes may hold more than their share of the colluders: assume all."""
    whole = RoundPlan("r", 1000, 2.0, min_surviving_weight=0.7, colluding_weight=0.1)
    drawn = RoundPlan(
        "r", 1000, 2.0, min_surviving_weight=0.7, colluding_weight=0.1, cohort_nodes=20
    ).drawn(400)
    assert (whole.drawn(400).users, whole.colluding) == (1000, 100)
    assert (drawn.users, drawn.min_weight, drawn.colluding) == (400, 280, 100)


def test_rounds_of_drawn_nodes(tmp_path: Path, loopback: Any, devices: dict[int, Device]) -> None:
    strategy = Asking(rounds=3)
    run = engine(tmp_path, loopback(devices), strategy, multiplier=1e-3)
    run.plan = run.cohort.plan = replace(run.plan, cohort_nodes=3)
    assert run.run() == 3
    rows = run.folder.metrics()
    assert [(row["nodes_asked"], row["surviving_weight"]) for row in rows] == [(3, 15)] * 3
    assert sum(device.stages.count("mask") for device in devices.values()) == 9


def test_a_draw_too_light_for_its_colluders_is_refused_before_any_question(
    tmp_path: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    run = engine(tmp_path, loopback(devices), Asking(rounds=1))
    run.plan = run.cohort.plan = replace(run.plan, cohort_nodes=3, colluding_weight=0.25)
    with pytest.raises(TooFewNodes, match="cohort-nodes = 3"):
        run.run()
    assert states(run) == []
