"""A question about the arrays of somebody else's app, and the app's function: what both kinds,
update and evaluation, read before the function is called, and how it is called for one user."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from privsyn_flower.client_apps.answers import Kind
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.failures import place_of
from privsyn_flower.client_apps.node.schedule import LARGEST_NUMBER
from privsyn_flower.common.randomness import own_randomness
from privsyn_flower.protocol.question import METRICS, TO_COME, Query
from privsyn_flower.protocol.wire import Refusal, WireError, read_head
from privsyn_flower.training.layout import Layout

Arrays = Mapping[str, NDArray[Any]]
Ask = Callable[[Query, Arrays, str], Message]  # the function's reply for one user, PRIVATE

ORDER = "arrays"  # the option with the arrays' names in the ServerApp's order, a JSON list
CONFIG = "config."  # what the options of the ServerApp's own config begin with
ROUND = "server-round"  # the option with the round, where it is not the question's own


def read_parameters(query: Query) -> dict[str, NDArray[Any]]:
    """The question's arrays, in the ServerApp's order: PUBLIC.

    Raises WireError on what is no safetensors file, is another model than it says, or has entries
    that are not finite.
    """
    from safetensors.numpy import load

    if query.rows.size or set(query.extra) != {"parameters"}:
        raise malformed("the question's arrays are not its parameters alone")
    packed = query.extra["parameters"]
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise malformed(f"parameters of {packed.dtype} {packed.shape} are no bytes")
    try:
        arrays: dict[str, NDArray[Any]] = load(packed.tobytes())
        layout = Layout.of(arrays)
    except Exception as error:  # a hostile header can raise anything
        raise malformed(f"no parameters of a model ({type(error).__name__})") from None
    if layout.digest() != query.model:
        raise WireError(Refusal.MODEL, f"the arrays are not those of the model {query.model!r}")
    for name in layout.names:
        if not np.isfinite(arrays[name]).all():
            raise malformed(f"{name} has entries that are not finite")
    return {name: arrays[name] for name in _order(query, arrays)}


def _order(query: Query, arrays: Arrays) -> list[str]:
    """The arrays' names in the order of the ServerApp's ArrayRecord, which safetensors forgets."""
    order = read_list(query, ORDER)
    if not all(isinstance(name, str) for name in order):
        raise malformed(f"option {ORDER!r} is no list of names")
    if sorted(order) != sorted(arrays):
        raise malformed(f"option {ORDER!r} does not name the arrays that came")
    return order


def read_list(query: Query, key: str) -> list[Any]:
    """An option that is a JSON list. Raises WireError(MALFORMED)."""
    try:
        found = json.loads(str(query.options[key]))
    except (KeyError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise malformed(f"option {key!r} is no list")
    return found


def asking(
    function: Callable[[Message, Any], Message], message: Message, context: Any, *, named: bool
) -> Ask:
    """How the function is called for one user, with random draws of its own.

    named: with the user's id in its config.
    """
    partition = str(context.node_config.get("partition-id", 0))

    def one(query: Query, arrays: Arrays, user: str) -> Message:
        given = _user_message(message, query, arrays, user if named else None)
        rnd = str(given.content["config"]["server-round"])
        with own_randomness(message.metadata.message_type, rnd, partition, ascii(user)):
            return function(given, context)

    return one


def _user_message(message: Message, query: Query, arrays: Arrays, user: str | None) -> Message:
    """What the function would get from Flower's FedAvg: nobody else's copy of it."""
    config: dict[str, Any] = {
        key.removeprefix(CONFIG): value
        for key, value in query.options.items()
        if key.startswith(CONFIG)
    }
    config["server-round"] = query.options.get(ROUND, read_head(message)[1].round)
    if user is not None:
        config["user"] = user
    own = copy.copy(message)
    own.content = RecordDict()
    own = copy.deepcopy(own)  # metadata of its own, too: the node's reply takes the message's
    records = {name: Array(array) for name, array in arrays.items()}
    own.content = RecordDict({"arrays": ArrayRecord(records), "config": ConfigRecord(config)})
    return own


def evaluation_to_come(query: Query) -> Query | None:
    """The evaluation that a training announces, about the arrays of the training; None: none.
    Raises WireError(MALFORMED)."""
    if TO_COME not in query.options:
        return None
    try:
        options = json.loads(str(query.options[TO_COME]))
    except (ValueError, RecursionError):
        options = None
    known = (str, int, float)
    if not isinstance(options, dict) or not all(isinstance(v, known) for v in options.values()):
        raise malformed(f"option {TO_COME!r} holds no options")
    return replace(query, kind="evaluation", options=options)


def with_rehearsal(
    kind: Kind,
    rehearse: Ask,
    read: Callable[[Query, Arrays, Message], object],
    passed: set[str],
    about: Callable[[Query], Query | None] = lambda query: query,
) -> Kind:
    """A kind that first tries the app's code on made-up data, once a process and model.

    rehearse(query, arrays, user): the reply of the author's own check. read: raises what the node
    would find wrong with such a reply. passed: what went well. about: the question that is tried,
    given the one that came; None: nothing is. Nobody's data is opened, so what goes wrong may be
    told by a code: WireError(SETUP).
    """

    def check(query: Query, node: Node) -> None:
        kind.check(query, node)
        tried = about(query)
        if tried is None or not query.extra:  # the head alone brings no arrays
            return
        question = f"{tried.model} {tried.options.get(METRICS, '')}"
        if question in passed:
            return
        arrays = read_parameters(tried)
        try:
            read(tried, arrays, rehearse(tried, arrays, ""))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            with contextlib.suppress(Exception):
                node.log().error("the app's check on made-up data failed", exc_info=error)
            raise WireError(
                Refusal.SETUP,
                f"the app's check on made-up data failed: {type(error).__name__} at "
                f"{place_of(error)}; {node.cache / 'node.log'} has more",
            ) from None
        passed.add(question)

    return replace(kind, check=check)


def check_round(query: Query) -> None:
    """Raises WireError unless the option of the round, if it is there, is a round's number."""
    rnd = query.options.get(ROUND, 1)
    if type(rnd) is not int or not 1 <= rnd <= LARGEST_NUMBER:
        raise malformed(f"{ROUND} = {rnd!r} is no round")


@contextlib.contextmanager
def alone(node: Node, what: str) -> Iterator[None]:
    """What one user's data raises ends here, sys.exit() included: that user is zeros.

    what: of the function, for the node's local log.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        node.failed(
            "answer", error, 1, f"the {what} function failed for one user, who counts nothing"
        )


def malformed(text: str) -> WireError:
    """The refusal of a question that makes no sense."""
    return WireError(Refusal.MALFORMED, f"the question is malformed: {text}")
