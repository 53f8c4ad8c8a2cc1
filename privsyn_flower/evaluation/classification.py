"""Fine-tune a text classifier on labelled texts and measure it on users, at equal cost.

What `downstream.py` is for next tokens, this is for classes (POPri, section 5: RoBERTa-base on
OpenReview): every fine-tuning starts from the same weights, the new head included, and takes the
same number of optimiser steps of the same number of texts, whatever the set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privsyn_flower.arrays import F64, I64
from privsyn_flower.evaluation.bootstrap import Interval, paired_bootstrap
from privsyn_flower.evaluation.downstream import (
    EVALUATION_BATCH,
    Tuning,
    fit,
    own_generator,
)
from privsyn_flower.progress import Progress, silent
from privsyn_flower.randomness import seeded
from privsyn_flower.text.models.batches import encode, pad_rows
from privsyn_flower.text.models.devices import one_worker, resolve_device


@dataclass(frozen=True)
class Example:
    """Token ids of one text and the number of its class."""

    ids: list[int]
    label: int


Examples = list[Example]


class Classifier:
    """A pretrained encoder (a folder or hub name) with a new head for `labels`, tuned repeatedly.

    labels: the public class list; class k is labels[k]. length: tokens kept of a text. seed: of
    the head's first weights. torch's global generator is left as it was. Raises ValueError for
    fewer than two classes or a repeated one, ModelUnavailableError when it cannot be loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        labels: Sequence[str],
        *,
        length: int,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        from privsyn_flower.text.models.pretrained import load_tokenizer

        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ValueError(
                f"popri.labels = {', '.join(labels)!r}: a classifier needs at least 2 distinct "
                "classes"
            )
        self.labels = tuple(labels)
        self.length, self.device = length, resolve_device(device)
        self.tokenizer = load_tokenizer(model, "models.downstream")
        self.model = _with_head(model, len(labels), seed).to(self.device)
        self._start = {
            name: value.detach().clone() for name, value in self.model.state_dict().items()
        }
        pad = self.tokenizer.pad_token_id
        self._pad = pad if pad is not None else self.tokenizer.eos_token_id or 0
        self.model.config.pad_token_id = self._pad  # decoders look for the last real token

    def encode(self, texts: Sequence[str], labels: Sequence[str]) -> Examples:
        """Texts with their class names -> examples; a text without a word or of no class is out.

        Raises ValueError for unequal numbers of texts and labels.
        """
        if len(texts) != len(labels):
            raise ValueError(f"{len(texts)} texts with {len(labels)} labels: one for each")
        numbers = {name: k for k, name in enumerate(self.labels)}
        usable = [
            (text, numbers[label])
            for text, label in zip(texts, labels, strict=True)
            if label in numbers and text.strip()
        ]
        rows = encode(self.tokenizer, [text for text, _ in usable], self.length)
        return [Example(row, k) for row, (_, k) in zip(rows, usable, strict=True) if row]

    def reset(self) -> None:
        """Back to the pretrained weights and the first head."""
        self.model.load_state_dict(self._start)

    def fine_tune(
        self,
        examples: Examples,
        tuning: Tuning,
        progress: Progress = silent,
        stage: str = "fine-tuning",
    ) -> float:
        """From the first weights, train on `examples`; returns the mean training loss in nats.

        A step sees `tuning.batch_size` texts; dropout and order follow `tuning.seed`. Raises
        ValueError without examples.
        """
        self.reset()
        losses = (self._loss(batch) for batch in epochs(examples, tuning))
        return fit(self.model, losses, tuning, progress, stage)

    def _loss(self, batch: Examples) -> Any:
        import torch

        targets = torch.tensor([example.label for example in batch], device=self.device)
        return torch.nn.functional.cross_entropy(self._logits(batch), targets)

    def user_sums(self, users: Mapping[str, Examples]) -> F64:
        """User -> examples (PRIVATE), in order -> (u, c, c): texts of class i taken for class j.

        The confusion counts of each user; zeros for a user without examples. `scores` reads them.
        """
        table = np.zeros((len(users), len(self.labels), len(self.labels)))
        owner = np.repeat(np.arange(len(users)), [len(own) for own in users.values()])
        every = [example for own in users.values() for example in own]
        truth = np.array([example.label for example in every], dtype=np.int64)
        np.add.at(table, (owner, truth, self._predict(every)), 1.0)
        return table

    def _predict(self, examples: Examples) -> I64:
        """The likeliest class of each example, in the given order."""
        import torch

        found = np.zeros(len(examples), dtype=np.int64)
        order = sorted(range(len(examples)), key=lambda i: len(examples[i].ids))
        self.model.eval()
        with one_worker(), torch.inference_mode():
            for start in range(0, len(order), EVALUATION_BATCH):
                places = order[start : start + EVALUATION_BATCH]
                logits = self._logits([examples[i] for i in places])
                found[places] = logits.argmax(dim=-1).cpu().numpy()
        return found

    def _logits(self, batch: Examples) -> Any:
        """Logits (b, c) in float32."""
        ids, mask = pad_rows([example.ids for example in batch], self._pad)
        ids, mask = ids.to(self.device), mask.to(self.device)
        return self.model(input_ids=ids, attention_mask=mask).logits.float()


def epochs(examples: Examples, tuning: Tuning) -> list[Examples]:
    """`steps` batches of exactly `batch_size` examples; every example once before one again."""
    if not examples:
        raise ValueError("no labelled text to train on: the set is empty")
    rng = np.random.default_rng(tuning.seed)
    wanted = tuning.steps * tuning.batch_size
    passes = -(-wanted // len(examples))
    order = np.concatenate([rng.permutation(len(examples)) for _ in range(passes)])[:wanted]
    cut = order.reshape(tuning.steps, tuning.batch_size)
    return [[examples[i] for i in row] for row in cut]


def scores(
    methods: Mapping[str, F64],
    pairs: Sequence[tuple[str, str]],
    seed: int,
    *,
    resamples: int = 2000,
) -> dict[str, dict[str, Any]]:
    """Per method the users' confusion counts (u, c, c), of the same users in the same order ->
    accuracy and macro-F1 with percentile intervals over users, and paired differences.

    {"accuracy": {"value": {name: Interval}, "difference": {"b-a": Interval}}, "macro_f1": the
    same}. Macro-F1 is the mean over the classes that occur among the resampled users' texts or
    the predictions. Raises ValueError as `paired_bootstrap` does.
    """
    totals = {name: right(own) for name, own in methods.items()}
    accuracy = paired_bootstrap(totals, pairs, seeded(seed, "accuracy"), resamples=resamples)
    return {"accuracy": accuracy, "macro_f1": _f1_intervals(methods, pairs, seed, resamples)}


def right(confusion: F64) -> F64:
    """Confusion counts (u, c, c) -> (u, 2): texts of each user taken for what they are, and all."""
    return np.stack([np.trace(confusion, axis1=1, axis2=2), confusion.sum(axis=(1, 2))], axis=1)


def _f1_intervals(
    methods: Mapping[str, F64], pairs: Sequence[tuple[str, str]], seed: int, resamples: int
) -> dict[str, dict[str, Interval]]:
    """As `paired_bootstrap`, of a statistic that is no ratio of sums."""
    users = len(next(iter(methods.values())))
    rng = seeded(seed, "macro-F1")
    weights = rng.multinomial(users, np.full(users, 1 / users), size=resamples)
    point = {name: float(macro_f1(own.sum(axis=0))) for name, own in methods.items()}
    drawn = {name: macro_f1(np.tensordot(weights, own, axes=1)) for name, own in methods.items()}

    def interval(value: float, samples: F64) -> Interval:
        low, high = np.percentile(samples, [2.5, 97.5])
        return Interval(value, float(low), float(high))

    return {
        "value": {name: interval(point[name], drawn[name]) for name in methods},
        "difference": {
            f"{one}-{two}": interval(point[one] - point[two], drawn[one] - drawn[two])
            for one, two in pairs
        },
    }


def macro_f1(confusion: F64) -> F64:
    """Confusion counts (..., c, c), true class first -> (...,) mean F1 of the classes that occur.

    A class that is neither true nor predicted anywhere does not count; 0 when none occurs.
    """
    right = np.diagonal(confusion, axis1=-2, axis2=-1)
    either = confusion.sum(axis=-1) + confusion.sum(axis=-2)  # 2 TP + FP + FN
    occurs = either > 0
    each = np.divide(2 * right, either, out=np.zeros_like(either), where=occurs)
    mean: F64 = each.sum(axis=-1) / np.maximum(occurs.sum(axis=-1), 1)
    return mean


def _with_head(model: str | os.PathLike[str], classes: int, seed: int) -> Any:
    """The pretrained encoder in float32; its head of `classes` outputs is drawn from `seed`."""
    import torch
    import transformers

    from privsyn_flower.text.models.pretrained import ModelUnavailableError, local_folder

    key = "models.downstream"
    source = str(local_folder(model, key) or model)
    try:
        with own_generator(seed):
            return transformers.AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=classes, ignore_mismatched_sizes=True, dtype=torch.float32
            )
    except Exception as error:  # the hub client raises errors of several libraries
        raise ModelUnavailableError(
            f"{key} = {source!r} could not be loaded as a classifier ({type(error).__name__}): "
            f"set {key} to a local model folder, or evaluation.task = 'next-token'"
        ) from error
