"""What a node must never forget: an SQLite file, written before any answer leaves.

On a device every message is handled by a fresh process, and the server chooses what it asks.
So the file remembers the last ticket of every query (a ticket is answered once, by one
process), what each user has spent, who withdrew, and the peers' keys and weights. Each call is one
transaction under the writer's lock (`BEGIN IMMEDIATE`), with a rollback journal, fsynced
(`synchronous = EXTRA`): a kill leaves all of it or nothing, and nothing acknowledged is lost.

Users appear only as HMAC-SHA256 of their id, under a key beside the file: the file alone tells
nobody who takes part. An older copy in its place is refused. What it does not know: a second file
for the same users (another folder) counts apart.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privsyn_flower.client_apps.node.lifetime import NOTHING, Limit, Spent, cost, spent_epsilon
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records_file import RecordsFile
from privsyn_flower.client_apps.node.schedule import (
    LARGEST_NUMBER,
    Schedule,
    admitted,
    attend,
    join_group,
)
from privsyn_flower.common.arrays import Bools
from privsyn_flower.protocol.wire import Refusal, WireError

RECORDS_FILE = "node.sqlite"
FOLDER = "past"  # of vectors of earlier rounds (`past_vectors`)
LONGEST_NAME = 256  # of a run, query or peer: the server chooses them, the node keeps them
NO_SCHEDULE = Schedule()


class Peer(NamedTuple):
    """What is kept of another node: its identity key (Ed25519) and its weight in users."""

    key: bytes
    weight: int


class User(NamedTuple):
    """A user's row, with the last round taken part in during one run (0: none)."""

    participations: int = 0
    gaussian: float = 0.0
    distance: float = 0.0
    withdrawn: int = 0
    last_round: int = 0


class NodeRecords:
    """The records in the file at `path`; made at the first use, its folder 0700, files 0600.

    Methods raise RecordsError for a file that is damaged, foreign, held for too long or without
    its key, IdentityError for a key that others may have read, OSError when it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.file = RecordsFile(path)

    def mark(self, run: str, query: str, round: int, attempt: int) -> None:
        """Record that this ticket is being answered; call it before anything masked leaves.

        Raises WireError(POLICY) when (run, query) was asked at this (round, attempt) or a later
        one: of any number of processes, one answers.
        """
        with self.file.transaction() as database:
            mark_ticket(database, run, query, round, attempt)

    def mark_stage(self, stage: str, run: str, query: str, round: int, attempt: int) -> None:
        """`mark` for one stage of this ticket's secure sum: each counts apart, and is no answer.

        No row of a matrix follows the last one that is unmasked: its vectors go.
        """
        with self.file.transaction() as database:
            last = database.execute(
                "SELECT round, attempt FROM stages WHERE run = ? AND query = ? AND stage = ?",
                (run, query, stage),
            ).fetchone()
            _check_later(last, run, query, round, attempt)
            database.execute(
                "INSERT OR REPLACE INTO stages VALUES (?, ?, ?, ?, ?)",
                (run, query, stage, round, attempt),
            )
            if stage == "unmask":
                _end_rows(database, run, query, round, self.file)

    def join(self, run: str, resources: str) -> None:
        """Before a question for one group of a run's nodes: as `schedule.join_group`."""
        _check_names(run=run)
        with self.file.transaction() as database:
            join_group(database, run, resources)

    def end_rows(self, run: str, query: str, round: int) -> None:
        """After an answer in the clear, which no stage follows: as `mark_stage` of the last one."""
        with self.file.transaction() as database:
            _end_rows(database, run, query, round, self.file)

    def sweep_vectors(self) -> None:
        """Remove a vector that was dropped while it was being made."""
        with self.file.transaction() as database:
            sweep_vectors(database, self.file)

    def schedule(
        self,
        run: str,
        query: str,
        round: int,
        attempt: int,
        users: Sequence[str],
        schedule: Schedule,
    ) -> Bools:
        """`mark`, and which of the users who are due may take part, recorded as having done so.

        users: distinct ids; returns (len(users),). All or nothing. Raises WireError(POLICY) as
        `mark` and `schedule.admitted` do.
        """
        with self.file.transaction() as database:
            mark_ticket(database, run, query, round, attempt)
            if not schedule.limited:  # then ids, a hash for each user, are for nothing
                return np.ones(len(users), dtype=np.bool_)
            ids = self.file.ids(users)
            mask = take_part(database, run, query, round, ids, NOTHING, None, schedule)
        return np.array(mask, dtype=np.bool_)

    def take(
        self,
        run: str,
        query: str,
        round: int,
        attempt: int,
        users: Sequence[str],
        noise_multiplier: float,
        distance: float,
        policy: Policy,
        schedule: Schedule = NO_SCHEDULE,
    ) -> Bools:
        """`schedule`, and who of these is within the policy's limits (len(users),).

        users: distinct ids of those who would. noise_multiplier, distance: as in
        `cost`. A user who withdrew, or whom a limit excludes, is False: zeros, while the
        node's noise stays. What was taken is spent even when this sum is never unmasked: other
        nodes may have gone on without this one. All or nothing.

        Raises WireError(POLICY) as `schedule` does, and when the run had max-rounds-per-run answers
        of this node; ValueError on a repeated user or noise that is not finite and positive.
        """
        check_distinct(users)
        spent = cost(noise_multiplier, distance)
        with self.file.transaction() as database:
            mark_ticket(database, run, query, round, attempt)
            check_answers(database, run, policy)
            ids = self.file.ids(users)
            mask = take_part(database, run, query, round, ids, spent, policy, schedule)
            if (self.file.path.parent / FOLDER).is_dir():  # those of a run that ended early
                sweep_vectors(database, self.file)
        return np.array(mask, dtype=np.bool_)

    def ids(self, users: Sequence[str]) -> list[bytes]:
        """What stands for users here, 32 bytes each: never the same in two nodes' records."""
        with self.file.transaction():  # the key is made at the first use
            return self.file.ids(users)

    def pin_all(self, peers: Mapping[str, Peer]) -> int:
        """Trust on first use: keep every new peer's key and weight; how many are new.

        All or nothing. Raises WireError(POLICY) when another key or weight is kept: the owner
        decides, not the server.
        """
        new = 0
        with self.file.transaction() as database:
            for name, peer in peers.items():
                _check_names(peer=name)
                row = database.execute(
                    "SELECT key, weight FROM pins WHERE peer = ?", (name,)
                ).fetchone()
                new += row is None
                for what, pinned, shown in zip(Peer._fields, row or peer, peer, strict=True):
                    if pinned != shown:
                        text = f"peer {name!r} shows another {what} than the first time"
                        raise WireError(Refusal.POLICY, text, "peer")
                database.execute("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", (name, *peer))
        return new

    def forget(self, user: str) -> bool:
        """Withdraw a user for good; whether the records knew this user.

        What was spent stays: an id that comes back must not start from zero. The vectors of
        earlier rounds, which are sums with this user's, are erased.
        """
        with self.file.transaction() as database:
            (id_,) = self.file.ids([user])
            found = database.execute("SELECT 1 FROM users WHERE id = ?", (id_,)).fetchone()
            database.execute(
                "INSERT INTO users VALUES (?, 0, 0.0, 0.0, 1) ON CONFLICT (id) DO UPDATE SET "
                "withdrawn = 1",
                (id_,),
            )
            database.execute("DELETE FROM vectors")
            sweep_vectors(database, self.file)
        return found is not None

    def knows(self, user: str) -> bool:
        """Whether this user took part or withdrew here."""
        with self.file.transaction() as database:
            (id_,) = self.file.ids([user])
            row = database.execute("SELECT 1 FROM users WHERE id = ?", (id_,)).fetchone()
        return row is not None

    def at_limit(self, policy: Policy, more: Spent) -> int:
        """How many users a further answer of this cost would take beyond a limit of the policy."""
        limit = Limit.of(policy.lifetime_epsilon, policy.lifetime_delta)
        with self.file.transaction() as database:
            rows = database.execute(
                "SELECT participations, gaussian, distance FROM users WHERE withdrawn = 0"
            ).fetchall()
        return sum(not may_participate(User(*row), more, limit, policy) for row in rows)

    def withdrawn(self, users: Sequence[str]) -> Bools:
        """Which users withdrew (len(users),): nothing of theirs may be opened any more."""
        with self.file.transaction() as database:
            gone = {id_ for (id_,) in database.execute("SELECT id FROM users WHERE withdrawn = 1")}
        return np.array([id_ in gone for id_ in self.file.ids(users)], dtype=np.bool_)

    def status(self, delta: float) -> dict[str, Any]:
        """Counts for the owner's eyes: tickets, users, the most any user has spent, pins.

        max_spent_epsilon: at `delta`, see `spent_epsilon`.
        """
        with self.file.transaction() as database:
            marks = database.execute(
                "SELECT run, query, round, attempt, asked FROM marks ORDER BY rowid"
            ).fetchall()
            pairs = database.execute("SELECT DISTINCT gaussian, distance FROM users").fetchall()
            users, withdrawn, most = database.execute(
                "SELECT count(*), coalesce(sum(withdrawn), 0), coalesce(max(participations), 0) "
                "FROM users"
            ).fetchone()
            sums = [Spent(*pair) for pair in pairs]
            (pins,) = database.execute("SELECT count(*) FROM pins").fetchone()
        names = ("run", "query", "round", "attempt", "answers")
        return {
            "runs": [dict(zip(names, mark, strict=True)) for mark in marks],
            "users": users,
            "withdrawn": withdrawn,
            "max_participations": most,
            "max_spent_epsilon": max((spent_epsilon(s, delta) for s in sums), default=0.0),
            "delta": delta,
            "pins": pins,
        }


def check_distinct(users: Sequence[str]) -> None:
    """Raises ValueError on a user who is there twice, but for blanks."""
    from privsyn_flower.data.values import to_name  # the other stages load nothing of data

    repeated = len(users) - len(set(map(to_name, users)))
    if repeated:
        raise ValueError(f"{repeated} of {len(users)} users are repeated: ids must be distinct")


def mark_ticket(
    database: sqlite3.Connection,
    run: str,
    query: str,
    round: int,
    attempt: int,
    terms: str = "",
    rounds: int = 0,
) -> bool:
    """`NodeRecords.mark` within a transaction; whether this round was asked before.

    terms: of the rows of a matrix (`rows.Terms`), for `rounds` rounds; "": the question has none.
    Raises WireError(POLICY) when they are not those of the first (run, query), too.
    """
    last = database.execute(
        "SELECT round, attempt FROM marks WHERE run = ? AND query = ?", (run, query)
    ).fetchone()
    _check_later(last, run, query, round, attempt)
    if terms and last is None:
        database.execute("INSERT INTO matrices VALUES (?, ?, ?, ?)", (run, query, terms, rounds))
    _check_terms(database, run, query, terms)
    database.execute(
        "INSERT INTO marks VALUES (?, ?, ?, ?, 1) ON CONFLICT (run, query) DO UPDATE SET "
        "round = excluded.round, attempt = excluded.attempt, asked = asked + 1",
        (run, query, round, attempt),
    )
    return last is not None and round == int(last[0])


def _check_terms(database: sqlite3.Connection, run: str, query: str, terms: str) -> None:
    row = database.execute(
        "SELECT terms FROM matrices WHERE run = ? AND query = ?", (run, query)
    ).fetchone()
    if (row[0] if row else "") == terms:
        return
    bound, new = (json.loads(text) if text else {} for text in (row[0] if row else "", terms))
    names = sorted(key for key in {*bound, *new} if bound.get(key) != new.get(key))
    raise WireError(
        Refusal.POLICY, f"{query!r} of run {run!r} began with other numbers: {', '.join(names)}"
    )


def _end_rows(
    database: sqlite3.Connection, run: str, query: str, round: int, file: RecordsFile
) -> None:
    ended = database.execute(
        "DELETE FROM vectors WHERE run = ? AND query = ? AND ? >= (SELECT rounds FROM matrices "
        "WHERE run = ? AND query = ?)",
        (run, query, round, run, query),
    )
    if ended.rowcount:
        sweep_vectors(database, file)


def sweep_vectors(database: sqlite3.Connection, file: RecordsFile) -> None:
    """Remove all vectors of earlier rounds that the records do not know (any more).

    Within the transaction, so that nobody else's new one is taken for such a vector.
    """
    from privsyn_flower.client_apps.node.past_vectors import sweep

    known = {token for (token,) in database.execute("SELECT token FROM vectors")}
    sweep(file.path.parent / FOLDER, known)


def _check_later(
    last: tuple[int, int] | None, run: str, query: str, round: int, attempt: int
) -> None:
    """Raises WireError(POLICY) unless this ticket comes after the last one, None: there is none."""
    _check_names(run=run, query=query)
    for name, value in (("round", round), ("attempt", attempt)):
        if not 1 <= value <= LARGEST_NUMBER:
            raise WireError(Refusal.POLICY, f"{name} = {value} must be in 1..{LARGEST_NUMBER}")
    if last is not None and (round, attempt) <= last:
        raise WireError(
            Refusal.POLICY,
            f"{query!r} of run {run!r} was asked at round {last[0]}, attempt {last[1]}: round "
            f"{round}, attempt {attempt} is not answered again",
        )


def check_answers(database: sqlite3.Connection, run: str, policy: Policy) -> None:
    """Raises WireError(POLICY) when this marked ticket is one too many for the run.

    Other queries' and attempts' sums cost as much as rounds'.
    """
    (asked,) = database.execute("SELECT sum(asked) FROM marks WHERE run = ?", (run,)).fetchone()
    if asked > policy.max_rounds_per_run:
        raise WireError(
            Refusal.POLICY,
            f"run {run!r} had {asked - 1} answers, attempts included: policy key "
            f"max-rounds-per-run = {policy.max_rounds_per_run}",
            "max-rounds-per-run",
        )


def user_row(database: sqlite3.Connection, run: str, id_: bytes) -> User:
    """What is kept of a user."""
    row = database.execute(
        "SELECT participations, gaussian, distance, withdrawn, coalesce((SELECT round FROM "
        "last_rounds WHERE run = ? AND last_rounds.id = users.id), 0) FROM users WHERE id = ?",
        (run, id_),
    ).fetchone()
    return User() if row is None else User(*row)


def may_participate(user: User, spent: Spent, limit: Limit, policy: Policy) -> bool:
    """Whether one participation more is within this user's limits."""
    if policy.max_participations and user.participations >= policy.max_participations:
        return False
    return may_pay(user, spent, limit)


def may_pay(user: User, spent: Spent, limit: Limit) -> bool:
    """Whether this user, who has not withdrawn, may spend so much more."""
    more = Spent(user.gaussian + spent.gaussian, user.distance + spent.distance)
    return not user.withdrawn and limit.allows(more)


def _apart(user: User, round: int, policy: Policy) -> bool:
    # With a separation, a round before the latest one (of another query) is too close as well.
    latest, separation = user.last_round, policy.min_separation
    return not (separation and latest and round - latest < separation)


def take_part(
    database: sqlite3.Connection,
    run: str,
    query: str,
    round: int,
    ids: Sequence[bytes],
    spent: Spent,
    policy: Policy | None,
    schedule: Schedule,
) -> list[bool]:
    """Which of the users who are due may take part (len(ids),); these are charged and recorded.

    policy: None in a simulation, which charges nobody. Raises WireError(POLICY) as
    `schedule.admitted` does.
    """
    mask = admitted(database, run, round, ids, schedule, query)
    if policy is not None:
        limit = Limit.of(policy.lifetime_epsilon, policy.lifetime_delta)
        users = [user_row(database, run, id_) for id_ in ids]
        mask = [
            may and _apart(user, round, policy) and may_participate(user, spent, limit, policy)
            for user, may in zip(users, mask, strict=True)
        ]
    participants = [id_ for id_, may in zip(ids, mask, strict=True) if may]
    if policy is not None:
        charge(database, participants, spent)
        database.executemany(
            "INSERT INTO last_rounds VALUES (?, ?, ?) ON CONFLICT (run, id) DO UPDATE SET "
            "round = max(round, excluded.round)",
            [(run, id_, round) for id_ in participants],
        )
    attend(database, run, round, participants, schedule, query)
    return mask


def charge(
    database: sqlite3.Connection, ids: Sequence[bytes], spent: Spent, participations: int = 1
) -> None:
    """What each of these users has spent more, in so many participations more."""
    database.executemany(
        "INSERT INTO users VALUES (?, ?, ?, ?, 0) ON CONFLICT (id) DO UPDATE SET "
        "participations = participations + excluded.participations, "
        "gaussian = gaussian + excluded.gaussian, distance = distance + excluded.distance",
        [(id_, participations, *spent) for id_ in ids],
    )


def _check_names(**names: str) -> None:
    for name, value in names.items():
        if not 0 < len(value) <= LONGEST_NAME:
            raise WireError(
                Refusal.POLICY, f"{name} of {len(value)} characters must have 1..{LONGEST_NAME}"
            )
