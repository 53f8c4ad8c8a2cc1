"""How the nodes' answers become one sum: under secure aggregation, or at a trusted server.

`SecureAggregation` is the default: the server learns the sum of those who survived and nothing
else. `PlainSum` is a TRUSTED aggregator: it sees every node's noisy vector, and the guarantee is
against those who see the released sum, not against the server (the privacy sentence says so).
Both add the same integer vectors with the same integer noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from privsyn_flower.common.arrays import F64, U64
from privsyn_flower.privacy.accounting.sampling import AggregationName
from privsyn_flower.privacy.encoding.dense import rotate
from privsyn_flower.privacy.release import NoisySum, TooFewSurvivors, check_weight
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.messaging import (
    Absence,
    Arrived,
    log_absent,
    record_bytes,
    send_and_wait,
    tally,
)
from privsyn_flower.protocol.noise import Noise, decode_sum, encoded_bound, encoded_length
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.secure import Transport, run_session
from privsyn_flower.protocol.wire import (
    Absent,
    Answer,
    Refusal,
    WireError,
    ask,
    ask_records,
    message_type,
    policy_key,
    read_answer,
    session_for,
)
from privsyn_flower.secagg import SecaggError

_CHUNK = 1 << 20  # coordinates that noise is rounded and added to at a time


# Refusals of the question itself: whoever gives one gives it again.
FINAL = {Refusal.PROTOCOL, Refusal.KIND, Refusal.EMBEDDER, Refusal.MODEL, Refusal.POLICY}
# Of POLICY: about who else is there, which may be others the next time.
PASSING_KEYS = {"min-cohort", "min-colluding-share", "max-member-share", "max-population"}
PASSING_KEYS |= {"roster", "peer"}


class Refused(TooFewSurvivors):
    """The nodes that refuse the question leave too few others, however often it is asked."""


@dataclass(frozen=True)
class ModularSum:
    """What the answers sum to, as they travel: integers modulo 2^bits, PRIVATE until released.

    residues: (encoded_length,) uint64 (kept out of repr, so out of logs). query, noise: what was
    asked. weight: of the nodes that answered, in users. There is no way to a vector but
    `decoded`, which wants to know what noise is on.
    """

    residues: U64 = field(repr=False)
    query: Query
    noise: Noise
    weight: float

    def add(self, unit: F64, multiplier: float) -> None:
        """Gaussian noise in place: multiplier * sensitivity * unit, rounded, modulo 2^bits.

        unit: (encoded_length,), the noise at standard deviation 1, PRIVATE; the sum's padding gets
        noise, too. multiplier: its standard deviation / L2 norm of one user's integers.
        """
        # With S the integers' sum and g the noise, S + rint(g) = rint(S + g): what comes out,
        # reduced or not, is a function of S + g, so nothing that a node sends makes the residues
        # say more, and no rounding error of an addition in floating point is in it. The noise of
        # a dense sum is turned as the sum is: rounds have rotations of their own, and noise that
        # is correlated across them cancels in the vectors that were turned back. A rotation is
        # orthonormal on all coordinates, padding included, so S + g turned back has one user's
        # whole vector, as long as before, under the noise as it was drawn.
        std = multiplier * self.noise.sensitivity
        noise = rotate(unit, self.query.rotation) if self.query.dense else unit  # (encoded_length,)
        for start in range(0, len(noise), _CHUNK):
            rounded = np.rint(std * noise[start : start + _CHUNK]).astype(np.int64)
            self.residues[start : start + _CHUNK] += rounded.view(np.uint64)  # 2^bits divides 2^64
        _reduce(self.residues, self.noise.bits)

    def decoded(self, multiplier: float) -> NoisySum:
        """In units of the vectors. multiplier: of the guaranteed noise that is on the sum."""
        bound = encoded_bound(self.query, self.noise)
        return NoisySum(
            vector=decode_sum(self.residues, self.query, self.noise),
            bound=bound,
            noise_std=multiplier * bound,
            weight=self.weight,
            colluding=self.noise.colluding,
            min_weight=self.noise.min_weight,
        )


@dataclass(frozen=True)
class Collected:
    """What came back: the sum (PRIVATE until released) and public facts about the attempt."""

    total: ModularSum
    cohort_size: int
    nodes_answered: int
    bytes_down_per_node: int
    bytes_up_per_node: int

    def facts(self, ticket: Ticket, query: Query) -> dict[str, Any]:
        """What the metrics say of it."""
        facts = {
            "attempt": ticket.attempt,
            "nodes_asked": self.cohort_size,
            "nodes_answered": self.nodes_answered,
            "surviving_weight": self.total.weight,
            "bytes_down_per_node": self.bytes_down_per_node,
            "bytes_up_per_node": self.bytes_up_per_node,
        }
        return facts if query.kind == "update" else {"candidates": query.length, **facts}


@dataclass(frozen=True)
class Attempt:
    """A round asked once: one query on its way to a cohort (node id -> public facts).

    Timeouts are in seconds: of the stage in which nodes compute, and of the short ones around
    it. arrived(n, of): progress. revealing(): called before anything about the answers can be
    known; from there on the charge stands. absent: who left it, and why, once it is over.
    """

    grid: Grid
    cohort: Mapping[int, Hello]
    query: Query
    ticket: Ticket
    noise: Noise
    timeout: float
    stage_timeout: float
    arrived: Arrived
    revealing: Callable[[], None]
    absent: dict[int, Absence] = field(default_factory=dict, init=False)

    @property
    def poll(self) -> float:
        """Seconds between two looks for replies; Flower's own are 3 s apart in deployment."""
        return 1.0 if any(facts.deployed for facts in self.cohort.values()) else 0.05

    def failed(self, error: str) -> TooFewSurvivors:
        """Why there is no sum; Refused where asking again cannot give one."""
        absent = self.absent
        told = tally(absent, len(self.cohort))
        left = sum(
            facts.weight
            for node, facts in self.cohort.items()
            if not (node in absent and _is_final(absent[node]))
        )
        hopeless = left - self.noise.colluding < self.noise.min_weight
        kind = Refused if hopeless else TooFewSurvivors
        return kind(f"{told}; {error}" if told else error)


class Aggregation(Protocol):
    """Puts one query to the cohort and returns the sum of the answers.

    Raises TooFewSurvivors when there is none; if `revealing` was not called, nothing was spent.
    """

    name: AggregationName

    def collect(self, attempt: Attempt) -> Collected: ...


class SecureAggregation:
    """The sum of those who survived, exactly, and nothing else (see `privsyn_flower.secagg`)."""

    name: AggregationName = "secure"

    def collect(self, attempt: Attempt) -> Collected:
        """Five stages; nodes that fail, refuse or stay silent in any of them drop out."""
        query, ticket, noise = attempt.query, attempt.ticket, attempt.noise
        session = session_for(query, ticket, noise)
        transport = Transport(
            attempt.grid,
            message_type(query.kind, query.options),
            mask_timeout=attempt.timeout,
            stage_timeout=attempt.stage_timeout,
            poll=attempt.poll,
            arrived=attempt.arrived,
            key_filter=policy_key,
            absent=attempt.absent,
        )

        def along(stage: str) -> RecordDict:
            if stage not in ("advertise", "mask"):
                return RecordDict()
            return ask_records(query, ticket, noise, question=stage == "mask")

        weights = {node: facts.weight for node, facts in attempt.cohort.items()}
        try:
            summed = run_session(transport, session, weights, along, attempt.revealing)
        except SecaggError as error:
            raise attempt.failed(str(error)) from None
        return Collected(
            total=_modular_sum(summed.residues, attempt, summed.survivors),
            cohort_size=len(weights),
            nodes_answered=len(summed.survivors),
            bytes_down_per_node=summed.bytes_down_per_node,
            bytes_up_per_node=summed.bytes_up_per_node,
        )


class PlainSum:
    """The trusted aggregator: add up what the nodes send."""

    name: AggregationName = "plain"

    def collect(self, attempt: Attempt) -> Collected:
        """One message per node; nodes that fail, refuse or stay silent are left out."""
        query, noise = attempt.query, attempt.noise
        answers, down = self._answers(attempt)
        weight = sum(attempt.cohort[node].weight for node in answers)
        try:
            check_weight(weight, noise.colluding, noise.min_weight)
        except TooFewSurvivors as error:
            raise attempt.failed(str(error)) from None
        residues = np.zeros(encoded_length(query), dtype=np.uint64)  # (encoded_length,)
        for answer in answers.values():
            residues += answer.residues  # 2^bits divides 2^64: reduced once below
        _reduce(residues, noise.bits)
        return Collected(
            total=_modular_sum(residues, attempt, list(answers)),
            cohort_size=len(attempt.cohort),
            nodes_answered=len(answers),
            bytes_down_per_node=down,
            bytes_up_per_node=max((answer.bytes_up for answer in answers.values()), default=0),
        )

    def _answers(self, attempt: Attempt) -> tuple[dict[int, Answer], int]:
        query, ticket, noise = attempt.query, attempt.ticket, attempt.noise
        messages = [
            ask(query, ticket, noise, node, facts.weight, attempt.timeout)
            for node, facts in attempt.cohort.items()
        ]
        attempt.revealing()
        replies = send_and_wait(
            attempt.grid, messages, attempt.timeout, attempt.arrived, attempt.poll
        )
        length, answers = encoded_length(query), dict[int, Answer]()
        absent = attempt.absent
        absent.update(dict.fromkeys(attempt.cohort, Absence.silence(attempt.timeout)))
        for node, reply in replies.items():
            try:
                answers[node] = read_answer(reply, ticket, length, noise.bits)
                del absent[node]
            except Absent as error:
                absent[node] = error.absence
            except WireError as error:
                absent[node] = Absence(f"sent no answer ({error})")
        log_absent(f"round {ticket.round}", absent, len(messages))
        return answers, record_bytes(messages[0].content) if messages else 0


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "secure": SecureAggregation,
    "plain": PlainSum,
}


def aggregation_of(chosen: AggregationName | Aggregation) -> Aggregation:
    """One of AGGREGATIONS by its name, or what is one. Raises ValueError for anything else."""
    found = AGGREGATIONS[chosen]() if isinstance(chosen, str) and chosen in AGGREGATIONS else chosen
    if isinstance(found, str | type) or not hasattr(found, "collect"):
        names = " or ".join(map(repr, AGGREGATIONS))
        raise ValueError(f"aggregation = {chosen!r} must be {names}, or an object with collect")
    return found


def _is_final(absence: Absence) -> bool:
    """Whether the node would refuse the question again. A policy that names no key looks at what
    was asked before, and an attempt later may pass."""
    passing = absence.code == Refusal.POLICY and (not absence.key or absence.key in PASSING_KEYS)
    return absence.code in FINAL and not passing


def _modular_sum(residues: U64, attempt: Attempt, survivors: list[int]) -> ModularSum:
    weight = float(sum(attempt.cohort[node].weight for node in survivors))
    return ModularSum(residues, attempt.query, attempt.noise, weight)


def _reduce(residues: U64, bits: int) -> None:
    residues &= np.uint64((1 << bits) - 1)
