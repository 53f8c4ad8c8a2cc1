"""A question that is asked once, beside the rounds (`Session.ask`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from privsyn_flower.common.arrays import F64
from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies.engine.rounds import Method


class OneQuestion(Method):
    """One question, for `Session.ask`. names: what its coordinates are about, in their order.

    embedded: its rows are embeddings of the names, which another machine may round another way: a
    release that is paid for is of the same question all the same.
    released, noise_std: the noisy sum, once it was asked.
    """

    rounds = 1

    def __init__(self, query: Query, names: Sequence[str], *, embedded: bool = False) -> None:
        self.query, self.names, self.embedded = query, list(names), embedded
        self.released: list[float] = []
        self.noise_std = 0.0

    def digest(self) -> str:
        """What the question is about; another one must not be answered from a stored release."""
        state = hashlib.sha256(repr((self.names, self.query.model, self.query.bound)).encode())
        state.update(repr(sorted(self.query.options.items())).encode())
        arrays = self.query.extra.values() if self.embedded else self.query.arrays()
        for array in arrays:
            state.update(hashlib.sha256(array.tobytes()).digest())
        return state.hexdigest()

    def ask(self, rnd: int) -> Query:
        """The question."""
        return self.query

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """Keep the noisy sums; whoever asked makes figures of them."""
        self.released, self.noise_std = [float(value) for value in released], noise_std
        return {"released": self.released}

    def state(self) -> dict[str, Any]:
        """JSON state."""
        return {"released": self.released, "noise_std": self.noise_std}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.released, self.noise_std = list(state["released"]), float(state["noise_std"])
