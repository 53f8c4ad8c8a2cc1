"""All parties of one secure sum in this process, stage by stage, so that tests can step in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privsyn_flower.secagg import Code, Cohort, SecaggError, Session, node
from privsyn_flower.secagg.cohort import Member, pack_list
from privsyn_flower.secagg.server import SecureSum

STAGES = ("advertise", "share", "mask", "confirm", "unmask")
IDENTITIES = [Ed25519PrivateKey.generate() for _ in range(128)]


def a_session(**changes: Any) -> Session:
    values: dict[str, Any] = {"run": "run", "query": "sum", "round": 1, "attempt": 1, "length": 5}
    return Session(**{**values, "bits": 16, "min_weight": 1.0, **changes})


class Rig:
    """Nodes 0..n-1 (ids 100, 101, ...) and a server; dies: node -> first stage it is silent in."""

    def __init__(
        self,
        vectors: Any,
        session: Session | None = None,
        weights: Iterable[int] | None = None,
        dies: Mapping[int, str] | None = None,
    ) -> None:
        self.vectors = np.asarray(vectors)
        self.n = len(self.vectors)
        self.session = session or a_session(length=self.vectors.shape[1])
        self.weights = list(weights or [1] * self.n)
        self.dies = dict(dies or {})
        self.ids = [100 + i for i in range(self.n)]
        self.states: list[dict[str, Any]] = [{} for _ in range(self.n)]
        self.server = SecureSum(self.session)
        self.marks: set[tuple[int, str, bytes]] = set()
        self.sent: dict[str, dict[int, bytes]] = {}

    # --- single nodes -----------------------------------------------------------------------

    def once(self, i: int, stage: str, session: Session) -> None:
        mark = (i, stage, session.digest)
        if mark in self.marks:
            raise SecaggError(Code.REPEATED, stage)
        self.marks.add(mark)

    def advertise(self, i: int, session: Session | None = None) -> Member:
        return node.advertise(
            self.states[i], session or self.session, self.ids[i], self.weights[i], IDENTITIES[i]
        )

    def share(self, i: int, cohort: bytes, digest: bytes | None = None) -> bytes:
        return node.share(
            self.states[i],
            digest or self.session.digest,
            cohort,
            lambda cohort: None,
            lambda stage, session: self.once(i, stage, session),
        )

    def mask(self, i: int, listed: bytes, sealed: bytes) -> bytes:
        def vector(session: Session, weight: int) -> Any:
            self.once(i, "mask", session)
            return self.vectors[i]

        return node.mask(self.states[i], self.session.digest, listed, sealed, vector)

    def confirm(self, i: int, listed: bytes) -> bytes:
        return node.confirm(
            self.states[i],
            self.session.digest,
            listed,
            IDENTITIES[i],
            lambda stage, session: self.once(i, stage, session),
        )

    def unmask(self, i: int, signers: bytes, signatures: bytes) -> bytes:
        return node.unmask(
            self.states[i],
            self.session.digest,
            signers,
            signatures,
            lambda stage, session: self.once(i, stage, session),
        )

    # --- whole stages -----------------------------------------------------------------------

    def alive(self, stage: str) -> list[int]:
        """Nodes that take part in a stage."""
        last = STAGES.index(stage)
        return [i for i in range(self.n) if STAGES.index(self.dies.get(i, stage)) > last] + [
            i for i in range(self.n) if i not in self.dies
        ]

    def to_cohort(self) -> bytes:
        self.adverts = {self.ids[i]: self.advertise(i) for i in self.alive("advertise")}
        self.cohort_data = self.server.gather(self.adverts)
        self.cohort: Cohort = self.server.cohort
        return self.cohort_data

    def to_relay(self) -> dict[int, tuple[bytes, bytes]]:
        cohort = self.to_cohort()
        self.dealt = {self.ids[i]: self.share(i, cohort) for i in self.alive("share")}
        self.relayed = self.server.relay(self.dealt)
        return self.relayed

    def to_survivors(self) -> bytes:
        self.to_relay()
        self.masked = {
            self.ids[i]: self.mask(i, *self.relayed[self.ids[i]]) for i in self.alive("mask")
        }
        return self.server.survive(self.masked)

    def to_proof(self) -> tuple[bytes, bytes]:
        survivors = self.to_survivors()
        self.signed = {self.ids[i]: self.confirm(i, survivors) for i in self.alive("confirm")}
        return self.server.confirm(self.signed)

    def total(self) -> Any:
        """The sum mod 2^bits (length,)."""
        proof = self.to_proof()
        self.given = {self.ids[i]: self.unmask(i, *proof) for i in self.alive("unmask")}
        return self.server.total(self.given)

    def expected(self) -> Any:
        """The sum of those whose masked vector arrives, mod 2^bits."""
        alive = self.alive("mask")
        residues = self.vectors[alive].astype(np.int64).sum(axis=0)
        return residues.astype(np.uint64) & np.uint64(2**self.session.bits - 1)

    def listing(self, *nodes: int) -> bytes:
        """The list of these nodes among the cohort's members."""
        ids = {self.ids[i] for i in nodes}
        return pack_list([member.id in ids for member in self.cohort.members])
