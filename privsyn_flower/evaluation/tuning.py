"""What the fine-tunings of one evaluation share: their length, batches, schedule and precision;
and when one has learned what it can (`Plateau`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from privsyn_flower.common.arrays import I64

Schedule = Literal["linear", "cosine", "constant"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Tuning:
    """What all fine-tunings share.

    steps: optimiser steps; epochs above 0: passes over the texts instead. batch_size, length: a
    step predicts batch_size * length tokens from texts cut to `length` tokens; with `texts` (and
    epochs, and for classes) it reads batch_size texts, whatever their length. learning_rate:
    AdamW's peak. seed: of the order of the texts, and of dropout. micro_batch: most texts in
    memory at once, 0: all of a step; it changes no result beyond rounding. warm_up: share of the
    steps over which the rate rises. clip: norm at which a step's gradient is cut, 0: nowhere.
    precision: of the matrix products; the weights that are trained stay float32.
    """

    steps: int
    batch_size: int
    length: int
    learning_rate: float
    seed: int = 0
    epochs: int = 0
    texts: bool = False
    micro_batch: int = 0
    schedule: Schedule = "linear"
    warm_up: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    precision: Precision = "float32"

    @property
    def batch_tokens(self) -> int:
        """Target tokens of one step, where a batch is counted in tokens."""
        return self.batch_size * self.length

    @property
    def by_texts(self) -> bool:
        """Whether a batch is counted in texts."""
        return self.texts or self.epochs > 0

    def steps_of(self, texts: int) -> int:
        """Optimiser steps on a set of so many texts. Raises ValueError for passes over none."""
        if self.epochs and not texts:
            raise ValueError(
                f"{self.epochs} passes over no text (evaluation.epochs, evaluation.public-epochs): "
                "the set is empty"
            )
        return self.epochs * self.epoch_steps(texts) if self.epochs else self.steps

    def epoch_steps(self, texts: int) -> int:
        """Steps of one pass; the last may have fewer texts."""
        return -(-texts // self.batch_size)


def learning_rate_factor(step: int, steps: int, tuning: Tuning | None = None) -> float:
    """The share of the peak rate at `step` (from 0) of `steps`: a linear rise, then the schedule.

    `linear` and `cosine` end near 0. Without a warm-up they are the schedules of transformers.
    """
    schedule, warm_up = (tuning.schedule, tuning.warm_up) if tuning else ("linear", 0.1)
    rise = max(1.0, warm_up * steps) if warm_up else 0.0
    rising = (step + 1) / rise if rise else 1.0
    if schedule == "constant":
        return min(rising, 1.0)
    left = max(0.0, (steps - step) / max(1.0, steps - rise))
    if schedule == "linear":
        return min(rising, left)
    return min(rising, 0.5 * (1 - math.cos(math.pi * min(1.0, left))))


@dataclass(frozen=True)
class Batch:
    """The texts of one step by number, and how many tokens of each are read: both (b,)."""

    rows: I64
    tokens: I64

    def by_length(self) -> Batch:
        """The same texts, the short ones first: what goes through a model together has little
        padding."""
        order = np.argsort(self.tokens, kind="stable")
        return Batch(self.rows[order], self.tokens[order])


def batches(lengths: I64, tuning: Tuning, start: int = 0) -> Iterator[Batch]:
    """The batches of a training on texts of these lengths in tokens (n,), drawn as they are asked.

    What is held does not grow with the number of steps. Every text is read once before one is
    read again; the order of each pass is drawn from the seed. start: steps to leave out. Raises
    ValueError without a text to learn from.
    """
    return (_by_texts if tuning.by_texts else _by_tokens)(lengths, tuning, start)


def _by_tokens(lengths: I64, tuning: Tuning, start: int) -> Iterator[Batch]:
    """Exactly `batch_tokens` targets a step: a row of n tokens has n - 1. The row that would
    overshoot is cut, and its rest is dropped."""
    usable = np.flatnonzero(lengths > 1)
    if not len(usable):
        raise ValueError("no text with a token to predict: the set is empty")
    rng = np.random.default_rng(tuning.seed)
    order, waiting = usable, 0
    for step in range(tuning.steps):
        rows, tokens, room = [], [], tuning.batch_tokens
        while room > 0:
            if not waiting:
                order, waiting = usable[rng.permutation(len(usable))], len(usable)
            waiting -= 1  # from the end
            row = int(order[waiting])
            targets = min(int(lengths[row]) - 1, room)
            rows.append(row)
            tokens.append(targets + 1)
            room -= targets
        if step >= start:
            yield Batch(np.array(rows), np.array(tokens))


def _by_texts(lengths: I64, tuning: Tuning, start: int) -> Iterator[Batch]:
    """`batch_size` texts a step. With epochs the last batch of each has what is left (as both
    papers' code); without, a batch goes on into the next pass."""
    count, size = len(lengths), tuning.batch_size
    if not count:
        raise ValueError("no text to train on: the set is empty")
    rng = np.random.default_rng(tuning.seed)
    order: I64 = np.zeros(0, dtype=np.int64)
    for step in range(tuning.steps_of(count)):
        while not len(order) or (len(order) < size and not tuning.epochs):
            order = np.concatenate([order, rng.permutation(count)])
        rows, order = order[:size], order[size:]
        if step >= start:
            yield Batch(rows, lengths[rows])


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
