"""Muon for the hidden matrices of a small model, AdamW for everything else.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) replaces a matrix's momentum
by the nearest semi-orthogonal matrix, found by five Newton-Schulz steps. On the tiny models here
it needs about half the tokens of AdamW. torch.optim.Muon runs those steps in bfloat16, which a
CPU without AVX-512 does a hundred times slower than float32; so these are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
DECAY = 0.05


class TinyOptimizer:
    """Muon and AdamW behind one `step(factor)`; learning rates are multiplied by `factor`."""

    def __init__(self, model: torch.nn.Module, *, learning_rate: float, muon_rate: float) -> None:
        hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layer" in f".{n}"]
        known = {id(p) for p in hidden}
        rest = [p for p in model.parameters() if id(p) not in known]
        self._hidden = hidden
        self._momentum = [torch.zeros_like(p) for p in hidden]
        self._adam = torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._rate, self._muon_rate = learning_rate, muon_rate

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update from the gradients, which are cleared."""
        self._adam.param_groups[0]["lr"] = self._rate * factor
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        rate = self._muon_rate * factor
        for parameter, momentum in zip(self._hidden, self._momentum, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalise(gradient.lerp(momentum, MOMENTUM))
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - rate * DECAY).add_(update, alpha=-rate * scale)
            parameter.grad = None


def orthogonalise(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """(a, b) -> about U V^T of its singular value decomposition, by Newton-Schulz steps."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: torch.Tensor = x.T if tall else x
    return result


def clip_gradients(parameters: Sequence[Any], bound: float = 1.0) -> None:
    """Scale all gradients jointly to an L2 norm of at most `bound`."""
    torch.nn.utils.clip_grad_norm_(parameters, bound)


def linear_schedule(done: float, warm_up: float, decay_from: float) -> float:
    """Factor of the learning rate at a share `done` in [0, 1] of the training.

    Rises linearly to 1 at `warm_up`, stays, and falls linearly from `decay_from` to 0 at 1.
    """
    rise = 1.0 if warm_up <= 0 else min(1.0, done / warm_up)
    return rise * min(1.0, max(0.0, (1.0 - done) / max(1e-9, 1.0 - decay_from)))
