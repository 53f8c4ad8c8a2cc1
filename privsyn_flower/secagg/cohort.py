"""One secure sum: its public numbers, its members, and the conditions that all of them check."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cached_property, lru_cache

import numpy as np

from privsyn_flower.secagg import keys
from privsyn_flower.secagg.graph import Graph, fewest, neighbourhoods, plan, ring

LARGEST_LENGTH = 1 << 28  # coordinates of one sum
LARGEST_COHORT = 1 << 16
LEAST_NODES = 3  # of a sum: with two, each knows the other's vector

_RECORD = struct.Struct("<QQ32s32s32s64s")  # a member's fields, in their order


class Code(StrEnum):
    """Why a node takes no further part; all that leaves it. None depends on a user's data."""

    MALFORMED = "secagg-malformed"
    SESSION = "secagg-unknown-session"
    REPEATED = "secagg-repeated"
    COHORT = "secagg-cohort-too-small"
    PEER = "secagg-unknown-peer"
    SIGNATURE = "secagg-bad-signature"
    LIST = "secagg-inconsistent-list"
    SURVIVORS = "secagg-too-few-survivors"
    SEALED = "secagg-bad-share"
    SETUP = "secagg-setup"


class SecaggError(ValueError):
    """The protocol was left; `code` is what may be told to the other side."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{code.value}: {text}")
        self.code = code


@dataclass(frozen=True)
class Session:
    """One secure sum of integer vectors (length,) mod 2^bits; all of it is public.

    (run, query, round, attempt) name it. min_weight (W_min) and colluding are weights in users:
    nothing is unmasked unless the survivors' weight minus `colluding` reaches W_min. context: a
    digest of whatever else the sum is about (the application's question), bound to every key.
    """

    run: str
    query: str
    round: int
    attempt: int
    length: int
    bits: int
    min_weight: float
    colluding: float = 0.0
    context: str = ""

    def __post_init__(self) -> None:
        """Raises SecaggError(MALFORMED) on numbers that no sum can have."""
        texts = (self.run, self.query, self.context)
        whole = (self.round, self.attempt, self.length, self.bits)
        numbers = (self.min_weight, self.colluding)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int) and not isinstance(number, bool) for number in whole
        ):
            raise SecaggError(Code.MALFORMED, "a session's fields have other types")
        if not all(isinstance(n, int | float) and 0 <= n < math.inf for n in numbers):
            raise SecaggError(Code.MALFORMED, "min_weight and colluding must be finite and >= 0")
        if not (1 <= self.length <= LARGEST_LENGTH and self.bits in range(8, 57, 8)):
            raise SecaggError(
                Code.MALFORMED,
                f"length = {self.length} must be 1..{LARGEST_LENGTH} and bits = {self.bits} one of "
                "8, 16, ... 56",
            )
        if self.round < 0 or self.attempt < 1:
            raise SecaggError(Code.MALFORMED, f"round {self.round}, attempt {self.attempt}")

    @property
    def words(self) -> int:
        """Bytes of one coordinate on the wire."""
        return self.bits // 8

    def to_json(self) -> str:
        """Canonical text: the same bytes on every party."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Session:
        """The inverse of `to_json`. Raises SecaggError(MALFORMED)."""
        try:
            values = json.loads(text)
            if set(values) != {item.name for item in fields(cls)}:
                raise ValueError("other fields")
        except (ValueError, TypeError):
            raise SecaggError(Code.MALFORMED, "the session's description is unreadable") from None
        return cls(**values)

    @cached_property
    def digest(self) -> bytes:
        """What every key of this sum is bound to."""
        return keys.digest(b"session", self.to_json().encode())


@dataclass(frozen=True)
class Member:
    """One node's public part: Flower's node id, weight in users, identity key (Ed25519), the
    round's two X25519 keys, and the identity's signature under all of it."""

    id: int
    weight: int
    identity: bytes
    cipher: bytes
    mask: bytes
    signature: bytes = bytes(64)

    def signed_text(self, session: Session) -> bytes:
        """What the signature covers."""
        facts = self.id.to_bytes(8, "little") + self.weight.to_bytes(8, "little")
        return keys.digest(b"member", session.digest, facts, self.identity, self.cipher, self.mask)

    def encode(self) -> bytes:
        """176 bytes."""
        parts = (self.identity, self.cipher, self.mask, self.signature)
        return _RECORD.pack(self.id, self.weight, *parts)


@dataclass(frozen=True)
class Cohort:
    """The members of one sum in ascending order of id, and what follows from them."""

    session: Session
    members: tuple[Member, ...]

    @classmethod
    def of(cls, session: Session, members: Sequence[Member]) -> Cohort:
        """Checked: distinct ids and keys, weights from 1 up, enough nodes and weight."""
        cohort = cls(session, tuple(sorted(members, key=lambda member: member.id)))
        if len(cohort.members) < LEAST_NODES:
            raise SecaggError(
                Code.COHORT,
                f"{len(cohort.members)} nodes: secure aggregation needs at least {LEAST_NODES}",
            )
        for values in ("id", "identity", "cipher", "mask"):
            if len({getattr(member, values) for member in members}) != len(members):
                raise SecaggError(Code.PEER, f"two members share one {values}")
        if any(member.weight < 1 for member in members):
            raise SecaggError(Code.PEER, "a member's weight is below 1")
        try:
            cohort.graph  # noqa: B018 - computed once, here, so that it can refuse
        except ValueError as error:
            raise SecaggError(Code.COHORT, str(error)) from None
        return cohort

    @classmethod
    def decode(cls, session: Session, data: bytes) -> Cohort:
        """The inverse of `encode`, checked. Raises SecaggError."""
        return _decoded(session, data)

    @classmethod
    def _decode(cls, session: Session, data: bytes) -> Cohort:
        if len(data) % _RECORD.size or len(data) > _RECORD.size * LARGEST_COHORT:
            raise SecaggError(Code.MALFORMED, f"a cohort of {len(data)} bytes")
        members = [
            cls.decode_member(data[start : start + _RECORD.size])
            for start in range(0, len(data), _RECORD.size)
        ]
        if [member.id for member in members] != sorted(member.id for member in members):
            raise SecaggError(Code.MALFORMED, "the members are not in order")
        return cls.of(session, members)

    @staticmethod
    def decode_member(data: bytes) -> Member:
        """One member's 176 bytes. Raises SecaggError(MALFORMED)."""
        if len(data) != _RECORD.size:
            raise SecaggError(Code.MALFORMED, f"a member of {len(data)} bytes")
        return Member(*_RECORD.unpack(data))

    def encode(self) -> bytes:
        """176 bytes a member."""
        return b"".join(member.encode() for member in self.members)

    @cached_property
    def digest(self) -> bytes:
        """Binds the session and everybody's keys."""
        return keys.digest(b"cohort", self.session.digest, self.encode())

    @cached_property
    def graph(self) -> Graph:
        """Degree and threshold, computed by every party for itself."""
        weights = [member.weight for member in self.members]
        return plan(weights, self.session.min_weight, self.session.colluding)

    @cached_property
    def ring(self) -> list[int]:
        """Positions in the order of the ring that neighbours are taken from."""
        return ring([member.id for member in self.members], self.digest)

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """Positions of each member's neighbours, ascending."""
        return neighbourhoods(self.ring, self.graph.degree)

    @cached_property
    def forgers(self) -> list[int]:
        """Ids of members whose identity did not sign their keys for this session."""
        return [
            m.id
            for m in self.members
            if not keys.signed(m.identity, m.signature, m.signed_text(self.session))
        ]

    def position(self, node_id: int) -> int:
        """Where a node stands. Raises SecaggError(PEER) for a stranger."""
        for at, member in enumerate(self.members):
            if member.id == node_id:
                return at
        raise SecaggError(Code.PEER, f"node {node_id} is not a member")

    def weight(self, listed: Sequence[bool]) -> int:
        """Users that the listed members stand for."""
        return sum(m.weight for m, here in zip(self.members, listed, strict=True) if here)

    def transcript(self, listed: Sequence[bool]) -> bytes:
        """Binds masks to the list of those who shared: other lists, other masks."""
        return keys.digest(b"transcript", self.digest, pack_list(listed))

    def confirmed_text(self, sharers: Sequence[bool], survivors: Sequence[bool]) -> bytes:
        """What members sign before they unmask: the one list of survivors."""
        return keys.digest(b"survivors", self.transcript(sharers), pack_list(survivors))

    def check_quorum(self, signers: Sequence[bool]) -> None:
        """Signers of more than (all weight + c) / 2, where c is `colluding` or the weight of the
        heaviest member, whichever is more. Two lists with such a quorum share signers of more than
        c: not colluders of weight `colluding` alone, nor any one member, whatever weight it
        declared. So they share an honest signer, who signs once. Raises SecaggError(SURVIVORS).
        """
        weight, weights = self.weight(signers), [member.weight for member in self.members]
        needed = (sum(weights) + max(self.session.colluding, *weights)) / 2
        if weight <= needed:
            raise SecaggError(
                Code.SURVIVORS,
                f"weight {weight} signed the list of survivors; needed: more than {needed:g}",
            )

    def check_survivors(self, listed: Sequence[bool]) -> None:
        """At least 3 nodes and honest weight of W_min (rule 6), and more in every stretch of the
        ring than may collude there. Raises SecaggError(SURVIVORS)."""
        weight = self.weight(listed)
        session = self.session
        if sum(listed) < 3 or weight - session.colluding < session.min_weight:
            raise SecaggError(
                Code.SURVIVORS,
                f"{sum(listed)} nodes of weight {weight}, {session.colluding:g} of it assumed "
                f"colluding, are left; needed: 3 nodes and W_min = {session.min_weight:g} (key "
                "min-surviving-weight)",
            )
        run, needed = self.graph.degree // 2, self.graph.stretch
        if needed and fewest(self.ring, listed, run) < needed:
            raise SecaggError(
                Code.SURVIVORS,
                f"fewer than {needed} of {run} consecutive nodes of the ring are left: the sum "
                "might fall apart into sums of a few",
            )

    def check_neighbours(self, position: int, listed: Sequence[bool]) -> None:
        """Enough neighbours are left to rebuild a secret. Raises SecaggError(SURVIVORS)."""
        alive = sum(listed[j] for j in self.neighbours[position])
        if alive < self.graph.threshold:
            raise SecaggError(
                Code.SURVIVORS,
                f"{alive} neighbours are left, the threshold is {self.graph.threshold}",
            )


@lru_cache(maxsize=8)  # public; nodes of one process read the same cohort in every stage
def _decoded(session: Session, data: bytes) -> Cohort:
    return Cohort._decode(session, data)


def pack_list(listed: Sequence[bool]) -> bytes:
    """One bit per member, in the cohort's order."""
    return np.packbits(np.asarray(listed, dtype=bool)).tobytes()


def unpack_list(data: bytes, members: int) -> list[bool]:
    """The inverse of `pack_list`. Raises SecaggError(MALFORMED)."""
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
    if len(data) != (members + 7) // 8 or bits[members:].any():
        raise SecaggError(Code.MALFORMED, f"a list of {len(data)} bytes for {members} members")
    return [bool(bit) for bit in bits[:members]]
