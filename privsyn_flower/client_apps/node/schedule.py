"""Who is due in a round: a rota over users, and how often and how closely each takes part.

Noise that is correlated over rounds hides a user who takes part at most `max_participations`
times, at least `min_separation` rounds apart (Choquette-Choo et al. 2023, arXiv 2211.06530,
"Multi-epoch matrix factorization mechanisms for private machine learning", Section 2). The server
states both in the question's options; the node keeps them from its own records, for each user,
whatever the server does later. Who is left out gives zeros.

A node that was asked too early or too often refuses. That must tell nothing about its users, so
it goes by the rounds that the node answered, which the server knows, and not by who they are.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privsyn_flower.common.arrays import I64, Bools
from privsyn_flower.protocol.noise import MATRIX
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError

LARGEST_NUMBER = 2**31 - 1  # of a round, an attempt and what is counted in rounds
_PLACE_BYTES = 4  # of an id: so many places that any cycle's turns are equally likely


@dataclass(frozen=True)
class Schedule:
    """What a question's options say about who takes part; 0: no rota, no limit. PUBLIC.

    rows: answers are rows of a matrix, with earlier rounds' vectors in them, whoever's turn it is.
    """

    cycle: int = 0
    min_separation: int = 0
    max_participations: int = 0
    rows: bool = False

    @classmethod
    def of(cls, query: Query) -> Schedule:
        """The options cycle, min-separation, max-participations. Raises WireError(MALFORMED)."""
        names = ("cycle", "min-separation", "max-participations")
        cycle, separation, most = (_count(query.options, name) for name in names)
        found = cls(cycle, separation, most, MATRIX in query.options)
        if 0 < found.cycle < found.min_separation:
            raise WireError(
                Refusal.MALFORMED,
                f"cycle = {found.cycle} is below min-separation = {found.min_separation}",
            )
        return found

    def due(self, places: I64, round: int) -> Bools:
        """Whose turn it is: users' places (n,) -> (n,); without a rota everybody's."""
        turns = (round - 1 - places) % (self.cycle or 1)
        return np.equal(turns, 0)

    def turn(self, round: int) -> int:
        """Which of the rota's turns a round is; rounds of one turn ask the same users."""
        return (round - 1) % self.cycle if self.cycle else 0

    @property
    def limited(self) -> bool:
        """Whether there is anything to remember."""
        return self.rows or self.min_separation > 1 or self.max_participations > 0


def places(ids: Sequence[bytes], first: int = 0) -> I64:
    """Users' places in a rota (n,), each from that user's id (32 bytes of a hash) and `first`.

    Nobody's place depends on who else is there: a user who comes, goes or cannot be read moves no
    other user's turn. How many users a turn has is left to chance.
    """
    numbers = [int.from_bytes(id_[:_PLACE_BYTES], "big") for id_ in ids]
    return first + np.array(numbers, dtype=np.int64)


def public_ids(users: Sequence[str]) -> list[bytes]:
    """SHA-256 of users' ids: the same in every folder, so for simulation only."""
    encoded = (user.encode("utf-8", "surrogatepass") for user in users)
    return [hashlib.sha256(user).digest() for user in encoded]


def admitted(
    database: sqlite3.Connection,
    run: str,
    round: int,
    ids: Sequence[bytes],
    schedule: Schedule,
    query: str,
) -> list[bool]:
    """Which of the users who are due (their ids) may take part; `attend` must follow.

    Each kind of question counts apart, as the noise is made for its own rounds. Another attempt of
    the round last taken part in is no further participation. Raises WireError(POLICY) when the node
    itself was asked too early or too often.
    """
    if not schedule.limited:
        return [True] * len(ids)
    turn = _turn_id(schedule, round)
    if not _may_attend(database, run, query, round, turn, schedule):
        raise WireError(
            Refusal.POLICY,
            f"run {run!r}, round {round}: this node answered less than min-separation = "
            f"{schedule.min_separation} rounds ago, or max-participations = "
            f"{schedule.max_participations} times",
        )
    return [_may_attend(database, run, query, round, id_, schedule) for id_ in ids]


def attend(
    database: sqlite3.Connection,
    run: str,
    round: int,
    ids: Sequence[bytes],
    schedule: Schedule,
    query: str,
) -> None:
    """Record that these users take part in a round, and that the node answered it."""
    if not schedule.limited:
        return
    turn = () if schedule.rows else (_turn_id(schedule, round),)
    database.executemany(
        "INSERT INTO attendance VALUES (?, ?, ?, ?, 1) ON CONFLICT (run, query, id) DO UPDATE SET "
        "participations = participations + (round <> excluded.round), round = excluded.round",
        [(run, query, id_, round) for id_ in (*turn, *ids)],
    )


def _turn_id(schedule: Schedule, round: int) -> bytes:
    """Stands for the node among its users, whose ids are 32 bytes long."""
    return b"turn %d" % schedule.turn(round)


def _may_attend(
    database: sqlite3.Connection, run: str, query: str, round: int, id_: bytes, schedule: Schedule
) -> bool:
    row = database.execute(
        "SELECT round, participations FROM attendance WHERE run = ? AND query = ? AND id = ?",
        (run, query, id_),
    ).fetchone()
    if row is None or row[0] == round:
        return True
    if schedule.max_participations and row[1] >= schedule.max_participations:
        return False
    return schedule.min_separation <= 1 or round - row[0] >= schedule.min_separation


def _count(options: Mapping[str, object], name: str) -> int:
    value = options.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_NUMBER:
        raise WireError(Refusal.MALFORMED, f"option {name} = {value!r} must be a whole number >= 0")
    return value


def join_group(database: sqlite3.Connection, run: str, own: str) -> None:
    """Keep the group in which a node answers a run, its questions beside the rounds (RUN-NAME) too.

    own: of the node's config now. Raises WireError(POLICY) when the node began the run in another
    group, whose charge its users have.
    """
    # Not in every node's file, and nothing else depends on it.
    database.execute("CREATE TABLE IF NOT EXISTS joined (run TEXT PRIMARY KEY, resources TEXT)")
    whole = run.partition("-")[0]
    database.execute("INSERT OR IGNORE INTO joined VALUES (?, ?)", (whole, own))
    (first,) = database.execute("SELECT resources FROM joined WHERE run = ?", (whole,)).fetchone()
    if first != own:
        raise WireError(
            Refusal.POLICY, f"run {whole!r} was begun with resources = {first!r}, not {own!r}"
        )
