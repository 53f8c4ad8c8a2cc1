"""What several tests share about training pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.strategies.engine.session import noise_key_folder


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where keys of noise lie in these tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return noise_key_folder()


DP_FEDAVG = {
    "method": "dp-fedavg",
    "epsilon": 500.0,
    "rounds": 2,
    "training.parameters": "lora",
    "training.lora-rank": 2,
    "training.lora-factors": "up",
    "training.learning-rate": 0.5,
    "training.max-steps": 1,
    "training.public-steps": 3,
}


FTRL = {
    "method": "dp-ftrl",
    "rounds": 4,
    "training.noise": "aggregator",
    "training.parameters": "layers",
    "training.layers": "*norm*",
    "ftrl.mechanism": "banded",
    "ftrl.min-separation": 2,
}


class Killed(BaseException):
    """What no handler of ours catches."""


def killing(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, when: Any = None) -> None:
    """Make `place.name` end the process when it is called (and `when` says so)."""
    real = getattr(place, name)

    def fatal(*args: Any, **kwargs: Any) -> Any:
        if when is None or when(*args, **kwargs):
            raise Killed(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(place, name, fatal)
