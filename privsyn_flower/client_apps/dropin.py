"""Private training in somebody else's ClientApp: one decorator under Flower's `@app.train()`.

The function stays what it is under Flower's FedAvg: parameters in, parameters out. It no longer
meets the server: the wrapper answers the greeting, every stage of the secure sum and the plain
question, and calls the function only where a user's vector is made. What the function returns
becomes the change of the parameters, clipped (McMahan et al. 2018, Algorithm 1) and encoded;
its metrics and its number of examples are dropped, and so is whatever it raises.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from privsyn_flower.client_apps.answers import Kind, guarded, reply
from privsyn_flower.client_apps.node import Node, UserTexts, in_simulation
from privsyn_flower.client_apps.policy import load_policy
from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.greeting import Hello, answer_hello, is_hello
from privsyn_flower.privacy.dense import DensePlan, encode_dense
from privsyn_flower.queries.updates import shard_updates, update_bound
from privsyn_flower.question import Query
from privsyn_flower.training.layout import Layout, trained_layout
from privsyn_flower.wire import Refusal, WireError, read_head

Train = Callable[[Message, Context], Message]
Users = Callable[[Context], Sequence[str]]
Weight = Callable[[Context], int]
Arrays = Mapping[str, NDArray[Any]]

DROPIN_KEYS = {"cache", "policy", "weight"}  # of a device's node config; others are the app's own
ORDER = "arrays"  # the option with the arrays' names in the ServerApp's order, a JSON list
CONFIG = "config."  # what the options of the ServerApp's own train_config begin with
ONE_USER = "user"  # of a ClientApp that names none


@overload
def private_training(function: Train) -> Train: ...
@overload
def private_training(
    *, users: Users | None = None, weight: Weight | None = None
) -> Callable[[Train], Train]: ...
def private_training(
    function: Train | None = None, *, users: Users | None = None, weight: Weight | None = None
) -> Train | Callable[[Train], Train]:
    """A train function of Flower's whose results only ever leave the node in a private sum.

    Below `@app.train()`, with or without arguments. function(message, context) -> Message gets
    the round's parameters as the ArrayRecord "arrays", and the ConfigRecord "config" with
    `train_config` and "server-round"; its reply holds one ArrayRecord with the same names and
    shapes. The server must run DPFedAvg or DPFTRL: any other train message is refused. How long
    the function takes is seen by the server: bound it by something public, as a number of steps.

    users: context -> ids of the users this node hosts; the function is then called for each, with
    the id as config["user"]. Without it the ClientApp is one user. weight: context -> the public
    number of users it stands for in a simulation, by default how many `users` names; on a device
    it is `weight` of the node config. A user whose function fails counts as zeros.
    """

    def decorated(function: Train) -> Train:
        @functools.wraps(function)
        def train(message: Message, context: Context) -> Message:
            def one(query: Query, arrays: Arrays, user: str) -> Message:
                name = None if users is None else user
                return function(_asked(message, query, arrays, name), context)

            def answer() -> Message:
                node = open_dropin(context, users, weight)
                if is_hello(message):
                    return answer_hello(message, node.facts)
                return reply(message, context, node, Kind(check_update, _vectors(one)))

            return guarded(message, answer)

        return train

    return decorated if function is None else decorated(function)


def open_dropin(context: Context, users: Users | None = None, weight: Weight | None = None) -> Node:
    """The node of a drop-in app; its `load` gives users without texts. Raises WireError(SETUP)."""
    config = context.node_config
    deployed = bool(DROPIN_KEYS & set(config)) or not in_simulation()
    partition = int(config.get("partition-id", 0))

    def named() -> list[str]:
        return [ONE_USER] if users is None else list(users(context))

    if deployed:
        stands_for: Any = config.get("weight", 1)
        cache = Path(str(config.get("cache", "~/.cache/privsyn-flower-node"))).expanduser()
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
        return {user: [] for user in found}

    return Node(
        facts=Hello(stands_for, partition, deployed=deployed),
        cache=cache,
        embedder="",
        device="",
        policy=_policy(config) if deployed else None,
        noise_seed=None,
        load=load,
    )


def _policy(config: Mapping[str, Any]) -> Any:
    named = str(config.get("policy", ""))
    try:
        return load_policy(Path(named).expanduser() if named else None)
    except ConfigError as error:
        raise WireError(Refusal.SETUP, str(error)) from None


def check_update(query: Query, node: Node) -> None:
    """Refuse a question that makes no sense, before the function sees it."""
    clip_norm, indicator = _clipping(query)
    try:
        bound = update_bound(clip_norm, indicator)
    except ValueError as error:
        raise _malformed(str(error)) from None
    if not math.isclose(bound, query.bound, rel_tol=1e-6):
        raise _malformed(f"a bound of {query.bound} for clip-norm = {clip_norm} is not {bound}")
    if query.rows.size or query.extra:  # else this is the head alone
        _parameters(query)


def _clipping(query: Query) -> tuple[float, float]:
    """clip-norm and indicator of a question. Raises WireError."""
    values = query.options.get("clip-norm"), query.options.get("indicator", 0.0)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _malformed(f"clip-norm, indicator = {values!r} are no numbers")
    return float(values[0] or 0.0), float(values[1])


def _parameters(query: Query) -> tuple[dict[str, NDArray[Any]], Layout]:
    """The round's arrays, in the ServerApp's order, and which of them are trained: PUBLIC.

    Raises WireError on what is no safetensors file, has other arrays than it says, or entries
    that are not finite.
    """
    from safetensors.numpy import load

    if query.rows.size or set(query.extra) != {"parameters"}:
        raise _malformed("the question's arrays are not its parameters alone")
    packed = query.extra["parameters"]
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise _malformed(f"parameters of {packed.dtype} {packed.shape} are no bytes")
    try:
        arrays: dict[str, NDArray[Any]] = load(packed.tobytes())
        layout = trained_layout(arrays, query.options)
    except Exception as error:  # a hostile header can raise anything
        raise _malformed(f"no parameters to train ({type(error).__name__})") from None
    if Layout.of(arrays).digest() != query.model:
        raise WireError(Refusal.MODEL, f"the arrays are not those of the model {query.model!r}")
    if query.length != layout.length + (_clipping(query)[1] > 0):
        raise _malformed(f"{layout.length} parameters with an answer of {query.length} numbers")
    for name in layout.names:
        if not np.isfinite(arrays[name]).all():
            raise _malformed(f"{name} has entries that are not finite")
    return {name: arrays[name] for name in _order(query, arrays)}, layout


def _order(query: Query, arrays: Arrays) -> list[str]:
    """The arrays' names in the order of the ServerApp's ArrayRecord, which safetensors forgets."""
    try:
        order = json.loads(str(query.options[ORDER]))
    except (KeyError, ValueError, RecursionError):
        raise _malformed(f"option {ORDER!r} is no list of names") from None
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise _malformed(f"option {ORDER!r} is no list of names")
    if sorted(order) != sorted(arrays):
        raise _malformed(f"option {ORDER!r} does not name the arrays that came")
    return order


def _vectors(train: Callable[[Query, Arrays, str], Message]) -> Callable[..., NDArray[np.int64]]:
    """What makes the sum of the encoded updates (padded_length,), PRIVATE, of who takes part.

    train(query, arrays, user): the function's reply for one user.
    """

    def vectors(
        query: Query, users: UserTexts, taking: NDArray[np.bool_], plan: DensePlan, node: Node
    ) -> NDArray[np.int64]:
        arrays, layout = _parameters(query)
        before = layout.flatten(arrays)
        clip_norm, indicator = _clipping(query)

        def delta(user: str) -> NDArray[np.float64] | None:
            change = None
            with _alone(node):
                change = layout.flatten(_returned(train(query, arrays, user), arrays)) - before
                if not np.isfinite(change).all():
                    raise ValueError("the train function returned entries that are not finite")
            return change

        return shard_updates(
            (delta(user) for user, takes in zip(users, taking, strict=True) if takes),
            length=query.length,
            clip_norm=clip_norm,
            indicator=indicator,
            encode=lambda vector: encode_dense(vector, plan, query.rotation),
        )

    return vectors


def _asked(message: Message, query: Query, arrays: Arrays, user: str | None) -> Message:
    """What the function would get from Flower's FedAvg: nobody else's copy of it."""
    config: dict[str, Any] = {
        key.removeprefix(CONFIG): value
        for key, value in query.options.items()
        if key.startswith(CONFIG)
    }
    config["server-round"] = read_head(message)[1].round
    if user is not None:
        config["user"] = user
    own = copy.copy(message)
    own.content = RecordDict()
    own = copy.deepcopy(own)  # metadata of its own, too: the node's reply takes the message's
    records = {name: Array(array) for name, array in arrays.items()}
    own.content = RecordDict({"arrays": ArrayRecord(records), "config": ConfigRecord(config)})
    return own


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


@contextlib.contextmanager
def _alone(node: Node):  # type: ignore[no-untyped-def]
    """What one user's training raises ends here, sys.exit() included: that user is zeros."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            node.log().exception("the train function failed for one user, who counts nothing")


def _malformed(text: str) -> WireError:
    return WireError(Refusal.MALFORMED, f"the update query is malformed: {text}")
