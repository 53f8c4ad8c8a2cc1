"""What several tests share about dp fedavg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from privsyn_flower import runs
from privsyn_flower.config import AveragingConfig
from privsyn_flower.privacy.ledger import ledger as ledgers
from privsyn_flower.strategies import DPFedAvg, TrainingResult
from privsyn_flower.strategies.engine.aggregation import PlainSum
from tests.strategies.training_rig import record

DELTA = 1e-5


WIDE = AveragingConfig(clip_norm=10.0)  # cuts nothing that these nodes answer


def train(
    grid: Any, folder: Path, strategy: DPFedAvg | None = None, **options: Any
) -> TrainingResult:
    settings = {
        "num_rounds": 3,
        "epsilon": 8.0,
        "delta": DELTA,
        "users": 4,
        "folder": folder,
        "aggregation": PlainSum(),
        "timeout": 0.2,
        "node_timeout": 0.3,
        **options,
    }
    return (strategy or DPFedAvg(WIDE)).start(grid, record(), **settings)


def numbers(arrays: ArrayRecord) -> dict[str, np.ndarray[Any, Any]]:
    return {name: array.numpy() for name, array in arrays.items()}


class Kill(BaseException):
    """The process is gone."""


class Writes:
    """Counts every durable write and ends the process before the n-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.fatal = 0, -1
        for module, name in ((runs, "write_atomic"), (ledgers, "append_row")):
            monkeypatch.setattr(module, name, self._wrap(getattr(module, name)))

    def _wrap(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.fatal:
                raise Kill
            return write(*args, **options)

        return counted


def killed_everywhere(
    writes: Writes, once: Callable[[Path], TrainingResult], tmp_path: Path
) -> tuple[TrainingResult, list[TrainingResult]]:
    """The result of an undisturbed run, and of runs killed once at each write and gone on with."""
    whole = once(tmp_path / "whole")
    resumed = []
    for point in range(1, writes.count + 1):
        folder = tmp_path / f"killed-{point:03d}"
        writes.count, writes.fatal = 0, point
        with pytest.raises(Kill):
            once(folder)
        writes.fatal = -1
        resumed.append(once(folder))
    return whole, resumed


def bits(result: TrainingResult) -> dict[str, bytes]:
    return {name: array.numpy().tobytes() for name, array in result.arrays.items()}
