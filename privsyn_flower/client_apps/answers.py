"""How any query is answered: policy first, then the users' bounded vectors, the node's noise,
and either the plain reply or a stage of the secure sum.

Causes that depend on a user's data never leave the node: whatever goes wrong there becomes a
zero vector plus the node's noise, and is explained in the node's local log only (rule 7).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message

from privsyn_flower.client_apps.node.device import (
    Node,
    UserTexts,
    check_peers,
    check_survivors,
    note_answer_of,
    note_refusal_of,
)
from privsyn_flower.client_apps.node.failures import What, timed
from privsyn_flower.client_apps.node.lifetime import NOTHING, cost
from privsyn_flower.client_apps.node.policy import check_query, check_work
from privsyn_flower.client_apps.node.records_file import RecordsError
from privsyn_flower.client_apps.node.schedule import Schedule, places, public_ids
from privsyn_flower.common.arrays import I64, Bools
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config.api import configured
from privsyn_flower.privacy.accounting.sampling import poisson_sample
from privsyn_flower.privacy.encoding.quantize import node_noise_integers, to_modulus
from privsyn_flower.privacy.encoding.sizing import WrapAround
from privsyn_flower.protocol.noise import (
    MATRIX,
    Noise,
    check_range,
    encoded_length,
    integer_plan,
    total_variation,
    unit_of,
)
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.secure import forget, refusal, respond, session_of, stage_of
from privsyn_flower.protocol.wire import (
    Refusal,
    WireError,
    answer,
    read_ask,
    read_head,
    refuse,
    session_for,
)
from privsyn_flower.secagg import Code, Party, SecaggError, Session
from privsyn_flower.secagg.identity import IdentityError, identity

if TYPE_CHECKING:
    from privsyn_flower.client_apps.node.rows import Row, Terms

logger = logging.getLogger("privsyn_flower")
# Of set-up and protocol only, never user data: logs explain these, and of others tell the type.
EXPLAINED = (WireError, SecaggError, RecordsError, IdentityError, WrapAround)
FAILED = "the users' answers failed; a zero vector is sent instead"


@dataclass(frozen=True)
class Participants:
    """Who takes part in an answer, PRIVATE; both are (users,).

    eligible: whose turn it is, within all limits. sampled: of these, who is in the sum. The node
    does the same work for all who are eligible and sums the sampled: otherwise the time of the
    answer would show who was sampled (`central`: sampled only). round: of the ticket, public.
    """

    eligible: Bools
    sampled: Bools
    round: int = 0


@dataclass(frozen=True)
class Kind:
    """One kind of query. check(query, node): refuses, for public causes only, what this node
    cannot answer. vectors(query, users, participants, plan, node): makes the encoded vectors of all
    `participants.eligible` users (PRIVATE), and returns the sum (encoded_length,) int64 of those in
    `participants.sampled`; plan: an IntegerPlan, of updates a DensePlan. tokens(query): the most
    tokens of one user that models read for a query that passed `check`. rehearse(query, node): what
    an answer computes, on made-up text; raises WireError(MEMORY) where that is too much here."""

    check: Callable[[Query, Node], None]
    vectors: Callable[[Query, UserTexts, Participants, Any, Node], I64]
    tokens: Callable[[Query], int] = lambda query: 0
    rehearse: Callable[[Query, Node], None] = lambda query, node: None


def reply(message: Message, context: Context, node: Node, kind: Kind) -> Message:
    """The reply to a query of this kind, plain or any stage of a secure sum."""
    if stage_of(message) is None:
        return _plain(message, node, kind)
    return _secure(message, context, node, kind)


def _plain(message: Message, node: Node, kind: Kind) -> Message:
    _check(*read_head(message), node, kind, "plain", 1.0)  # before its arrays are unpacked
    query, ticket, noise = read_ask(message, node.facts.weight)
    _check(query, ticket, noise, node, kind, "plain", 1.0)
    check_range(query, noise, noise.min_weight)
    vector = contribution(query, ticket, noise, node, kind)
    if MATRIX in query.options:
        node.records.end_rows(ticket.run, ticket.query, ticket.round)
    return answer(message, ticket, to_modulus(vector, noise.bits), noise.bits)


def _secure(message: Message, context: Context, node: Node, kind: Kind) -> Message:
    stage, session = stage_of(message), session_of(message, context.state)
    try:
        head = _read_query(message, str(stage), session, node, kind)
    except BaseException:
        forget(context.state)
        raise

    def vector(session: Session, weight: int) -> I64:
        if head is None:
            raise SecaggError(Code.SESSION, "a masked vector needs the question")
        query, ticket, noise = head
        _check(query, ticket, noise, node, kind, "secure", noise.colluding / weight)
        check_range(query, noise, weight)
        return contribution(query, ticket, noise, node, kind)

    party = Party(
        node_id=context.node_id,
        weight=node.facts.weight,
        identity=identity(node.cache),
        trust=lambda cohort: check_peers(cohort, node),
        accept=lambda cohort, listed: check_survivors(cohort, listed, node),
        vector=vector,
        once=lambda stage, s: node.records.mark_stage(stage, s.run, s.query, s.round, s.attempt),
    )
    return respond(message, context.state, party)


def _read_query(
    message: Message, stage: str, session: Session, node: Node, kind: Kind
) -> tuple[Query, Ticket, Noise] | None:
    """The question, checked, of the two stages that carry its head; None of the others."""
    if stage not in ("advertise", "mask"):
        return None
    head = read_head(message)
    if stage == "mask":
        _check(*head, node, kind, "secure", 1.0)  # before its arrays are unpacked
        head = read_ask(message)
    bound = session_for(*head)
    # Without its arrays the head has another digest; everything else must agree.
    expected = replace(bound, context=session.context) if stage == "advertise" else bound
    if session != expected:
        raise SecaggError(Code.SESSION, "the session does not belong to the question")
    _check(*head, node, kind, "secure", 1.0)
    return head


def _check(
    query: Query,
    ticket: Ticket,
    noise: Noise,
    node: Node,
    kind: Kind,
    aggregation: str,
    colluding_share: float,
) -> None:
    """The owner's policy, then the kind's own conditions, before a private text is opened."""
    if ticket.query != query.kind:
        raise WireError(Refusal.MALFORMED, f"a ticket for {ticket.query!r} on {query.kind!r}")
    group, own = query.options.get("resources"), node.facts.resources
    if group is not None and group != own:
        raise WireError(Refusal.SETUP, f"a question for {group!r} nodes: resources = {own!r} here")
    schedule, terms = Schedule.of(query), _terms(query, ticket, noise)
    if node.policy is not None:
        check_query(
            node.policy,
            aggregation=aggregation,
            kind=query.kind,
            noise_multiplier=terms.multiplier if terms else noise.multiplier,
            min_weight=noise.min_weight,
            colluding=colluding_share,
            length=query.length,
            neighbors=int(query.options.get("neighbors", 1)),
            model=query.model,
            round=ticket.round,
            source=noise.source,
            # With a rota over users all nodes answer; only users whose turn it is are in the sum.
            cycle=schedule.cycle or 1,
            past_vectors=terms.matrix.bands - 1 if terms else 0,
        )
    kind.check(query, node)
    if node.policy is not None:
        check_work(node.policy, kind.tokens(query))
    if group is not None:  # by a question that this node would answer
        node.records.join(ticket.run, own)


def _terms(query: Query, ticket: Ticket, noise: Noise) -> Terms | None:
    """Of a question whose answers are rows of a matrix. Raises WireError(MALFORMED)."""
    if MATRIX not in query.options:
        return None
    from privsyn_flower.client_apps.node.rows import Terms  # votes need none of it

    return Terms.of(query, ticket, noise)


def contribution(query: Query, ticket: Ticket, noise: Noise, node: Node, kind: Kind) -> I64:
    """The node's integers (length,), PRIVATE: its users' encoded vectors, and its noise.

    The node's records say first that this ticket is answered, and by which users.
    """
    taken = node.facts.weight
    try:
        with timed(node.timings, ticket, node.facts.weight):
            kind.rehearse(query, node)  # first: beside texts, a lack of room would tell their size
            share = _noise_share(query, ticket, noise, node)
            try:
                users = _users_or_none(node)
                participants, row = _participants(users, query, ticket, noise, node)
                taken = int(np.count_nonzero(participants.eligible)) if users else taken
                own = partial(_vectors_or_zero, query, noise, users, participants, node, kind)
                return share + (row.vector(own, len(share), node) if row else own())
            except MemoryError as error:  # around the texts, not in them
                node.failed("answer", error, taken, FAILED)
                return share
    finally:
        node.failures.write(node.cache, ticket, taken)


def _noise_share(query: Query, ticket: Ticket, noise: Noise, node: Node) -> I64:
    """The noise of this node's users (encoded_length,); zeros where the aggregator adds it."""
    length = encoded_length(query)
    if noise.source == "aggregator":
        return np.zeros(length, dtype=np.int64)
    rng = None
    if node.noise_seed is not None:  # simulation only; announced, and marked in the ledger
        rng = seeded(node.noise_seed, ticket.round, "noise", node.facts.partition)
    weight, norm = node.facts.weight, noise.sensitivity * unit_of(query)
    return node_noise_integers(length, weight, noise.min_weight, noise.multiplier, norm, rng)


def _users_or_none(node: Node) -> UserTexts:
    """The node's users without those who withdrew; nobody when their file cannot be read."""
    with contextlib.suppress(Exception):  # a full disk must not change the answer
        node.log()
    users: UserTexts = {}
    what = "the users cannot be read; nobody takes part"
    with _data_failures(node, "users", node.facts.weight, what):
        users = node.load()
    if node.policy is not None and users:
        gone = node.records.withdrawn(list(users))
        users = {name: users[name] for name, out in zip(users, gone, strict=True) if not out}
    return users


def _due(users: UserTexts, schedule: Schedule, round: int, node: Node) -> Bools:
    """Whose turn it is (users,): without a rota everybody's.

    A device goes by its records' ids, so that users of one name on many devices have different
    turns. A simulation repeated in another folder must ask the same users, so it goes by public
    ids and the node's partition.
    """
    if not schedule.cycle:
        return np.ones(len(users), dtype=np.bool_)
    names = list(users)
    if node.policy is None:
        return schedule.due(places(public_ids(names), node.facts.partition), round)
    return schedule.due(places(node.records.ids(names)), round)


def _participants(
    users: UserTexts, query: Query, ticket: Ticket, noise: Noise, node: Node
) -> tuple[Participants, Row | None]:
    """Who takes part: due, within all limits, and drawn by client-side Poisson sampling.

    Writes down that this ticket is answered; raises WireError when it was answered before, or
    when the node is asked sooner or more often than the question's own schedule says. No
    limit depends on the sampling: that a user was not drawn must not show later.
    """
    schedule = Schedule.of(query)
    eligible = _due(users, schedule, ticket.round, node)
    due = [name for name, is_due in zip(users, eligible, strict=True) if is_due]
    asking = (ticket.run, ticket.query, ticket.round, ticket.attempt, due)
    row, spent = None, NOTHING
    if terms := _terms(query, ticket, noise):
        row = terms.take(node.records, due, node.policy, schedule)
        eligible[eligible] = row.eligible
        spent = terms.again if row.repeated else terms.first
    elif node.policy is None:
        eligible[eligible] = node.records.schedule(*asking, schedule)
    else:
        distance = total_variation(query, noise)
        eligible[eligible] = node.records.take(
            *asking, noise.multiplier, distance, node.policy, schedule
        )
        spent = cost(noise.multiplier, distance)
    note_answer_of(node, ticket, spent)
    sampled = eligible & poisson_sample(len(users), noise.sampling_rate)
    return Participants(sampled if node.central else eligible, sampled, ticket.round), row


def _vectors_or_zero(
    query: Query, noise: Noise, users: UserTexts, participants: Participants, node: Node, kind: Kind
) -> I64:
    vector = np.zeros(encoded_length(query), dtype=np.int64)
    with _data_failures(node, "answer", int(np.count_nonzero(participants.eligible)), FAILED):
        vector = kind.vectors(query, users, participants, integer_plan(query, noise), node)
    return vector  # noqa: RET504 - zeros when the line above was cut short


@contextlib.contextmanager
def _data_failures(node: Node, kind: What, users: int, text: str):  # type: ignore[no-untyped-def]
    """Whatever the users' data raises ends here, memory and Rust panics included: a refusal, or
    silence, would tell of the data. Only users that do not fit the declared weight are refused."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if kind == "users" and isinstance(error, WireError) and error.code is Refusal.SETUP:
            raise
        node.failed(kind, error, users, text)


def guarded(
    message: Message, handler: Callable[[], Message], context: Context | None = None
) -> Message:
    """Run a handler so that only codes and policy keys leave the node; texts go to its own log."""

    def refused(code: Refusal | Code, error: Exception, key: str = "") -> Message:
        text = str(error) if isinstance(error, EXPLAINED) else type(error).__name__
        logger.warning("refused: %s", text)
        note_refusal_of(context, code.value, text)
        if stage_of(message) is not None:
            return refusal(message, code.value, key)
        return refuse(message, code if isinstance(code, Refusal) else Refusal.MALFORMED, key)

    try:
        with configured():  # a node has keys
            return handler()
    except (WireError, SecaggError) as error:
        return refused(error.code, error, error.key if isinstance(error, WireError) else "")
    except MemoryError as error:
        return refused(Refusal.MEMORY, error)
    except Exception as error:
        return refused(Refusal.SETUP, error)
