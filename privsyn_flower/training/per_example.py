"""Gradients of many users at once, for local training that is one plain SGD step (DP-SGD's case).

A user's delta is then minus the learning rate times the gradient of its mean loss, and the
gradients of a group of users need one pass through the model (`torch.func.vmap` of `grad`). Every
group has the same shape, whatever was written: so many users, each of batch-size rows, each padded
to sequence-length tokens; a user keeps its place in it. So the arithmetic of one user's gradient is
the same whatever the others hold, to the last bit where kernels are deterministic, as on a CPU.

Abadi et al. 2016 (arXiv 1607.00133), "Deep learning with differential privacy", Algorithm 1: one
example's gradient is clipped alone; clipping and encoding follow elsewhere, user by user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.common.arrays import F32, F64, I64
from privsyn_flower.text.models.devices import one_worker
from privsyn_flower.training.layout import Layout, LocalTraining

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
Pairs = MutableMapping[str, tuple["torch.Tensor", "torch.Tensor"]]
Rows = Sequence[tuple[Sequence[int], int]]  # ids, and how many of the first carry no loss

GROUP_TOKENS = {"cpu": 512}  # of one pass; more only leave the processor's cache
GROUP_TOKENS_ELSEWHERE = 4096
GROUP_NUMBERS = 1 << 25  # float32 numbers of all gradients of a group: 128 MiB


def one_plain_step(options: LocalTraining) -> bool:
    """Whether a user's delta is minus the learning rate times one gradient."""
    plain = options.optimizer == "sgd" and not options.momentum and not options.weight_decay
    return plain and options.max_steps == 1


def users_together(options: LocalTraining, width: int, length: int, device: str) -> int:
    """How many users' gradients (length,) are taken at once: public numbers alone say it.

    width: most tokens of a text, what it is learned from included. Below 2 there is nothing to
    gain: one user's texts fill the processor, or the memory.
    """
    if not one_plain_step(options):
        return 0
    tokens = GROUP_TOKENS.get(device.partition(":")[0], GROUP_TOKENS_ELSEWHERE)
    return min(tokens // (options.batch_size * width), GROUP_NUMBERS // length)


class GroupGradients:
    """Deltas of one plain SGD step, for groups of users at once.

    model: in evaluation, with the round's parameters in it. leaves: what is trained, in the
    layout's order. pairs: the low-rank factors that the model's hooks read (`add_factors`), by the
    name of their weight, some of them leaves. rate: of the step. shape: users of a group, texts
    of a user, tokens of a text.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layout: Layout,
        leaves: Sequence[torch.Tensor],
        pairs: Pairs,
        *,
        rate: float,
        shape: tuple[int, int, int],
    ) -> None:
        from torch.func import grad, vmap

        self._model, self._layout, self._pairs = model, layout, pairs
        self._leaves = {
            name: leaf.detach() for name, leaf in zip(layout.names, leaves, strict=True)
        }
        self._own = dict(model.named_parameters())
        self._device, self._rate, self._shape = leaves[0].device, rate, shape
        self._gradients = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def deltas(self, users: Iterable[Rows | None]) -> Iterator[F64 | None]:
        """The delta (d,) of each user, PRIVATE, in order; None for those without rows.

        Of each user the tokens of at most as many texts, and of at most as many tokens each, as
        the shape has. Raises ValueError on more; what the model itself raises depends on the shape
        alone, which is the same for any texts.
        """
        group: list[Rows | None] = []
        for rows in users:
            group.append(rows)
            if len(group) == self._shape[0]:
                yield from self._group(group)
                group = []
        if group:
            yield from self._group(group)

    def rehearse(self) -> None:
        """A group of made-up tokens; raises what that raises."""
        users, texts, length = self._shape
        list(self._group([[([0] * length, 1)] * texts] * users))

    def _group(self, users: Sequence[Rows | None]) -> Iterator[F64 | None]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        ids, weights = self._padded(users)
        inputs = [torch.from_numpy(array).to(self._device) for array in (ids, weights)]
        # The attention that is written in plain products is the one that vmap knows to batch.
        with one_worker(), sdpa_kernel(SDPBackend.MATH):
            found = self._gradients(self._leaves, *inputs)
        for at, rows in enumerate(users):
            yield self._delta(found, at) if rows else None

    def _padded(self, users: Sequence[Rows | None]) -> tuple[I64, F32]:
        """ids (users, texts, tokens), weight of each predicted token (users, texts, tokens - 1)."""
        _, most, length = self._shape
        ids = np.zeros(self._shape, dtype=np.int64)
        weights = np.zeros((*self._shape[:2], length - 1), dtype=np.float32)
        for at, rows in enumerate(users):
            for number, (row, leading) in enumerate(rows or ()):
                if number >= most or len(row) > length:
                    raise ValueError(
                        f"text {number + 1}, of {len(row)} tokens, where users have {most} texts "
                        f"of {length} tokens"
                    )
                ids[at, number, : len(row)] = row
                weights[at, number, max(0, leading - 1) : len(row) - 1] = 1
        # The mean over a user's predicted tokens; a user without any is zeros.
        return ids, weights / np.maximum(1, weights.sum(axis=(1, 2), keepdims=True))

    def _loss(self, leaves: Tensors, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """One user's loss: ids (rows, length), weights (rows, length - 1)."""
        import torch
        from torch.func import functional_call

        own = {name: leaf for name, leaf in leaves.items() if name in self._own}
        with _factors(self._pairs, leaves):
            # Padding comes after all that is looked at, so that no mask is needed.
            arguments = {"input_ids": ids, "use_cache": False}
            logits = functional_call(self._model, own, kwargs=arguments).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        return (losses * weights.flatten()).sum()

    def _delta(self, gradients: Tensors, at: int) -> F64:
        delta = np.empty(self._layout.length)
        first = 0
        for name in self._layout.names:  # one pass over memory: a delta is as long as the model
            part = gradients[name][at].reshape(-1).cpu().numpy()
            last = first + len(part)
            np.multiply(part, -self._rate, out=delta[first:last], dtype=np.float64)
            first = last
        return delta


@contextlib.contextmanager
def _factors(pairs: Pairs, leaves: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the model's low-rank factors are these leaves, where they are named."""
    from privsyn_flower.text.models.parameters import DOWN, UP

    kept = dict(pairs)
    try:
        for name, (up, down) in kept.items():
            pairs[name] = (leaves.get(name + UP, up), leaves.get(name + DOWN, down))
        yield
    finally:
        pairs.update(kept)
