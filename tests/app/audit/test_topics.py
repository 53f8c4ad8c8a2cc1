"""The audit of CTCL: its histogram is measured beside its rounds, and a broken one is caught."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.audit import Audit, audit, kinds
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.accounting import gaussian_epsilon
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from tests.rigs.audit_audit import (
    TIGHT,
    TRIALS,
    calm,  # noqa: F401
    command,
    noise_times,
    votes_with,
)

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "method": "ctcl",
    "rounds": 2,
    "spare-rounds": 0,
    "epsilon": 8.0,
    "data.users": 100,
    "aggregation": "plain",
    "ctcl.histogram-multiplier": 1.0,
}
CLASSES = {"ctcl.labels": "news,mail,notes", "data.label-column": "kind"}
TRUSTED = {"training.noise": "aggregator"}
ALONE = {"ctcl.generator-training": False}


def measured(trials: int = TRIALS, **more: Any) -> Audit:
    return audit(RunConfig.from_flat({**SETTINGS, **more}), trials, "topics")


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("more", [{}, CLASSES, TRUSTED, ALONE], ids=["", "classes", "trusted", "1"])
def test_an_honest_histogram_passes_at_its_own_noise(more: dict[str, Any]) -> None:
    found = measured(**more)
    assert (found.kind, found.noise_multiplier, found.rounds) == ("topics", 1.0, 1)
    assert found.noise_source == ("aggregator" if more is TRUSTED else "nodes")
    claimed = gaussian_epsilon(1.0, gaussian_delta(found.delta))
    assert found.claimed_epsilon == pytest.approx(claimed, rel=1e-3)
    assert not found.contradiction, found
    assert found.lower_bound > TIGHT * found.claimed_epsilon


def test_noise_that_is_made_for_the_rounds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rounds may add is too little for a histogram that was promised more."""
    less = 0.5
    noise_times(monkeypatch, less)
    found = measured()
    assert found.contradiction and found.noise_variance_ratio == pytest.approx(less**2, rel=0.1)


def test_a_clip_of_every_class_by_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_class(real: Any, rows: Any, users: Any, candidates: Any, options: Any) -> Any:
        own = options.pop("sample_classes")
        parts = [
            real(rows, users, candidates, sample_classes=np.where(own == one, one, -1), **options)
            for one in range(3)
        ]
        return np.sum(parts, axis=0)

    votes_with(monkeypatch, by_class)
    assert measured(**CLASSES).contradiction


def test_the_command_measures_all_that_a_run_asks() -> None:
    result = command(SETTINGS, "--trials", "400", "--json")
    assert result.exit_code == 0, result.output
    rounds, topics = map(json.loads, result.stdout.splitlines())
    assert (rounds["kind"], topics["kind"]) == ("update", "topics")
    made = privacy_plan(RunConfig.from_flat(SETTINGS))
    assert rounds["noise_multiplier"] == made.main.multiplier
    assert topics["noise_multiplier"] == made["topics"].multiplier == 1.0
    wrong = command(SETTINGS, "--trials", "400", "--json", "--kind", "votes")
    assert wrong.exit_code == 2 and "'update' or 'topics'" in wrong.stderr


def test_what_a_configuration_asks() -> None:
    found = [kinds(RunConfig.from_flat({**SETTINGS, **more})) for more in (
        {}, ALONE, {"ctcl.histogram": False, "ctcl.histogram-multiplier": 10.0},
    )]  # fmt: skip
    assert found == [["update", "topics"], ["topics"], ["update"]]
    assert kinds(RunConfig()) == ["votes"]
