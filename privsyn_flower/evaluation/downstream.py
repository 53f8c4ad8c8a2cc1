"""Fine-tune a causal LM on a set of texts and measure it on users, at equal cost for every set.

Every fine-tuning starts from the same weights, takes the same number of optimiser steps with
exactly the same number of target tokens in each, and follows the same learning-rate schedule.
Texts are tokenised once: the papers' code tokenised twice, which made most targets trivial.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privsyn_flower.arrays import F32, F64
from privsyn_flower.evaluation.next_token import IGNORED, SUMS, row_sums
from privsyn_flower.progress import Progress, silent
from privsyn_flower.text.models.batches import causal_loss, encode, pad_rows, unknown_token
from privsyn_flower.text.models.devices import one_worker, resolve_device

Rows = list[list[int]]

WARM_UP = 0.1  # share of the steps over which the learning rate rises; then it falls to 0
WEIGHT_DECAY = 0.01
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Tuning:
    """What all fine-tunings share.

    steps: optimiser steps. batch_size, length: a step predicts batch_size * length tokens from
    texts cut to `length` tokens. learning_rate: AdamW's peak. seed: of the order of the texts.
    """

    steps: int
    batch_size: int
    length: int
    learning_rate: float
    seed: int = 0

    @property
    def batch_tokens(self) -> int:
        """Target tokens of one step."""
        return self.batch_size * self.length


@contextlib.contextmanager
def own_generator(seed: int) -> Iterator[None]:
    """Inside, torch draws from `seed` (initial weights, dropout); outside, as if never entered."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


class Downstream:
    """A pretrained causal LM (a folder or hub name) that is fine-tuned again and again.

    Raises ModelUnavailableError when it cannot be loaded.
    """

    def __init__(self, model: str | os.PathLike[str], *, length: int, device: str = "cpu") -> None:
        from privsyn_flower.text.models.pretrained import load_model, load_tokenizer

        key = "models.downstream"
        self.length, self.device = length, resolve_device(device)
        self.tokenizer = load_tokenizer(model, key)
        self.model = load_model("AutoModelForCausalLM", model, key, self.device, "float32")
        self._start = {
            name: value.detach().clone() for name, value in self.model.state_dict().items()
        }
        self._unknown = unknown_token(self.tokenizer)
        self._pad = self.tokenizer.pad_token_id
        if self._pad is None:  # GPT-2 has none; padding is masked out, so any id will do
            self._pad = self.tokenizer.eos_token_id or 0

    def encode(self, texts: Sequence[str]) -> Rows:
        """Texts -> token ids, tokenised once and cut; those without a target are left out."""
        return [row for row in encode(self.tokenizer, texts, self.length) if len(row) > 1]

    def reset(self) -> None:
        """Back to the pretrained weights."""
        self.model.load_state_dict(self._start)

    def fine_tune(
        self, rows: Rows, tuning: Tuning, progress: Progress = silent, stage: str = "fine-tuning"
    ) -> float:
        """From the pretrained weights, train on `rows`; returns the mean training loss in nats.

        Raises ValueError when there are no rows.
        """
        self.reset()
        padded = (pad_rows(batch, self._pad) for batch in batches(rows, tuning))
        losses = (
            causal_loss(self.model, ids.to(self.device), mask.to(self.device))
            for ids, mask in padded
        )
        return fit(self.model, losses, tuning, progress, stage)

    def sums(self, rows: Rows) -> F64:
        """Rows -> (n, 3): loss in nats, correct predictions and predicted tokens of each."""
        import torch

        result = np.zeros((len(rows), SUMS))
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        self.model.eval()
        for start in range(0, len(order), EVALUATION_BATCH):
            places = order[start : start + EVALUATION_BATCH]
            ids, mask = pad_rows([rows[i] for i in places], self._pad)
            with one_worker(), torch.inference_mode():
                logits = self.model(
                    input_ids=ids.to(self.device), attention_mask=mask.to(self.device)
                ).logits
            labels = ids.masked_fill(mask == 0, IGNORED).to(self.device)
            result[places] = row_sums(logits, labels, self._unknown)
        return result

    def user_sums(self, users: Mapping[str, Rows]) -> F64:
        """Held-out users' rows -> (users, 3): the same sums per user."""
        table = self.sums([row for rows in users.values() for row in rows])
        ends = np.cumsum([len(rows) for rows in users.values()])
        parts = np.split(table, ends[:-1]) if len(ends) else []
        return np.array([part.sum(axis=0) for part in parts]).reshape(-1, SUMS)

    def parameters(self) -> dict[str, F32]:
        """The current weights by name, as copies."""
        return {
            name: value.detach().cpu().numpy().astype(np.float32, copy=True)
            for name, value in self.model.named_parameters()
        }

    def loss(self, rows: Rows) -> float:
        """Micro cross-entropy in nats over `rows`."""
        total = self.sums(rows).sum(axis=0)
        return float(total[0] / total[2])


def fit(model: Any, losses: Iterable[Any], tuning: Tuning, progress: Progress, stage: str) -> float:
    """Train all of `model`, a step for each loss, on a CPU in one worker; returns the mean loss.

    losses: tensors that are computed as they are asked for, with the generator of `tuning.seed`.
    """
    import torch

    model.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=tuning.learning_rate, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, tuning.steps)
    )
    told = []
    with one_worker(), own_generator(tuning.seed):
        for step, loss in enumerate(losses, start=1):
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            told.append(float(loss.item()))
            progress(stage, step, tuning.steps)
    model.eval().requires_grad_(False)
    return float(np.mean(told))


def batches(rows: Rows, tuning: Tuning) -> list[Rows]:
    """`steps` batches of exactly `batch_tokens` targets; epochs in an order drawn from the seed.

    A row of n tokens has n - 1 targets. The row that would overshoot is cut, and its rest is
    dropped. Raises ValueError without rows to draw from.
    """
    usable = [row for row in rows if len(row) > 1]
    if not usable:
        raise ValueError("no text with a token to predict: the set is empty")
    rng = np.random.default_rng(tuning.seed)
    result: list[Rows] = []
    waiting: list[int] = []
    for _ in range(tuning.steps):
        batch: Rows = []
        room = tuning.batch_tokens
        while room > 0:
            if not waiting:
                waiting = rng.permutation(len(usable)).tolist()
            row = usable[waiting.pop()][: room + 1]
            batch.append(row)
            room -= len(row) - 1
        result.append(batch)
    return result


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear rise over the first WARM_UP of the steps, then linear fall to 0 at the end."""
    rise = max(1.0, WARM_UP * steps)
    return min((step + 1) / rise, max(0.0, (steps - step) / max(1.0, steps - rise)))


def choose_learning_rate(
    model: Downstream,
    rates: Sequence[float],
    train: Rows,
    validation: Rows,
    tuning: Tuning,
    progress: Progress = silent,
) -> tuple[float, dict[str, float]]:
    """The rate with the least loss on public validation text after tuning on public text.

    Both sets must be public. Returns (rate, {rate: loss}); a single rate is taken untested.
    Raises ValueError without rates.
    """
    if not rates:
        raise ValueError("evaluation.learning-rates is empty: name at least one")
    if len(rates) == 1:
        return rates[0], {}
    losses: dict[float, float] = {}
    for rate in rates:
        trial = Tuning(tuning.steps, tuning.batch_size, tuning.length, rate, tuning.seed)
        model.fine_tune(train, trial, progress, f"learning rate {rate:g} on public text")
        losses[rate] = model.loss(validation)
    best = min(losses, key=lambda rate: losses[rate])
    return best, {f"{rate:g}": round(loss, 5) for rate, loss in losses.items()}
