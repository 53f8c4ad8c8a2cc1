"""The control of a training: noise of the released size, correlated as the released noise was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.common.progress import silent
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.correlated import factorization
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.controls import noise_updates

ROUNDS, LENGTH, STD = 16, 2000, 3.0


class Recorder:
    """A strategy that keeps what it is told."""

    def __init__(self, stop: int = 0) -> None:
        self.layout, self.indicator, self.rounds = SimpleNamespace(length=LENGTH), 0.0, ROUNDS
        self.seen: list[np.ndarray[Any, Any]] = []
        self.stop = stop

    def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
        if rnd == self.stop:
            raise KeyboardInterrupt
        assert noise_std == STD and released.shape == (LENGTH,)
        self.seen.append(released)
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def record(folder: Path) -> RunFolder:
    """A run whose releases all had noise of one size."""
    found = RunFolder(folder / "run")
    for rnd in range(1, ROUNDS + 1):
        found.save_checkpoint(rnd, {}, {"round": rnd, "noise_std": STD})
    return found


def control(strategy: Any, folder: Path, correlation: Any) -> Any:
    """The releases of the control, (rounds, length)."""
    work = RunFolder(folder / "control")
    noise_updates(strategy, RunConfig(), record(folder), work, correlation, silent)
    return np.array(strategy.seen)


def test_independent_noise(tmp_path: Path) -> None:
    seen = control(Recorder(), tmp_path, None)
    assert seen.std(axis=1) == pytest.approx(np.full(ROUNDS, STD), rel=0.1)
    assert seen.sum(axis=0).std() == pytest.approx(STD * np.sqrt(ROUNDS), rel=0.1)
    assert np.array_equal(control(Recorder(), tmp_path / "again", None), seen)  # the seed's own


def test_correlated_noise_cancels_as_the_released_noise_did(tmp_path: Path) -> None:
    correlation = factorization("banded", ROUNDS, bands=ROUNDS)
    released, prefix = correlation.release_std(), correlation.prefix_std()
    seen = control(Recorder(), tmp_path, correlation)
    assert seen.std(axis=1) == pytest.approx(np.full(ROUNDS, STD), rel=0.1)
    summed = (seen * released[:, None]).sum(axis=0).std()
    assert summed == pytest.approx(STD * prefix[-1], rel=0.1)
    assert summed < 0.6 * STD * np.sqrt(ROUNDS)  # independent noise would not be that small
    assert not list((tmp_path / "control").rglob("key"))


def test_a_killed_control_goes_on_with_its_noise(tmp_path: Path) -> None:
    correlation = factorization("banded", ROUNDS, bands=ROUNDS)
    first = Recorder(stop=9)
    with pytest.raises(KeyboardInterrupt):
        control(first, tmp_path, correlation)
    rest = Recorder()
    seen = np.concatenate([first.seen, control(rest, tmp_path, correlation)])
    assert len(rest.seen) == ROUNDS - 8
    summed = (seen * correlation.release_std()[:, None]).sum(axis=0).std()
    assert summed == pytest.approx(STD * correlation.prefix_std()[-1], rel=0.1)
