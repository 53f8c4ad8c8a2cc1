"""Private training in somebody else's ClientApp: one decorator under Flower's `@app.train()`.

The function stays what it is under Flower's FedAvg: parameters in, parameters out. It no longer
meets the server: the wrapper answers the greeting, every stage of the secure sum and the plain
question, and calls the function only where a user's vector is made. What the function returns
becomes the change of the parameters, clipped (McMahan et al. 2018, Algorithm 1) and encoded;
its metrics and its number of examples are dropped, and so is whatever it raises.
`evaluation.py` does the same for an evaluate function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from privsyn_flower.client_apps.answers import Kind, Participants, guarded, reply
from privsyn_flower.client_apps.dropin.question import (
    Arrays,
    Ask,
    alone,
    asking,
    check_round,
    evaluation_to_come,
    malformed,
    read_parameters,
    with_rehearsal,
)
from privsyn_flower.client_apps.node.device import (
    Node,
    UserTexts,
    in_simulation,
    own_log_format,
    own_path,
    own_resources,
)
from privsyn_flower.client_apps.node.policy import load_policy
from privsyn_flower.common.arrays import F64, I64
from privsyn_flower.common.files import node_home
from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.data.findings import NODE_LOG
from privsyn_flower.data.values import shared_id, to_name
from privsyn_flower.privacy.encoding.dense import DensePlan, encode_dense
from privsyn_flower.protocol.greeting import Hello, answer_hello, is_hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.queries.updates import shard_updates, update_bound
from privsyn_flower.training.layout import Layout, trained_layout

Handler = Callable[[Message, Context], Message]
Users = Callable[[Context], Sequence[str]]
Weight = Callable[[Context], int]
ReplyReader = Callable[[Query, Arrays, Message], object]

# Of a device's node config; others are the app's own.
DROPIN_KEYS = {"cache", "policy", "weight", "resources", "log-format"}
ONE_USER = "user"  # of a ClientApp that names none
# Of evaluate functions, by the module they are of: the author's check, and what reads its reply.
EVALUATION_CHECKS: dict[str, tuple[Handler, ReplyReader]] = {}
EVALUATED = set[str]()  # modules with an evaluate function that is private


@overload
def private_training(function: Handler) -> Handler: ...
@overload
def private_training(
    *, users: Users | None = None, weight: Weight | None = None, check: Handler | None = None
) -> Callable[[Handler], Handler]: ...
def private_training(
    function: Handler | None = None,
    *,
    users: Users | None = None,
    weight: Weight | None = None,
    check: Handler | None = None,
) -> Handler | Callable[[Handler], Handler]:
    """A train function of Flower's whose results only ever leave the node in a private sum.

    Below `@app.train()`, with or without arguments. function(message, context) -> Message gets
    the round's parameters as the ArrayRecord "arrays", and the ConfigRecord "config" with
    `train_config` and "server-round"; its reply holds one ArrayRecord with the same names and
    shapes. The server must run DPFedAvg or DPFTRL: any other train message is refused. How long
    the function takes is seen by the server: bound it by something public, as a number of steps.

    users: context -> ids of the users this node hosts; the function is then called for each, with
    the id as config["user"]. Without it the ClientApp is one user. weight: context -> the public
    number of users it stands for in a simulation, by default how many `users` names; on a device
    it is `weight` of the node config. A user whose function fails counts as zeros, and so does one
    whom client-side sampling leaves out: the function is called for all alike. Nothing that one
    user's call leaves behind, as in a global or in context.state, may reach another user's: the
    noise is made for a user who moves one vector. The global generators of Python, numpy and torch
    are seen to here: each call draws by itself (`randomness.own_randomness`).

    check: a function like the train function that does the same on a few rows of made-up data, and
    opens no private ones. It is called with the first round's parameters in each process, before
    any user's data is opened: when it raises, or returns other arrays, the node refuses with
    `node-setup`, and nothing is spent. Without it such a mistake makes all users zeros, unseen.
    The check of an evaluate function of the same module is called then, too, where the run has
    such an evaluation.
    """

    def decorated(function: Handler) -> Handler:
        kind: Callable[[Ask], Kind] = lambda one: Kind(check_update, _vectors(one))  # noqa: E731

        def read_reply(query: Query, arrays: Arrays, reply: Message) -> object:
            return _returned(reply, arrays)

        return answering(function, users, weight, kind, check, read_reply)

    return decorated if function is None else decorated(function)


def answering(
    function: Handler,
    users: Users | None,
    weight: Weight | None,
    kind: Callable[[Ask], Kind],
    check: Handler | None,
    read_reply: ReplyReader,
    *,
    trains: bool = True,
) -> Handler:
    """A handler of Flower's that calls the app's function only where a user's vector is made.

    kind: of question that it answers, given how the function is called for one user. check: the
    author's, on made-up data. read_reply(query, arrays, reply): what the node takes from a reply,
    or raises. trains: it is the train function, before whose rounds the evaluation is checked.
    """
    passed, measured = set[str](), set[str]()

    @functools.wraps(function)
    def handler(message: Message, context: Context) -> Message:
        def answer() -> Message:
            node = open_dropin(context, users, weight)
            if is_hello(message):
                return answer_hello(message, node.facts)
            answers = kind(asking(function, message, context, named=users is not None))
            if check is not None:
                rehearse = asking(check, message, context, named=False)
                answers = with_rehearsal(answers, rehearse, read_reply, passed)
            if trains and function.__module__ in EVALUATION_CHECKS:
                own, read = EVALUATION_CHECKS[function.__module__]
                rehearse = asking(own, message, context, named=False)
                answers = with_rehearsal(answers, rehearse, read, measured, evaluation_to_come)
            return reply(message, context, node, answers)

        return guarded(message, answer, context)

    return handler


def open_dropin(context: Context, users: Users | None = None, weight: Weight | None = None) -> Node:
    """The node of a drop-in app; its `load` gives users without texts. Raises WireError(SETUP)."""
    config = context.node_config
    deployed = bool(DROPIN_KEYS & set(config)) or not in_simulation(context)
    partition = int(config.get("partition-id", 0))

    def named() -> list[str]:
        return [ONE_USER] if users is None else list(users(context))

    if deployed:
        stands_for: Any = config.get("weight", 1)
        cache = own_path(config, "cache") or node_home()
    else:
        stands_for = len(named()) if weight is None else weight(context)
        place = f"{partition}-of-{config.get('num-partitions', 1)}"
        cache = cache_folder(RunConfig()) / "nodes" / "drop-in" / place
    if type(stands_for) is not int or stands_for < 1:  # a boolean is no number to us
        raise WireError(Refusal.SETUP, f"weight = {stands_for!r} must be a whole number above 0")

    def load() -> UserTexts:
        found = named()
        # Who is hosted is public: refused, rather than dropped in silence.
        if len(found) > stands_for or not all(isinstance(user, str) for user in found):
            raise WireError(
                Refusal.SETUP,
                f"users must be at most weight = {stands_for} strings, {len(found)} are named",
            )
        users: dict[str, list[str]] = {}
        known = {""}
        for user in found:  # the function gets its own spelling of an id
            if problem := shared_id(user):  # alone: it must not decide who else takes part
                NODE_LOG.warning("an id is left out: %s; %s", *problem)
                continue
            if to_name(user) in known:
                NODE_LOG.warning("an id that is empty, or another's but for blanks, is left out")
                continue
            known.add(to_name(user))
            users[user] = []
        return users

    return Node(
        facts=Hello(
            stands_for,
            partition,
            deployed,
            resources=own_resources(config),
            evaluates=bool(EVALUATED),
        ),
        cache=cache,
        embedder="",
        device="",
        policy=_policy(config) if deployed else None,
        noise_seed=None,
        load=load,
        log_format=own_log_format(config),
    )


def _policy(config: Mapping[str, Any]) -> Any:
    try:
        return load_policy(own_path(config, "policy"))
    except ConfigError as error:
        raise WireError(Refusal.SETUP, str(error)) from None


def check_update(query: Query, node: Node) -> None:
    """Refuse a question that makes no sense, before the function sees it."""
    check_round(query)
    clip_norm, indicator = _clipping(query)
    try:
        bound = update_bound(clip_norm, indicator)
    except ValueError as error:
        raise malformed(str(error)) from None
    if not math.isclose(bound, query.bound, rel_tol=1e-6):
        raise malformed(f"a bound of {query.bound} for clip-norm = {clip_norm} is not {bound}")
    if query.rows.size or query.extra:  # else this is the head alone
        _parameters(query)


def _clipping(query: Query) -> tuple[float, float]:
    """clip-norm and indicator of a question. Raises WireError."""
    values = query.options.get("clip-norm"), query.options.get("indicator", 0.0)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise malformed(f"clip-norm, indicator = {values!r} are no numbers")
    return float(values[0] or 0.0), float(values[1])


def _parameters(query: Query) -> tuple[dict[str, NDArray[Any]], Layout]:
    """The round's arrays, in the ServerApp's order, and which of them are trained: PUBLIC.

    Raises WireError as `read_parameters`, and where nothing is trained or the length is another.
    """
    arrays = read_parameters(query)
    try:
        layout = trained_layout(arrays, query.options)
    except ValueError as error:
        raise malformed(str(error)) from None
    if query.length != layout.length + (_clipping(query)[1] > 0):
        raise malformed(f"{layout.length} parameters with an answer of {query.length} numbers")
    return arrays, layout


def _vectors(train: Ask) -> Callable[..., I64]:
    """What makes the sum of the encoded updates (padded_length,), PRIVATE, of those sampled.

    train(query, arrays, user): the function's reply for one user.
    """

    def vectors(
        query: Query, users: UserTexts, participants: Participants, plan: DensePlan, node: Node
    ) -> I64:
        arrays, layout = _parameters(query)
        before = layout.flatten(arrays)
        clip_norm, indicator = _clipping(query)

        def delta(user: str) -> F64 | None:
            change = None
            with alone(node, "train"):
                change = layout.flatten(_returned(train(query, arrays, user), arrays)) - before
                if not np.isfinite(change).all():
                    raise ValueError("the train function returned entries that are not finite")
            return change

        return shard_updates(
            (
                delta(user)
                for user, asked in zip(users, participants.eligible, strict=True)
                if asked
            ),
            sampled=participants.sampled[participants.eligible],
            length=query.length,
            clip_norm=clip_norm,
            indicator=indicator,
            encode=lambda vector: encode_dense(vector, plan, query.rotation),
        )

    return vectors


def _returned(answer: Message, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of the function's reply, PRIVATE. Raises ValueError when they are not its own."""
    records = list(answer.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"the train function returned {len(records)} ArrayRecords, expected one")
    found = {name: array.numpy() for name, array in records[0].items()}
    got = {name: (array.shape, array.dtype.kind) for name, array in found.items()}
    expected = {name: (array.shape, array.dtype.kind) for name, array in arrays.items()}
    if got != expected:
        odd = sorted({*got, *expected}, key=str)
        odd = [name for name in odd if got.get(name) != expected.get(name)]
        raise ValueError(
            f"the train function must return the arrays it was given; {odd[:5]} differ in name, "
            "shape or kind of number"
        )
    return found
