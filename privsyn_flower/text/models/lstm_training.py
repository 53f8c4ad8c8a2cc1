"""Training the keyboard's language model on public text: Adam on next words, in accumulated steps.

"Prompt public LLMs to synthesize data", section 4.1 and appendix C.1: Adam at 1e-3 with epsilon
1e-9, batches of 20K examples, about 150K steps. A batch of that size does not fit into memory with
30,000 words to predict, so a step may go through the model in parts; its gradient is the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from privsyn_flower.arrays import I64
from privsyn_flower.progress import Progress, silent, stop
from privsyn_flower.randomness import seeded
from privsyn_flower.text.models.batches import causal_loss, encode, pad_rows, token_batches
from privsyn_flower.text.models.devices import one_worker, resolve_device

STAGE = "training the LSTM on public text"  # of progress
LONGEST = 64  # words of a text that are looked at
LEARNING_RATE, ADAM_EPSILON = 1e-3, 1e-9  # section 4.1

Words = Sequence[Sequence[int]]  # texts as word ids


@dataclass(frozen=True)
class WordTraining:
    """How long and in what steps.

    steps: of Adam. batch_texts: texts of a step; 0: as many as batch_words hold. batch_words:
    padded words that go through the model at once, a whole step or a part of one. seconds: no step
    starts after them. seed: of the order. device: as `models.device`.
    """

    steps: int
    batch_texts: int = 0
    batch_words: int = 2048
    seconds: float = float("inf")
    seed: int = 0
    device: str = "cpu"

    @property
    def readable(self) -> int:
        """Most texts that the steps can read."""
        return self.steps * (self.batch_texts or self.batch_words)


def train_words(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    training: WordTraining,
    progress: Progress = silent,
) -> int:
    """Adam on the mean loss of a next word of public texts, in place; returns the steps taken.

    The model is left on the CPU. Raises ValueError when no text has a word.
    """
    rng = seeded(training.seed, "lstm", "order")
    picked = rng.permutation(len(texts))[: training.readable]
    rows = [row for row in encode(tokenizer, [texts[i] for i in picked], LONGEST) if len(row) > 1]
    if not rows:
        raise ValueError("no public text has a word: an LSTM cannot be trained on it")
    device = resolve_device(training.device)
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON)
    end, taken = time.monotonic() + training.seconds, 0
    steps = _steps(rows, training, rng, seeded(training.seed, "lstm", "parts"))
    with one_worker():
        while taken < training.steps and time.monotonic() <= end:
            optimizer.zero_grad()
            add_gradients(model, rows, next(steps), device)
            optimizer.step()
            taken += 1
            if taken < training.steps:
                progress(STAGE, taken, training.steps)
    stop(progress, STAGE, taken, training.steps)
    model.to("cpu").eval()
    return taken


def add_gradients(model: Any, rows: Words, parts: Sequence[I64], device: str) -> None:
    """Add the gradient of the mean loss over all words of a step, part by part."""
    targets = [sum(len(rows[i]) - 1 for i in part) for part in parts]
    for part, own in zip(parts, targets, strict=True):
        ids, mask = pad_rows([rows[i] for i in part], model.config.pad_token_id)
        loss = causal_loss(model, ids.to(device), mask.to(device))
        (loss * (own / sum(targets))).backward()  # type: ignore[no-untyped-call]


def _steps(
    rows: Words, training: WordTraining, rng: np.random.Generator, cuts: np.random.Generator
) -> Iterator[list[I64]]:
    """The rows of every step, in parts of similar length; each row once before one comes again.

    cuts: draws the parts' order, so that the rows of a step do not depend on how it is cut.
    """
    lengths = np.array([len(row) for row in rows])
    while not training.batch_texts:
        yield from ([part] for part in token_batches(lengths, training.batch_words, rng)[::-1])
    waiting: I64 = np.zeros(0, dtype=np.int64)
    while True:
        while len(waiting) < training.batch_texts:
            waiting = np.concatenate([waiting, rng.permutation(len(rows))])
        chosen, waiting = np.split(waiting, [training.batch_texts])
        parts = token_batches(lengths[chosen], training.batch_words, cuts)
        yield [chosen[part] for part in parts]
