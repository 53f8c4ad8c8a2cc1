"""The secure sum in anybody's Flower app: a decorator for the node, one call for the server.

The sum is exact and carries NO noise unless the nodes are told to add it: it hides each node among
the others, and says what the sum itself says (docs/secure-sum.md).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import secrets
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, overload

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import I64
from privsyn_flower.common.files import node_home
from privsyn_flower.common.sqlite_file import private_file, transaction
from privsyn_flower.privacy.encoding.quantize import from_modulus
from privsyn_flower.privacy.encoding.sizing import noise_tail
from privsyn_flower.privacy.noise.integer_noise import (
    node_variance,
    release_distance,
    system_discrete_gaussian,
)
from privsyn_flower.protocol.secure import RECORD, Transport, refusal, respond, run_session
from privsyn_flower.secagg import keys
from privsyn_flower.secagg.cohort import Code, Cohort, SecaggError, Session
from privsyn_flower.secagg.identity import identity
from privsyn_flower.secagg.node import Party

logger = logging.getLogger("privsyn_flower")

ENCODING = "secagg-encoding"
LOG_FILE = "handler.log"
REPLAYS_FILE = "secagg.sqlite"
LONGEST_NAME = 256  # of a run or query: the server chooses them, the node keeps them
LARGEST_NUMBER = 2**63 - 1  # that SQLite keeps
_TABLES = (
    "CREATE TABLE IF NOT EXISTS marks (run TEXT, query TEXT, stage TEXT, round INTEGER, "
    "attempt INTEGER, PRIMARY KEY (run, query, stage))",
    "CREATE TABLE IF NOT EXISTS pins (peer TEXT PRIMARY KEY, key BLOB NOT NULL, weight INTEGER)",
)
Handler = Callable[[Message, Context], ArrayLike]
Answer = Callable[[Message, Context], Message]


@overload
def secure_vector(handler: Handler) -> Answer: ...
@overload
def secure_vector(
    handler: None = None,
    *,
    weight: int = 1,
    folder: str | Path | None = None,
    min_weight: float = 3.0,
    max_share: float = 0.5,
    noise_multiplier: float = 0.0,
    sensitivity: float = 0.0,
) -> Callable[[Handler], Answer]: ...
def secure_vector(
    handler: Handler | None = None,
    *,
    weight: int = 1,
    folder: str | Path | None = None,
    min_weight: float = 3.0,
    max_share: float = 0.5,
    noise_multiplier: float = 0.0,
    sensitivity: float = 0.0,
) -> Answer | Callable[[Handler], Answer]:
    """Make a handler (message, context) -> vector (length,), PRIVATE, answer `secure_sum`.

    The handler is called once a sum, with the server's content; integers, or floats in units of
    the server's 1 / scale. If it raises, or a coordinate is outside the server's `largest`, or
    the shape is another, zeros are sent and only `folder`/handler.log says so. weight: what the
    server counts this node as (public). min_weight: the least W_min this node accepts. max_share:
    the largest share of one node in the weight of a sum. folder: the node's identity key and
    records, default `node_home()`/secagg/NODE-ID.

    noise_multiplier above 0: the node adds its share of integer noise to whatever is sent, zeros
    included, so that honest nodes of weight min_weight carry a standard deviation of
    noise_multiplier * sensitivity. sensitivity: L2 norm of what the node says, whatever its weight;
    a longer vector counts as a failure. What is hidden is one node: of its users a single one may
    make the handler fail, which takes the whole vector out of the sum. Raises ValueError for
    numbers that cannot be, and for noise so small in integers that it is not as good as Gaussian
    noise (`integer_noise`): then scale the vectors up.
    """
    own = _Settings(weight, folder, min_weight, max_share, noise_multiplier, sensitivity)
    decorated: Callable[[Handler], Answer] = lambda handler: _secure_vector(handler, own)  # noqa: E731
    return decorated if handler is None else decorated(handler)


@dataclass(frozen=True)
class _Settings:
    """The decorator's arguments, checked."""

    weight: int
    folder: str | Path | None
    min_weight: float
    max_share: float
    noise_multiplier: float
    sensitivity: float

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"weight = {self.weight} must be at least 1")
        if not 0 < self.max_share <= 1:
            raise ValueError(f"max_share = {self.max_share} must be above 0 and at most 1")
        if self.noisy:
            release_distance(1, *self._shares)  # refuses one without the other, and coarse integers

    @property
    def noisy(self) -> bool:
        """Whether this node adds noise."""
        return bool(self.noise_multiplier or self.sensitivity)

    @property
    def _shares(self) -> tuple[float, float, float]:
        return self.noise_multiplier, self.sensitivity, self.min_weight

    @property
    def variance(self) -> float:
        """Of this node's noise; 0: none."""
        if not self.noisy:
            return 0.0
        return node_variance(self.noise_multiplier, self.weight, self.min_weight, self.sensitivity)

    def home(self, context: Context) -> Path:
        """The node's folder."""
        folder = self.folder
        if folder is None:
            folder = node_home() / "secagg" / str(context.node_id)
        return Path(folder).expanduser()

    def accept(self, cohort: Cohort, listed: Sequence[bool]) -> None:
        """Raises SecaggError(COHORT) for too small a W_min, or too heavy a member."""
        session = cohort.session
        if session.min_weight < self.min_weight:
            raise SecaggError(
                Code.COHORT,
                f"W_min = {session.min_weight:g} is below this node's min_weight = "
                f"{self.min_weight:g}",
            )
        weights = [m.weight for m, here in zip(cohort.members, listed, strict=True) if here]
        if max(weights) > self.max_share * sum(weights):
            raise SecaggError(
                Code.COHORT,
                f"one node has weight {max(weights)} of {sum(weights)}, above this node's "
                f"max_share = {self.max_share:g}",
            )


def _secure_vector(handler: Handler, own: _Settings) -> Answer:
    @functools.wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        home = own.home(context)

        def trust(cohort: Cohort) -> None:
            own.accept(cohort, [True] * len(cohort.members))
            pin(home, cohort)

        def vector(session: Session, _: int) -> I64:
            limit, scale = _read_encoding(message, session)
            room = _room(limit, scale, session.length, own)
            mark(home, "mask", session)
            values = np.zeros(session.length, dtype=np.int64)
            with _failures(home):
                values = _integers(handler(message, context), session.length, room, scale, own)
            if own.variance:
                values = values + system_discrete_gaussian(session.length, own.variance)
            return values

        try:
            return respond(
                message,
                context.state,
                Party(
                    node_id=context.node_id,
                    weight=own.weight,
                    identity=identity(home),
                    trust=trust,
                    vector=vector,
                    once=lambda stage, session: mark(home, stage, session),
                    accept=own.accept,
                ),
            )
        except Exception as error:  # of the set-up: what the handler raises ends before
            logger.warning("refused: %s", error)
            return refusal(message, Code.SETUP)

    return answer


def _room(limit: int, scale: float, length: int, own: _Settings) -> int:
    """What of the server's limit the handler's own coordinates may take: the noise needs the rest.

    Raises SecaggError(MALFORMED), before the handler is called.
    """
    if not own.variance:
        return limit
    room = limit - math.ceil(noise_tail(own.variance, length))
    if scale != 1.0 or room < 1:
        raise SecaggError(
            Code.MALFORMED,
            f"noise of standard deviation {math.sqrt(own.variance):.3g} is made of integers: "
            f"scale = {scale:g} must be 1, and largest = {limit} above {limit - room}",
        )
    return room


def _integers(vector: ArrayLike, length: int, limit: int, scale: float, own: _Settings) -> I64:
    """The handler's vector as integers of magnitude <= limit. Raises ValueError."""
    values = np.asarray(vector)
    if values.shape != (length,) or values.dtype.kind not in "iuf":
        raise ValueError(f"a vector of {values.dtype} {values.shape}, expected ({length},)")
    if values.dtype.kind == "f" or scale != 1.0:
        values = np.rint(values.astype(np.float64) * scale)
    if not bool(((values >= -limit) & (values <= limit)).all()):  # NaN is outside too
        raise ValueError(f"a coordinate is outside largest ({limit} after scaling and noise)")
    bound = own.sensitivity
    if bound and sum(int(value) ** 2 for value in values) > Fraction(bound) ** 2:
        raise ValueError(f"the vector is longer than sensitivity = {bound:g}")
    return values.astype(np.int64)


@contextlib.contextmanager
def _failures(home: Path) -> Iterator[None]:
    """What the handler raises ends here, sys.exit() included, in the node's local log."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException:  # its cause may be private: silence or a code would tell of it
        with contextlib.suppress(Exception):
            log = home / LOG_FILE
            log.touch(mode=0o600)
            with log.open("a", encoding="utf-8") as file:
                file.write(traceback.format_exc())


def secure_sum(
    grid: Grid,
    node_ids: Sequence[int],
    content: RecordDict,
    *,
    message_type: str,
    length: int,
    largest: float,
    scale: float = 1.0,
    run: str | None = None,
    round: int = 1,
    attempt: int = 1,
    min_nodes: int | None = None,
    colluding: float = 0.0,
    weights: Mapping[int, int] | None = None,
    timeout: float = 600.0,
    stage_timeout: float = 60.0,
    poll: float = 0.1,
    revealing: Callable[[], None] = lambda: None,
) -> NDArray[Any]:
    """The exact sum (length,) over the nodes whose vector arrived: int64, or float64 / scale.

    content: goes to the handlers with stage "mask" (public). message_type: "query.NAME" for a
    handler under `@app.query("NAME")`. largest: bound on every coordinate of every vector.
    scale: integers per unit of a float vector. (run, round, attempt): nodes answer each once,
    in ascending order within a run; default: a fresh run. min_nodes: W_min, below which nothing
    is revealed; default 4/5 of the nodes, at least 3. colluding: weight assumed to collude.
    weights: node id -> weight, when nodes have others than 1. timeout: of the stage in which
    handlers run; stage_timeout: of the four others; poll: between two looks (all seconds).
    revealing: called right before the first node is asked to unmask; from there on the sum counts
    as known, whatever is raised after it.

    Raises ValueError when a sum may exceed 56 bits, SecaggError (a ValueError) when too few
    nodes are left.
    """
    counted = {node: (weights or {}).get(node, 1) for node in node_ids}
    if {RECORD, ENCODING} & set(content):
        raise ValueError(f"content uses a reserved name: {RECORD!r} or {ENCODING!r}")
    bits, limit = _modulus(len(counted), largest, scale)
    encoding = ConfigRecord({"limit": limit, "scale": float(scale)})
    asked = RecordDict({**content, ENCODING: encoding})
    wanted = max(3, math.ceil(0.8 * sum(counted.values()))) if min_nodes is None else min_nodes
    session = Session(
        run=secrets.token_hex(16) if run is None else run,
        query=message_type,
        round=round,
        attempt=attempt,
        length=length,
        bits=bits,
        min_weight=float(wanted),
        colluding=float(colluding),
        context=content_digest(asked),
    )
    transport = Transport(grid, message_type, timeout, stage_timeout, poll)
    summed = run_session(
        transport,
        session,
        counted,
        lambda stage: asked if stage == "mask" else RecordDict(),
        revealing,
    )
    total = from_modulus(summed.residues, bits)
    return total if scale == 1.0 else total / scale


def _modulus(nodes: int, largest: float, scale: float) -> tuple[int, int]:
    """(bits, largest integer of one coordinate) that hold every sum of this many nodes."""
    if not 0 < largest * scale < math.inf or round(largest * scale) < 1:
        raise ValueError(f"largest * scale = {largest} * {scale} must be at least 1 and finite")
    limit = round(largest * scale)  # monotonic like the handlers' rounding
    for bits in range(8, 57, 8):
        if nodes * limit < 2 ** (bits - 1):
            return bits, limit
    raise ValueError(
        f"{nodes} nodes * largest * scale = {nodes * limit} does not fit 56 bits (2^55): lower "
        "largest or scale"
    )


def content_digest(content: RecordDict) -> str:
    """SHA-256 (hexadecimal) of all records, the same on both sides of the wire."""
    parts: list[bytes] = []
    for name in sorted(content):
        record = content[name]
        parts += [type(record).__name__.encode(), name.encode()]
        for key in sorted(record):
            value: Any = record[key]
            if isinstance(record, ArrayRecord):
                text = repr((value.dtype, list(value.shape), value.stype)).encode()
                parts += [key.encode(), text, value.data]
            else:
                parts += [key.encode(), repr(value).encode()]
    return keys.digest(b"content", *parts).hex()


def _read_encoding(message: Message, session: Session) -> tuple[int, float]:
    """(limit, scale), once the content is the one that the session is about."""
    content = RecordDict({n: r for n, r in message.content.items() if n != RECORD})
    record = content.config_records.get(ENCODING, ConfigRecord())
    limit, scale = record.get("limit"), record.get("scale")
    if content_digest(content) != session.context:
        raise SecaggError(Code.MALFORMED, "the content is not the one that the sum was made for")
    if not isinstance(limit, int) or not isinstance(scale, float):
        raise SecaggError(Code.MALFORMED, f"no {ENCODING!r} with the content")
    if not (1 <= limit < 2 ** (session.bits - 1) and 0 < scale < math.inf):
        raise SecaggError(Code.MALFORMED, f"limit = {limit}, scale = {scale}")
    return limit, scale


# --- what a node must not forget: stages it answered, its peers' keys and weights ---------------
# In an SQLite file, because Flower's own state is a copy in memory. It knows nothing of anybody's
# data. An older copy put back in its place forgets what came after.


def mark(folder: Path, stage: str, session: Session) -> None:
    """Write down, on disk before this returns, that a stage of a session is being answered.

    Raises SecaggError(REPEATED) when this stage of (run, query) was answered at this (round,
    attempt) or a later one: of any number of processes, one answers.
    """
    if max(len(session.run), len(session.query)) > LONGEST_NAME or not (
        max(session.round, session.attempt) <= LARGEST_NUMBER
    ):
        raise SecaggError(
            Code.MALFORMED, f"names must have up to {LONGEST_NAME} characters, numbers 63 bits"
        )
    key, now = (session.run, session.query, stage), (session.round, session.attempt)
    with _records(folder) as database:
        last = database.execute(
            "SELECT round, attempt FROM marks WHERE run = ? AND query = ? AND stage = ?", key
        ).fetchone()
        if last is not None and now <= last:
            raise SecaggError(
                Code.REPEATED,
                f"stage {stage!r} was answered at round {last[0]}, attempt {last[1]}: round "
                f"{now[0]}, attempt {now[1]} is not answered again",
            )
        database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)", (*key, *now))


def pin(folder: Path, cohort: Cohort) -> None:
    """Trust on first use: keep every new member's identity key and weight, all or none.

    Raises SecaggError(PEER) when a node id shows another key or weight than before.
    """
    with _records(folder) as database:
        for member in cohort.members:
            peer = str(member.id)
            shown = {"key": member.identity, "weight": min(member.weight, LARGEST_NUMBER)}
            row = database.execute(
                "SELECT key, weight FROM pins WHERE peer = ?", (peer,)
            ).fetchone()
            for (what, value), pinned in zip(shown.items(), row or shown.values(), strict=True):
                if pinned != value:
                    raise SecaggError(
                        Code.PEER,
                        f"node {peer} shows another {what} than the first time (kept in "
                        f"{folder / REPLAYS_FILE})",
                    )
            row = (peer, *shown.values())
            database.execute("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", row)


@contextlib.contextmanager
def _records(folder: Path) -> Iterator[sqlite3.Connection]:
    """Committed when the block ends, as if it had never been when it raises."""
    path = private_file(folder / REPLAYS_FILE)
    try:
        with transaction(path) as database:
            for table in _TABLES:
                database.execute(table)
            yield database
    except sqlite3.Error as error:
        raise SecaggError(Code.SETUP, f"{path} cannot be used: {error}") from None
