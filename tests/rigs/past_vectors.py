"""A node that answers with rows of a matrix, and what its users said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps.answers import Kind, contribution
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.encoding.dense import dense_numbers
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import (
    Noise,
    encoded_length,
    matrix_of,
    matrix_options,
)
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError

COEFFICIENTS, ROUNDS, APART, MOST = (64, 32, 16), 12, 2, 4
MATRIX = IntegerMatrix(COEFFICIENTS, Participation(ROUNDS, APART, MOST))
LENGTH, WEIGHT, Z = 5, 6, 3.0
POLICY = Policy(
    aggregation=("plain",),
    queries=("update", "evaluation"),
    min_noise_multiplier=0.1,
    min_surviving_weight=1.0,
    lifetime_epsilon=1e6,
    max_past_vectors=2,
)


def question(matrix: IntegerMatrix = MATRIX, /, **options: Any) -> Query:
    pattern = matrix.participation
    given = {
        "min-separation": pattern.min_separation,
        "max-participations": pattern.max_participations,
        **matrix_options(matrix),
        **options,
    }
    return Query.update(
        np.ones(4, dtype=np.uint8),
        length=LENGTH,
        bound=1.0,
        model="m",
        rotation=bytes(32),
        options=given,
    )


def noise(query: Query, z: float = Z) -> Noise:
    matrix = matrix_of(query)
    rows = (matrix.unit, matrix.row_norm) if matrix else (1, 1.0)
    plan = dense_numbers(1.0, LENGTH, z, WEIGHT, WEIGHT, rows=rows)
    return Noise(z, plan.sensitivity, plan.bits, WEIGHT, scale=plan.scale)


@dataclass
class Rig:
    """One node whose users say random integers, and what they said: round -> user -> vector."""

    folder: Path
    policy: Policy | None = POLICY
    users: list[str] = field(default_factory=lambda: ["ann", "bob"])
    said: dict[int, dict[str, Any]] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None  # called while vectors are made

    @property
    def node(self) -> Node:
        return Node(
            facts=Hello(WEIGHT, 0, deployed=self.policy is not None),
            cache=self.folder / "node",
            embedder="",
            device="cpu",
            policy=self.policy,
            noise_seed=None,
            load=lambda: {name: [] for name in self.users},
        )

    def _vectors(self, query: Any, users: Any, participants: Any, plan: Any, node: Any) -> Any:
        self.before()
        rng = np.random.default_rng()
        taking = [u for u, asked in zip(users, participants.eligible, strict=True) if asked]
        size = encoded_length(query)
        mine = {user: rng.integers(-99, 100, size=size) for user in taking}
        assert participants.round not in self.said  # nobody's vector is made twice
        self.said[participants.round] = mine
        return sum(mine.values(), start=np.zeros(size, dtype=np.int64))

    def ask(self, rnd: int, attempt: int = 1, query: Query | None = None, **changes: Any) -> Any:
        """The node's integers, without noise; as a fresh process would."""
        query = query or question()
        run, kind = changes.pop("run", "r"), Kind(lambda query, node: None, self._vectors)
        ticket = Ticket(run, query.kind, rnd, attempt)
        asked = replace(noise(query), **changes)
        answers._check(query, ticket, asked, self.node, kind, "plain", 1.0)
        return contribution(query, ticket, asked, self.node, kind)

    def total(self, rnd: int) -> Any:
        zeros = np.zeros(encoded_length(question()), dtype=np.int64)
        return sum(self.said.get(rnd, {}).values(), start=zeros)

    def row(self, rnd: int, rounds: Any = range(ROUNDS + 1)) -> Any:
        """Of C X, X without the vectors of other rounds."""
        return sum(
            a * self.total(rnd - j)
            for j, a in enumerate(COEFFICIENTS)
            if rnd - j >= 1 and rnd - j in rounds
        )

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "node" / "past").glob("*"))

    def token(self, rnd: int) -> str:
        with self.node.records.file.transaction() as database:
            return str(
                database.execute("SELECT token FROM vectors WHERE round = ?", (rnd,)).fetchone()[0]
            )

    def spent(self, user: str) -> list[float]:
        with self.node.records.file.transaction() as database:
            ids = self.node.records.file.ids([user])
            row = database.execute("SELECT gaussian, distance FROM users WHERE id = ?", ids)
            return list(row.fetchone() or (0.0, 0.0))

    def log(self) -> str:
        return (self.folder / "node" / "node.log").read_text()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Nodes draw no noise; what they ask of it is in the list."""
    found: list[tuple[Any, ...]] = []

    def nothing(length: int, *numbers: Any) -> Any:
        found.append(numbers)
        return np.zeros(length, dtype=np.int64)

    monkeypatch.setattr(answers, "node_noise_integers", nothing)
    return found


@pytest.fixture(params=[POLICY, None], ids=["device", "simulation"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, drawn: Any) -> Rig:
    return Rig(tmp_path, request.param)


@pytest.fixture
def device(tmp_path: Path, drawn: Any) -> Rig:
    return Rig(tmp_path)


def refused(call: Callable[[], Any], word: str, code: Refusal = Refusal.POLICY) -> None:
    with pytest.raises(WireError, match=word) as caught:
        call()
    assert caught.value.code is code
