"""What the tests of the audit share: settings, and faults put in by replacing a function of the
devices, because no configuration and no message can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.audit import measure
from privsyn_flower.app.cli.main import app
from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps import votes as votes_app
from privsyn_flower.config import RunConfig

TRIALS = 10_000
TIGHT = 0.5  # of the claim, which so many trials certify but for 1 audit in thousands
# One release at noise multiplier 1; epsilon is a budget that it stays below.
ONE_RELEASE: dict[str, Any] = {
    "noise-multiplier": 1.0,
    "rounds": 1,
    "spare-rounds": 0,
    "epsilon": 8.0,
}


def configured(settings: Mapping[str, Any], **changed: Any) -> RunConfig:
    """changed: keys with __ for a point and _ for a hyphen."""
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in changed.items()}
    return RunConfig.from_flat({**settings, **keys})


def command(settings: Mapping[str, Any], *arguments: str) -> Any:
    """The result of `privsyn audit`."""
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return CliRunner().invoke(app, ["audit", *sets, *arguments])


def noise_with(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """change(draw, length, weight, min_weight, multiplier, ...) is every node's noise."""
    draw = answers.node_noise_integers
    monkeypatch.setattr(answers, "node_noise_integers", lambda *a: change(draw, *a))


def noise_times(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Every node's noise, of another multiplier."""
    noise_with(monkeypatch, lambda draw, *a: draw(*a[:3], factor * a[3], *a[4:]))


def sums_with(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, change: Callable[..., Any]
) -> None:
    """change(real, *arguments, options) is a node's sum of vectors, by module.name as it was."""
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *a, **options: change(real, *a, options))


def votes_with(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """change(shard_votes, rows, users, candidates, options)."""
    sums_with(monkeypatch, votes_app, "shard_votes", change)


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A false alarm of the variance test once in 2000 audits is too often for a test suite."""
    monkeypatch.setattr(measure, "NOISE_LEVEL", 1e-9)
