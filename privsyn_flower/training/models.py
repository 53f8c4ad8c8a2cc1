"""A language model or classifier that learns one user's texts at a time and forgets them again.

One base model stays in memory, the one that evaluation uses too. The round's public parameters
are laid over it; every user's training starts from them in place, and afterwards the base is
exactly what it was. Dropout stays off: nothing here draws from a global generator.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privsyn_flower.common.arrays import F64, Ints
from privsyn_flower.common.randomness import seeded
from privsyn_flower.data.values import label_of
from privsyn_flower.text.conditions import Pair
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.devices import one_worker
from privsyn_flower.text.models.lm_metrics import BATCH_TOKENS, Scorer, load_scorer, width_of
from privsyn_flower.text.models.parameters import DOWN, UP
from privsyn_flower.training.layout import Layout, LocalTraining
from privsyn_flower.training.low_rank import add_factors
from privsyn_flower.training.per_example import (
    GroupGradients,
    Pairs,
    Rows,
    one_plain_step,
    users_together,
)

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, NDArray[Any]]

MOST_TOKENS = 1 << 24  # of one user; beyond it texts are left out
TOKEN_CHARACTERS = 64  # of a text's tokens on average; what is beyond them is not looked at


class CausalLM:
    """A Hugging Face causal LM: all of it, chosen layers, or low-rank factors. See `load_model`."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._model = scorer.model
        self._named: dict[str, torch.nn.Parameter] = dict(scorer.model.named_parameters())
        self._rehearsed: set[tuple[Any, ...]] = set()

    @contextlib.contextmanager
    def load(self, parameters: Arrays, trained: str = "*") -> Iterator[LoadedLM]:
        """The model with these parameters (checked before) on it, and the base exactly after.

        parameters: arrays by the names of the base's parameters replace them; pairs NAME.up and
        NAME.down are added as a product, behind linear layers only. trained: patterns of the
        names of the arrays that are trained. Raises ValueError when none of them is.
        """
        layout = Layout.of(parameters, trained)
        replaced = {name: array for name, array in parameters.items() if name in self._named}
        tensors = {name: self._tensor(array) for name, array in parameters.items()}
        leaves = {
            name: self._named[name] if name in replaced else tensors[name].clone()
            for name in parameters
        }
        pairs = {
            name.removesuffix(UP): (leaves[name], leaves[name.removesuffix(UP) + DOWN])
            for name in parameters
            if name.endswith(UP) and name not in replaced
        }
        with self._scorer.with_parameters(replaced), add_factors(self._model, pairs):
            try:
                for name in layout.names:
                    leaves[name].requires_grad_(True)
                yield LoadedLM(
                    self._scorer,
                    layout,
                    [leaves[name] for name in layout.names],
                    [tensors[name] for name in layout.names],
                    pairs,
                    self._rehearsed,
                )
            finally:
                for name in layout.names:
                    leaves[name].requires_grad_(False)
                    leaves[name].grad = None

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """A float32 tensor on the model's device that is never written to."""
        import torch

        values = np.ascontiguousarray(array, dtype=np.float32)
        if not values.flags.writeable:  # else torch warns
            values = values.copy()
        return torch.from_numpy(values).to(self._scorer.device)


class LoadedLM:
    """A causal LM at the round's parameters. Made by `CausalLM.load`.

    leaves: the tensors that are trained, in the layout's order; start: their values before. pairs:
    the low-rank factors by the name of their weight.
    """

    def __init__(
        self,
        scorer: Scorer,
        layout: Layout,
        leaves: list[torch.Tensor],
        start: list[torch.Tensor],
        pairs: Pairs,
        rehearsed: set[tuple[Any, ...]],
    ) -> None:
        self.layout = layout
        self._scorer, self._leaves, self._start, self._pairs = scorer, leaves, start, pairs
        self._rehearsed = rehearsed

    def train(
        self,
        texts: Sequence[str],
        options: LocalTraining,
        rng: np.random.Generator,
        conditions: Sequence[str] | None = None,
        max_source: int = 0,
    ) -> F64 | None:
        """The change (d,) that training on one user's texts makes, PRIVATE; None without text.

        conditions: what each text is learned from, of at most max_source tokens; only the text's
        own tokens have a loss. None: texts by themselves. It depends on these arguments and the
        parameters alone: every call starts from the round's parameters.
        """
        rows = self.rows(texts, options, rng, conditions, max_source)
        return self._fit(rows, options, rng, max_source) if rows else None

    def rows(
        self,
        texts: Sequence[str],
        options: LocalTraining,
        rng: np.random.Generator,
        conditions: Sequence[str] | None = None,
        max_source: int = 0,
    ) -> Rows:
        """What `train` learns from: a text is tokenised once and cut to options.sequence_length.

        What is read of a user's texts is bounded by the options: at random as many texts as the
        steps take, the beginning of each.
        """
        length, most = options.sequence_length, options.max_steps * options.batch_size
        numbers = {name: number for number, name in enumerate(self._scorer.classes)}
        if numbers:  # a text without a word, or of no class in the list, takes nobody's place
            texts = [text for text in texts if label_of(text) in numbers and text.strip()]
        chosen: Sequence[int] = range(len(texts))
        if len(texts) > most:
            chosen = rng.choice(len(texts), size=most, replace=False).tolist()
        read = [texts[i][: length * TOKEN_CHARACTERS] for i in chosen]
        if numbers:
            classes = [numbers[label_of(texts[i])] for i in chosen]
            return self._classed(read, classes, length)
        if conditions is None:
            ends = options.special_tokens
            plain = self._scorer.encode(
                read, max_tokens=MOST_TOKENS, length=length, special_tokens=ends
            )
            return [(row, 1) for row in plain]
        told = [conditions[i][: max_source * TOKEN_CHARACTERS] for i in chosen]
        return self._paired(told, read, length, max_source)

    def group(self, options: LocalTraining, max_source: int = 0) -> GroupGradients | None:
        """What turns many users' `rows` into their deltas at once; None: they are trained alone."""
        width, device = max_source + options.sequence_length, self._scorer.device
        users = users_together(options, width, self.layout.length, device)
        if users < 2 or self._scorer.encodes or self._scorer.classes:
            return None
        self._reset()
        return GroupGradients(
            self._scorer.model,
            self.layout,
            self._leaves,
            self._pairs,
            rate=options.learning_rate,
            shape=(users, options.batch_size, width),
        )

    def _classed(self, texts: Sequence[str], classes: Sequence[int], length: int) -> Rows:
        """Rows of one user's texts, each with the number of its class at the end."""
        rows: list[tuple[Sequence[int], int]] = []
        for text, number in zip(texts[: MOST_TOKENS // length], classes, strict=False):
            own = self._scorer.encode([text], max_tokens=length, length=length)
            rows += [([*ids, number], len(ids)) for ids in own]
        return rows

    def _paired(
        self, conditions: Sequence[str], texts: Sequence[str], length: int, max_source: int
    ) -> Rows:
        """Rows of one user's pairs; a text without tokens has none."""
        pairs = [Pair(*own) for own in zip(conditions, texts, strict=True)]
        pairs = pairs[: MOST_TOKENS // (length + max_source)]
        encoded = self._scorer.encode_pairs(pairs, length=length, max_source=max_source)
        rows = [(ids, leading) for ids, leading in encoded if len(ids) > leading + 1]  # and its end
        for ids, _ in rows:
            self._scorer.check(ids)
        return rows

    def rehearse(self, options: LocalTraining, max_source: int = 0) -> None:
        """One step on the largest batch, of made-up tokens; raises what that raises.

        So that a question which needs too much memory fails for every text, or for none. What
        went well once in this process is not tried again.
        """
        width = max_source + options.sequence_length + bool(self._scorer.classes)
        size = (width, replace(options, seed=0), self.layout.digest())
        if size in self._rehearsed:
            return
        group = self.group(options, max_source)
        if group is not None:
            group.rehearse()
        else:
            count = min(options.batch_size, _together(width))
            once = replace(options, epochs=1, max_steps=1)
            row = ([0] * width, max(1, max_source))
            self._fit([row] * count, once, seeded(0, "rehearsal"), max_source)
        self._rehearsed.add(size)

    def _fit(
        self, rows: Rows, options: LocalTraining, rng: np.random.Generator, max_source: int = 0
    ) -> F64:
        """Local SGD or AdamW from the round's parameters (McMahan et al. 2018, UserUpdate).

        The time does not depend on the length of conditions: a server that chose long words for one
        topic would read from it whose texts are near.
        """
        import torch

        self._reset()
        optimizer = _optimizer(self._leaves, options)
        with one_worker(), torch.enable_grad():
            for batch in batches(len(rows), options, rng):
                optimizer.zero_grad()
                self._backward([rows[i] for i in batch], max_source)
                if one_plain_step(options):  # without the rounding of parameters plus a change
                    return self._flat(-options.learning_rate)
                optimizer.step()
        return self._delta()

    def _reset(self) -> None:
        import torch

        with torch.no_grad():
            for leaf, start in zip(self._leaves, self._start, strict=True):
                leaf.copy_(start)

    def _flat(self, factor: float) -> F64:
        """factor times the gradient (d,); zeros for what the loss does not depend on."""
        gradients = {
            name: np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.cpu().numpy()
            for name, leaf in zip(self.layout.names, self._leaves, strict=True)
        }
        flat = self.layout.flatten(gradients)
        flat *= factor
        return flat

    def _backward(self, rows: Rows, max_source: int) -> None:
        """Gradient of the mean loss over a batch's predicted tokens, in parts that fit."""
        together = _together(width_of(rows, max_source))
        tokens = _predicted(rows)
        for first in range(0, len(rows), together):
            part = rows[first : first + together]
            loss = self._scorer.loss(part, max_source)
            if len(part) < len(rows):
                loss = loss * (_predicted(part) / tokens)
            loss.backward()  # type: ignore[no-untyped-call]

    def _delta(self) -> F64:
        import torch

        delta = torch.empty(self.layout.length, dtype=torch.float64)
        first = 0
        for leaf, start in zip(self._leaves, self._start, strict=True):
            part = delta[first : first + start.numel()]
            part.copy_(leaf.detach().reshape(-1))
            part.sub_(start.reshape(-1).to("cpu"))
            first += start.numel()
        found: F64 = delta.numpy()
        return found


def batches(count: int, options: LocalTraining, rng: np.random.Generator) -> Iterator[Ints]:
    """Row numbers of each step: every epoch in an order of its own, the last batch maybe small."""
    steps = 0
    for _ in range(options.epochs):
        order = rng.permutation(count)
        for first in range(0, count, options.batch_size):
            if steps == options.max_steps:
                return
            steps += 1
            yield order[first : first + options.batch_size]


def load_model(folder: Path, device: str) -> CausalLM:
    """The model of a folder; the last one stays loaded for as long as its files do not change.

    It shares its weights with the scorer of the same folder. Raises ModelUnavailableError.
    """
    return _load(folder, folder_fingerprint(folder), device)


@functools.lru_cache(maxsize=1)
def _load(folder: Path, _fingerprint: str, device: str) -> CausalLM:
    return CausalLM(load_scorer(folder, device))


def _predicted(rows: Rows) -> int:
    """Tokens of these rows that have a loss."""
    return sum(len(row) - leading for row, leading in rows)


def _together(width: int) -> int:
    """Rows of this many tokens that go through the model at once."""
    return max(1, BATCH_TOKENS // width)


def _optimizer(leaves: list[torch.Tensor], options: LocalTraining) -> torch.optim.Optimizer:
    import torch

    rate, decay = options.learning_rate, options.weight_decay
    if options.optimizer == "adamw":
        return torch.optim.AdamW(leaves, lr=rate, weight_decay=decay)
    return torch.optim.SGD(leaves, lr=rate, momentum=options.momentum, weight_decay=decay)
