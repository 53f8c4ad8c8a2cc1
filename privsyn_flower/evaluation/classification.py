"""Fine-tune a text classifier on labelled texts and measure it on users, at equal cost.

What `downstream.py` is for next tokens, this is for classes (POPri, section 5: RoBERTa-base on
OpenReview): every fine-tuning starts from the same weights, the new head included, and takes the
same number of optimiser steps of the same number of texts, whatever the set; or the same epochs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F64, I64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.downstream import (
    EVALUATION_BATCH,
    Parts,
    own_generator,
    texts_at_once,
)
from privsyn_flower.evaluation.intervals import Interval, paired_bootstrap, with_differences
from privsyn_flower.evaluation.rows import Rows
from privsyn_flower.evaluation.tuning import Batch, Tuning, batches
from privsyn_flower.text.models.batches import encode, pad_rows
from privsyn_flower.text.models.devices import one_worker, training_device


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
                f"labels = {', '.join(labels)!r}: a classifier needs at least 2 distinct classes"
            )
        self.source, self.labels, self.seed = model, tuple(labels), seed
        self.length, self.device = length, training_device(device)
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

    def packed(self, examples: Examples) -> list[list[int]]:
        """Examples as rows of numbers, the class first: for digests and files."""
        return [[one.label, *one.ids] for one in examples]

    def unpacked(self, rows: Rows) -> Examples:
        """The inverse of `packed`."""
        return [Example(list(row[1:]), row[0]) for row in rows]

    def load_spec(self) -> dict[str, Any]:
        """What another process needs to load the same model."""
        return {
            "model": os.fspath(self.source),
            "labels": list(self.labels),
            "length": self.length,
            "device": self.device,
            "seed": self.seed,
        }

    def reset(self) -> None:
        """Back to the pretrained weights and the first head."""
        self.model.load_state_dict(self._start)

    def fine_tune(
        self,
        examples: Examples,
        tuning: Tuning,
        progress: Progress = silent,
        stage: str = "fine-tuning",
        *,
        work: Path | None = None,
        choice: Examples | None = None,
    ) -> float:
        """From the first weights, train on `examples`; returns the mean training loss in nats.

        A step sees `tuning.batch_size` texts; dropout and order follow `tuning.seed`. work, choice:
        as in `Downstream.fine_tune`. Raises ValueError without examples.
        """
        from privsyn_flower.evaluation.fitting import Watch, fit

        self.reset()
        self.model.requires_grad_(True)
        score = None if choice is None else lambda: self.accuracy(choice)
        task = _Classes(self, examples, replace(tuning, texts=True))
        return fit(self.model, task, tuning, self.device, Watch(progress, stage, work, score))

    def accuracy(self, examples: Examples) -> float:
        """Share of the examples whose class is predicted."""
        truth = np.array([example.label for example in examples])
        return float((self._predict(examples) == truth).mean())

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
                logits = self.logits(self.model, [examples[i] for i in places])
                found[places] = logits.argmax(dim=-1).cpu().numpy()
        return found

    def logits(self, model: Any, batch: Examples) -> Any:
        """Logits (b, c) in float32. model: this classifier's, as a training may have wrapped it."""
        ids, mask = pad_rows([example.ids for example in batch], self._pad)
        ids, mask = ids.to(self.device), mask.to(self.device)
        return model(input_ids=ids, attention_mask=mask).logits.float()


class _Classes:
    """Classes of examples, as `fitting.Task` has it."""

    def __init__(self, own: Classifier, examples: Examples, tuning: Tuning) -> None:
        self.own, self.examples, self.tuning = own, examples, tuning

    def steps(self) -> int:
        return self.tuning.steps_of(len(self.examples))

    def epoch_steps(self) -> int:
        return self.tuning.epoch_steps(len(self.examples))

    def parts(self, start: int) -> Iterator[Sequence[Any]]:
        lengths = np.array([len(example.ids) for example in self.examples], dtype=np.int64)
        for batch in batches(lengths, self.tuning, start):
            # A text has one target, however long it is.
            of_one = replace(batch.by_length(), tokens=np.ones_like(batch.tokens))
            yield Parts(of_one, texts_at_once(self.tuning, self.own.device), 0)

    def loss(self, model: Any, part: tuple[Batch, float]) -> tuple[Any, float]:
        import torch

        examples = [self.examples[row] for row in part[0].rows.tolist()]
        targets = torch.tensor([example.label for example in examples], device=self.own.device)
        logits = self.own.logits(model, examples)
        return torch.nn.functional.cross_entropy(logits, targets), part[1]


def always(confusion: F64, label: int) -> F64:
    """Anyone's confusion counts (u, c, c) -> those of taking every text for class `label`."""
    table = np.zeros_like(confusion)
    table[:, :, label] = confusion.sum(axis=2)
    return table


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
    return with_differences(point, drawn, pairs)


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
                source, num_labels=classes, ignore_mismatched_sizes=True, dtype=torch.float32,
                trust_remote_code=False,
            )  # fmt: skip
    except Exception as error:  # the hub client raises errors of several libraries
        raise ModelUnavailableError(
            f"{key} = {source!r} could not be loaded as a classifier ({type(error).__name__}): "
            f"set {key} to a local model folder, or evaluation.task = 'next-token'"
        ) from error
