"""When a training has learned what it can: its loss on other text no longer falls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Plateau:
    """The losses that a training is ended by.

    every: steps between two looks. patience: steps without a lower loss after which it ends.
    losses: step -> loss in nats on text that it is not trained on; 0: before the first step.
    """

    every: int
    patience: int
    losses: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, patience: int) -> Plateau:
        """Four looks within the patience."""
        return cls(every=max(1, patience // 4), patience=patience)

    @property
    def best(self) -> int:
        """The step of the lowest loss, the earliest of equal ones. Raises ValueError for none."""
        return min(self.losses, key=lambda step: (self.losses[step], step))

    def add(self, step: int, loss: float) -> None:
        """A loss that is no number counts as the highest there is."""
        self.losses[step] = loss if math.isfinite(loss) else math.inf

    def reached(self, step: int) -> bool:
        """Whether the loss has not fallen for so long."""
        return step - self.best >= self.patience

    def restore(self, losses: Mapping[str, float]) -> None:
        """Those of a checkpoint, whose JSON has texts as keys."""
        self.losses = {int(step): loss for step, loss in losses.items()}

    def figures(self, steps: int) -> dict[str, Any]:
        """For a summary: the steps taken, those of the model that was kept, its loss and the one
        before the first step, and whether the loss stopped falling before the steps ran out."""
        return {
            "steps": steps,
            "kept_step": self.best,
            "public_validation_loss": round(self.losses[self.best], 5),
            "loss_before": round(self.losses[0], 5),
            "converged": self.reached(steps),
        }
