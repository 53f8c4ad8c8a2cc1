"""Fine-tune a causal LM on a set of texts and measure it on users, in the same way for every set.

Every fine-tuning starts from the same weights and follows the same schedule: for the same number
of steps with exactly the same number of target tokens in each (the default), or for the papers'
epochs. Texts are tokenised once: the papers' code tokenised twice, which made most targets trivial.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.evaluation.metrics import SUMS, row_sums
from privsyn_flower.evaluation.process_pool import FineTuning, sums_after
from privsyn_flower.evaluation.rows import Rows, TokenRows, Work, encoded, row_lengths
from privsyn_flower.evaluation.tuning import Batch, Plateau, Precision, Tuning, batches
from privsyn_flower.text.models.batches import (
    SpecialTokens,
    causal_loss,
    next_tokens,
    pad_rows,
    unknown_token,
)
from privsyn_flower.text.models.devices import one_worker, training_device

EVALUATION_BATCH, EVALUATION_TOKENS = 64, 64 * 64  # most texts, and tokens, measured at once


@dataclass(frozen=True)
class Adapter:
    """LoRA factors that are trained instead of the weights; their scale is alpha / rank."""

    rank: int
    alpha: float


@contextlib.contextmanager
def own_generator(seed: int) -> Iterator[None]:
    """Inside, torch draws from `seed` (initial weights, dropout); outside, as if never entered."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


class Downstream:
    """A pretrained causal LM (a folder or hub name) that is fine-tuned again and again.

    adapter: what is trained; None: all weights. base_dtype: of the weights under an adapter, which
    never change; without one they are float32. processes: that share a fine-tuning, a GPU each.
    Raises ModelUnavailableError when the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        length: int,
        device: str = "cpu",
        special_tokens: SpecialTokens = "tokenizer",
        adapter: Adapter | None = None,
        base_dtype: Precision = "float32",
        processes: int = 1,
    ) -> None:
        from privsyn_flower.text.models.pretrained import load_model, load_tokenizer

        key = "models.downstream"
        self.source, self.base_dtype, self.processes = model, base_dtype, processes
        self.length, self.device = length, training_device(device)
        self.special_tokens, self.adapter = special_tokens, adapter
        self.tokenizer = load_tokenizer(model, key)
        dtype = base_dtype if adapter else "float32"
        self.model = load_model("AutoModelForCausalLM", model, key, self.device, dtype)
        # A base under an adapter is never changed, and may be too large to have twice.
        self._start = {} if adapter else _copied(self.model)
        self._unknown = unknown_token(self.tokenizer)
        self._pad = self.tokenizer.pad_token_id
        if self._pad is None:  # GPT-2 has none; padding is masked out, so any id will do
            self._pad = self.tokenizer.eos_token_id or 0

    def encode(self, texts: Sequence[str]) -> TokenRows:
        """Texts -> token ids, tokenised once and cut; those without a target are left out."""
        return encoded(self.tokenizer, texts, self.length, self.special_tokens)

    def reset(self) -> None:
        """Back to the pretrained weights."""
        if self.adapter is None:
            self.model.load_state_dict(self._start)
        elif hasattr(self.model, "peft_config"):
            from privsyn_flower.text.models.adapters import detach

            self.model = detach(self.model)

    def fine_tune(
        self,
        rows: Rows,
        tuning: Tuning,
        progress: Progress = silent,
        stage: str = "fine-tuning",
        *,
        work: Path | None = None,
        choice: Rows | None = None,
        plateau: Plateau | None = None,
    ) -> float:
        """From the pretrained weights, train on `rows`; returns the mean training loss in nats.

        work: folder of this training's checkpoints, from which it goes on. choice: rows on which
        the best epoch is the most accurate; the model of that epoch is kept. plateau: it ends
        instead when the loss on `choice` no longer falls, with the model of the lowest, and is done
        in one process. Raises ValueError when there are no rows.
        """
        from privsyn_flower.evaluation.fitting import Watch, fit

        self.reset()
        if self.adapter is None:
            self.model.requires_grad_(True)
        else:
            from peft import get_peft_model

            from privsyn_flower.text.models.adapters import lora

            with own_generator(tuning.seed):
                self.model = get_peft_model(self.model, lora(*vars(self.adapter).values()))
        if self.processes > 1 and plateau is None:
            from privsyn_flower.evaluation.process_pool import fine_tune_by

            own: dict[str, Any] = {"work": work, "choice": choice}
            given = self.processes, self.model, self.load_spec(), rows, tuning
            return fine_tune_by(*given, progress, stage, **own)
        task = _NextToken(rows, tuning, self._pad, self.device)
        watch = Watch(progress, stage, work, self._score(choice, plateau), plateau)
        return fit(self.model, task, tuning, self.device, watch)

    def _score(self, choice: Rows | None, plateau: Plateau | None) -> Callable[[], float] | None:
        if choice is None:
            return None
        if plateau is not None:
            return lambda: -self.loss(choice)
        return lambda: self.accuracy(choice)

    def packed(self, rows: Rows) -> Rows:
        """What is learned from or tested on, as token ids alone: for digests and files."""
        return rows

    def unpacked(self, rows: TokenRows) -> TokenRows:
        """The inverse of `packed`."""
        return rows

    def load_spec(self) -> dict[str, Any]:
        """What another process needs to load the same model."""
        return {
            "model": os.fspath(self.source),
            "length": self.length,
            "device": self.device,
            "special_tokens": self.special_tokens,
            "adapter": asdict(self.adapter) if self.adapter else None,
            "base_dtype": self.base_dtype,
        }

    def sums(self, rows: Rows) -> F64:
        """Rows -> (n, 3): loss in nats, correct predictions and predicted tokens of each."""
        import torch

        result = np.zeros((len(rows), SUMS))
        order = np.argsort(row_lengths(rows), kind="stable").tolist()
        self.model.eval()
        width = max(1, min(EVALUATION_BATCH, EVALUATION_TOKENS // self.length))
        for start in range(0, len(order), width):
            places = order[start : start + width]
            ids, mask = pad_rows([rows[i] for i in places], self._pad)
            with one_worker(), torch.inference_mode():
                found = next_tokens(self.model, ids.to(self.device), mask.to(self.device))
                result[places] = row_sums(*found, self._unknown)
        return result

    def unknown_rate(self, rows: Rows) -> float | None:
        """Share of the predicted tokens of `rows` that are words outside of the vocabulary, about
        which nobody is right; None for a model that can spell any word."""
        if self._unknown is None:
            return None
        targets = [token for row in rows for token in row[1:]]
        return targets.count(self._unknown) / max(1, len(targets))

    def user_sums(self, users: Mapping[str, Rows]) -> F64:
        """Held-out users' rows -> (users, 3): the same sums per user."""
        table = self.sums(TokenRows(row for rows in users.values() for row in rows))
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

    def accuracy(self, rows: Rows) -> float:
        """Share of the tokens of `rows` that are predicted."""
        total = self.sums(rows).sum(axis=0)
        return float(total[1] / total[2])


class _NextToken:
    """Next tokens of rows, as `fitting.Task` has it."""

    def __init__(self, rows: Rows, tuning: Tuning, pad: int, device: str) -> None:
        self.rows, self.tuning, self.pad, self.device = rows, tuning, pad, device
        self.lengths = row_lengths(rows)

    def steps(self) -> int:
        return self.tuning.steps_of(len(self.lengths))

    def epoch_steps(self) -> int:
        return self.tuning.epoch_steps(len(self.lengths))

    def parts(self, start: int) -> Iterator[Sequence[Any]]:
        size = texts_at_once(self.tuning, self.device)
        for batch in batches(self.lengths, self.tuning, start):
            yield Parts(batch.by_length(), size)

    def loss(self, model: Any, part: tuple[Batch, float]) -> tuple[Any, float]:
        batch, share = part
        cut = zip(batch.rows.tolist(), batch.tokens.tolist(), strict=True)
        ids, mask = pad_rows([self.rows[row][:kept] for row, kept in cut], self.pad)
        return causal_loss(model, ids.to(self.device), mask.to(self.device)), share


TOGETHER = 16  # on a CPU: padded to its longest, half of a whole batch of chats is padding


def texts_at_once(tuning: Tuning, device: str) -> int:
    """Of a batch, how many go through a model together; 0: all."""
    most = tuning.micro_batch
    return min(most or TOGETHER, TOGETHER) if device == "cpu" else most


class Parts(Sequence[tuple[Batch, float]]):
    """A batch in micro-batches of at most `size` texts (0: one), each with its share of the
    batch's targets: a text of n tokens has n - `unseen`."""

    def __init__(self, batch: Batch, size: int, unseen: int = 1) -> None:
        self.batch, self.size, self.unseen = batch, size or len(batch.rows), unseen
        self.targets = int(batch.tokens.sum()) - unseen * len(batch.tokens)

    def __len__(self) -> int:
        return -(-len(self.batch.rows) // self.size)

    def __getitem__(self, place: Any) -> Any:
        cut = slice(place * self.size, (place + 1) * self.size)
        rows, kept = self.batch.rows[cut], self.batch.tokens[cut]
        if not len(rows):
            raise IndexError(place)
        own = int(kept.sum()) - self.unseen * len(kept)
        return Batch(rows, kept), own / self.targets


def choose_learning_rate(
    model: Downstream,
    rates: Sequence[float],
    train: Rows,
    validation: Rows,
    tuning: Tuning,
    progress: Progress = silent,
    *,
    work: Work | None = None,
) -> tuple[float, dict[str, float]]:
    """The rate with the least loss on public validation text after tuning on public text.

    Both sets must be public. Returns (rate, {rate: loss}); a single rate is taken untested.
    Raises ValueError without rates.
    """
    if not rates:
        raise ValueError("evaluation.learning-rates is empty: name at least one")
    if len(rates) == 1:
        return rates[0], {}
    users = {"public": validation}
    wanted = trials(rates, train, tuning)
    sums = sums_after(model, wanted, users, progress=progress, work=work)
    totals = {rate: sums[f"rate {rate}"][0] for rate in rates}
    losses = {rate: float(total[0] / total[2]) for rate, total in totals.items()}
    best = min(losses, key=lambda rate: losses[rate])
    return best, {f"{rate:g}": round(loss, 5) for rate, loss in losses.items()}


def trials(rates: Sequence[float], rows: Any, tuning: Tuning) -> list[FineTuning]:
    """The fine-tunings on public text that a learning rate is chosen by, named `rate R`."""
    return [
        FineTuning(
            f"rate {rate}", rows, replace(tuning, learning_rate=rate),
            f"learning rate {rate:g} on public text",
        )
        for rate in rates
    ]  # fmt: skip


def _copied(model: Any) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
