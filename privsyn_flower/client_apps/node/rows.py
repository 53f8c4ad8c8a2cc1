"""Rows of a strategy matrix, which a node makes of its users' vectors of many rounds.

A run is bound to the matrix, the noise and the turns of its first question: what a participation
costs holds for these alone, and for one row a round. A user's vector of a round is made once, by
the first attempt that reaches the records. Further attempts make the row of the kept vectors, so
that no two vectors of one user are ever in one round; each costs everybody who may be in it again
(docs/correlated-noise.md).
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from privsyn_flower.client_apps.node.device import Node, alone
from privsyn_flower.client_apps.node.lifetime import Limit, Spent, cost
from privsyn_flower.client_apps.node.past_vectors import (
    load_vector,
    new_token,
    store_vector,
)
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import (
    FOLDER,
    NodeRecords,
    charge,
    check_answers,
    check_distinct,
    mark_ticket,
    may_pay,
    sweep_vectors,
    take_part,
    user_row,
)
from privsyn_flower.client_apps.node.schedule import Schedule
from privsyn_flower.common.arrays import I32, I64, Bools
from privsyn_flower.protocol.noise import Noise, matrix_of, total_variation
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError

if TYPE_CHECKING:
    from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix

MOST_RUNS = 4  # whose vectors a node has at the same time


@dataclass(frozen=True)
class Row:
    """One question's row. eligible: whose vectors are made for it (users,). repeated: this round's
    were made before. tokens: of the vectors that may be in the row, by round. dropped: earlier
    ones were given up, as somebody in them may not pay for another attempt. crowded: how many of
    other runs were, as MOST_RUNS have some."""

    matrix: IntegerMatrix
    round: int
    eligible: Bools
    repeated: bool
    tokens: dict[int, str]
    dropped: bool
    crowded: int

    def vector(self, make: Callable[[], I64], length: int, node: Node) -> I64:
        """Its integers (length,), PRIVATE, before the noise. Whatever fails here is zeros.

        make: the users' vector of this round, called in the first attempt alone. It is on disk
        before it is in a row: one that cannot be kept is in none.
        """
        folder, users, own = node.cache / FOLDER, node.facts.weight, None
        with contextlib.suppress(Exception):  # a full disk must not change the answer
            if self.dropped:
                node.log().warning("earlier rounds are left out for good: a user is at a limit")
            if self.crowded:
                node.log().warning(
                    "%d vectors of other runs are given up: at most %d runs have some",
                    *(self.crowded, MOST_RUNS),
                )
        if not self.repeated:
            new = make()
            with alone(node, "this round's vector cannot be kept: zeros", users):
                store_vector(folder, self.tokens[self.round], new)
                node.records.sweep_vectors()  # a user may have withdrawn meanwhile
                own = new

        def past(rnd: int) -> I32 | I64 | None:
            if rnd not in self.tokens or (rnd == self.round and not self.repeated):
                return own if rnd == self.round else None
            found = None
            with alone(node, f"the vector of round {rnd} is lost: zeros", users):
                found = load_vector(folder, self.tokens[rnd], length)
            return found  # noqa: RET504 - None when the line above was cut short

        total = None
        with alone(node, "the row of this round failed: zeros", users):
            total = self.matrix.row(self.round, past)
        return np.zeros(length, dtype=np.int64) if total is None else total


@dataclass(frozen=True)
class Terms:
    """What a run of rows is bound to. text: all of its public numbers, as JSON. multiplier: of
    independent noise that costs a participation, or another attempt at a row, as much.

    first: what a participation costs, whatever rows it is in. again: what another attempt at one
    row costs whoever is in it.
    """

    ticket: Ticket
    matrix: IntegerMatrix
    text: str
    multiplier: float
    first: Spent
    again: Spent

    @classmethod
    def of(cls, query: Query, ticket: Ticket, noise: Noise) -> Terms:
        """Of a question with a matrix. Raises WireError(MALFORMED)."""
        try:
            matrix = matrix_of(query)
            if matrix is None or noise.source != "nodes" or noise.sampling_rate != 1:
                raise ValueError("rows of a matrix need the nodes' noise and no sampling")
            if ticket.round > matrix.rounds:
                raise ValueError(f"round {ticket.round} of a matrix for rounds = {matrix.rounds}")
            distance = total_variation(query, noise)
            once, repeated = (
                matrix.participation_multiplier(noise.multiplier),
                matrix.repeat_multiplier(noise.multiplier),
            )
            rows = min(matrix.bands, matrix.rounds - ticket.round + 1)  # each as far from Gaussian
            first, again = cost(once, rows * distance), cost(repeated, distance)
        except (ValueError, OverflowError) as error:
            raise WireError(Refusal.MALFORMED, str(error)) from None
        numbers = {
            "matrix": matrix.coefficients,
            **asdict(matrix.participation),
            "cycle": query.options.get("cycle", 0),
            "rotation": query.rotation.hex(),
            "length": query.length,
            "bound": query.bound,
            **asdict(noise),
        }
        text = json.dumps(numbers, sort_keys=True)
        return cls(ticket, matrix, text, min(once, repeated), first, again)

    def take(
        self,
        records: NodeRecords,
        users: Sequence[str],
        policy: Policy | None,
        schedule: Schedule,
    ) -> Row:
        """`NodeRecords.take` of a row: all or nothing, and who takes part in it.

        users: distinct ids of those who are due. policy: None in a simulation, which limits
        nobody's spending. Raises WireError(POLICY) as `NodeRecords.take` does, and where the run is
        bound to other terms.
        """
        file, matrix, eligible, dropped = records.file, self.matrix, [False] * len(users), False
        run, query, rnd = self.ticket.run, self.ticket.query, self.ticket.round
        if policy is not None:
            check_distinct(users)
        with file.transaction() as database:
            repeated = mark_ticket(
                database, run, query, rnd, self.ticket.attempt, self.text, matrix.rounds
            )
            if policy is not None:
                check_answers(database, run, policy)
            _drop(database, run, query, rnd - matrix.bands)
            if not repeated:
                eligible = take_part(
                    database, run, query, rnd, file.ids(users), self.first, policy, schedule
                )
                database.execute(
                    "INSERT INTO vectors VALUES (?, ?, ?, ?)", (run, query, rnd, new_token())
                )
            elif policy is not None and not _paid_again(database, run, query, self.again, policy):
                _drop(database, run, query, rnd)
                dropped = True
            crowded = _end_others(database, run, query)
            own = "SELECT round, token FROM vectors WHERE run = ? AND query = ?"
            tokens = dict(database.execute(own, (run, query)).fetchall())
            sweep_vectors(database, file)
        mask = np.array(eligible, dtype=np.bool_)
        return Row(matrix, rnd, mask, repeated, tokens, dropped, crowded)


def _drop(database: sqlite3.Connection, run: str, query: str, last: int) -> None:
    """The vectors of rounds up to `last` are in no row any more."""
    database.execute(
        "DELETE FROM vectors WHERE run = ? AND query = ? AND round <= ?", (run, query, last)
    )


def _end_others(database: sqlite3.Connection, run: str, query: str) -> int:
    """Drop the vectors of other runs whose last round was answered, and of all but the latest:
    a server can begin any number of runs and end none. How many went of unfinished ones."""
    database.execute(
        "DELETE FROM vectors WHERE (run, query) <> (?, ?) AND (run, query) IN (SELECT run, query "
        "FROM matrices NATURAL JOIN marks WHERE round >= rounds)",
        (run, query),
    )
    return database.execute(
        "DELETE FROM vectors WHERE (run, query) NOT IN (SELECT run, query FROM vectors GROUP BY "
        "run, query ORDER BY max(rowid) DESC LIMIT ?)",
        (MOST_RUNS,),
    ).rowcount


def _paid_again(
    database: sqlite3.Connection, run: str, query: str, spent: Spent, policy: Policy
) -> bool:
    """Charge everybody who may be in a kept vector; False, and nobody, where one may not pay.

    Who that is goes by rounds and limits, never by texts.
    """
    limit = Limit.of(policy.lifetime_epsilon, policy.lifetime_delta)
    ids = [
        id_
        for (id_,) in database.execute(
            "SELECT id FROM attendance WHERE run = ? AND query = ? AND round >= (SELECT min(round) "
            "FROM vectors WHERE run = ? AND query = ?)",
            (run, query, run, query),
        )
    ]
    if not all(may_pay(user_row(database, run, id_), spent, limit) for id_ in ids):
        return False
    charge(database, ids, spent, participations=0)
    return True
