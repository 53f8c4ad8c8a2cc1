"""What several tests share about audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from privsyn_flower.app.audit import (
    measure,
)
from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps import votes as votes_app

TRIALS = 10_000


TIGHT = 0.5  # of the claim, which so many trials certify but for 1 audit in thousands


def noise_with(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """change(draw, length, weight, min_weight, multiplier, ...) is every node's noise."""
    draw = answers.node_noise_integers
    monkeypatch.setattr(answers, "node_noise_integers", lambda *a: change(draw, *a))


def votes_with(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """change(shard_votes, rows, users, candidates, options) is a node's sum of vectors."""
    real = votes_app.shard_votes
    monkeypatch.setattr(votes_app, "shard_votes", lambda *a, **options: change(real, *a, options))


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A false alarm of the variance test once in 2000 audits is too often for a test suite."""
    monkeypatch.setattr(measure, "NOISE_LEVEL", 1e-9)
