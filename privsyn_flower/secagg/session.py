"""The public numbers of one secure sum, and the codes with which it is left."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cached_property

from privsyn_flower.secagg import keys

LARGEST_LENGTH = 1 << 28  # coordinates of one sum


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
