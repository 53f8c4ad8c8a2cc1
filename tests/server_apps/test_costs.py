"""The costs of a simulated run from its own records: who computed what, for how many users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.config import RunConfig
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.costs import TIMINGS_FILE, costs


def timing(folder: Path, node: str, run: str, rnd: int, cpu: float) -> None:
    path = folder / "cache" / "nodes" / node / TIMINGS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {"run": run, "query": "q", "round": rnd, "attempt": 1, "cpu_seconds": cpu, "users": 10}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def finished(folder: Path) -> RunFolder:
    """Two rounds over two nodes of ten users, and one evaluation."""
    record = RunFolder(folder / "run")
    record.save_value("run", "abc")
    for rnd in (1, 2):
        row = {"round": rnd, "seconds": 9.0, "exchange_seconds": 6.0, "nodes_answered": 2}
        row |= {"bytes_up_per_node": 100 * rnd, "bytes_down_per_node": 1000 * rnd}
        record.save_checkpoint(rnd, {}, row)
        for node in ("0-of-2", "1-of-2"):
            timing(folder, node, "abc", rnd, 2.5)
    release = record.path / "evaluations" / "selection" / "releases" / "round-0001.npz"
    release.parent.mkdir(parents=True)
    release.write_bytes(b"")
    timing(folder, "0-of-2", "abc-selection", 1, 4.0)
    timing(folder, "0-of-2", "another", 1, 1000.0)
    return record


def configured(folder: Path, **values: object) -> RunConfig:
    base = {"nodes": 2, "data.users": 20, "aggregation": "plain", "cache": str(folder / "cache")}
    return RunConfig.from_flat({**base, **values})  # type: ignore[arg-type]


def test_costs_of_rounds_and_evaluations(tmp_path: Path) -> None:
    record = finished(tmp_path)
    found = costs(configured(tmp_path), record, {"expansion": 5.0, "benchmark": 100.0})
    assert found == {
        "client_cpu_seconds_per_user_round": 10.0 / 40,
        "client_cpu_seconds_per_user": 14.0 / 20,
        "server_wall_seconds": 11.0,
        "bytes_up_per_user_round": 200,
        "bytes_down_per_user_round": 2000,
        "releases": 3,
    }


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({"sampler": "poisson", "sampling-rate": 0.5}, 1.0),
        ({"ftrl.min-separation": 2}, 0.5),
        ({"ftrl.min-separation": 2, "ftrl.schedule": "nodes"}, 1.0),
    ],
)
def test_a_users_round_is_one_in_which_it_is_asked(
    tmp_path: Path, values: dict[str, object], share: float
) -> None:
    ftrl = {"method": "dp-ftrl", "training.noise": "aggregator"} if "sampler" not in values else {}
    found = costs(configured(tmp_path, **ftrl, **values), finished(tmp_path), {})
    assert found["client_cpu_seconds_per_user_round"] == pytest.approx(10.0 / 40 / share)
    assert found["client_cpu_seconds_per_user"] == 14.0 / 20


def test_without_measurements_nothing_is_claimed(tmp_path: Path) -> None:
    record = RunFolder(tmp_path / "run")
    record.save_value("run", "abc")
    found = costs(configured(tmp_path), record, {})
    assert found["client_cpu_seconds_per_user"] is None
    assert found["client_cpu_seconds_per_user_round"] is None
    assert (found["releases"], found["server_wall_seconds"]) == (0, 0.0)
