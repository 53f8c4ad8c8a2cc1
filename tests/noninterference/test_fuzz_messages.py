"""Every message handler of a node under messages that no honest server sends.

Two nodes that differ in one user's texts alone get the same messages: stages of a valid run up to
some point, then changed, repeated and unordered ones. No exception leaves a node, a reply is a
known code or an answer, both nodes say the same bytes, and memory stays bounded.
"""

from __future__ import annotations

import functools
import itertools
import logging
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.protocol.wire import POLICY_KEYS, Refusal
from privsyn_flower.secagg.cohort import Code
from privsyn_flower.training.models import LoadedLM
from tests.conftest import node_context
from tests.fuzz import fuzz_settings

from .hostile import neighbour, write
from .mutations import changes
from .rig import HANDLERS, Rig, Stream, forced, received, rig, travelled
from .rows import rows_world
from .worlds import HOSTED, Case, app_world, evaluate, population, train, world

__all__ = ["forced", "rig"]  # fixtures
NODE = 2  # the target's
MEMORY = 96 * 2**20  # bytes that one message may make a node take, of models as small as these
CODES = {code.value for code in (*Refusal, *Code)} | {"ok"}
FUZZED = [
    Case("pretext", True, "jsonl", values=(("aggregation", "plain"),)),
    Case("pretext", True, "jsonl"),
    Case("pe", True, "jsonl", labels=True, values=(("aggregation", "plain"),)),
    Case("popri", True, "jsonl", labels=True, values=(("aggregation", "plain"),)),
    Case("popri", True, "jsonl", values=(("popri.dimension", 8),)),
    Case("dp-fedavg", True, "jsonl", values=(("aggregation", "plain"),)),
    Case("dp-fedavg", True, "jsonl", values=(("training.adaptive-clipping", True),)),
    Case("dp-ftrl", True, "jsonl"),
    Case("matrix", True, "jsonl", values=(("aggregation", "plain"),)),
    Case("matrix", True, "jsonl"),
    Case("ctcl", True, "jsonl", values=(("aggregation", "plain"),)),
    Case("app", True, "jsonl", values=(("aggregation", "plain"),)),
    Case("app", True, "jsonl"),
]


class Twin:
    """One of two nodes: a deployed node whose disk and state can be put back."""

    def __init__(self, folder: Path, config: dict[str, Any], app: bool) -> None:
        self.folder, self.config, self.app = folder, config, app
        self.places: list[tuple[Path, RecordDict]] = []  # after so many messages of the run
        self.context = node_context({**config, "cache": str(folder / "now")}, node_id=NODE)

    def keep(self) -> None:
        """The node as it is now is what `restore` of the next number gives back."""
        place = self.folder / f"after-{len(self.places)}"
        now = self.folder / "now"
        shutil.copytree(now, place) if now.exists() else place.mkdir()
        self.places.append((place, _state(self.context.state)))

    def restore(self, number: int) -> None:
        place, state = self.places[number]
        shutil.rmtree(self.folder / "now", ignore_errors=True)
        shutil.copytree(place, self.folder / "now")
        self.context.state = _state(state)

    def __call__(self, message: Message) -> Message:
        name = message.metadata.message_type
        if self.app:
            answer: Any = evaluate if name == "evaluate" else train
        else:
            answer = HANDLERS.get(name, HANDLERS["query.hello"])
        found: Message = answer(message, self.context)
        return found


def _state(state: RecordDict) -> RecordDict:
    """A copy of a node's state between messages, as Flower keeps it."""
    return RecordDict({name: type(record)(dict(record)) for name, record in state.items()})


@dataclass
class Conversation:
    """What node NODE was asked in a valid run, and two nodes that can be asked it."""

    asked: list[tuple[str, bytes]]
    twins: list[Twin]
    stream: Stream
    lines: list[str]  # what nodes log where a simulation's server may read it

    def say(self, place: str, message: Callable[[], Message]) -> list[tuple[bytes, str]]:
        """The twins' replies, and what each logged; an exception fails the test.

        The memory is watched of the twin with the hostile texts alone: that makes it slower.
        """
        replies = []
        for twin in self.twins:
            self.lines.clear()
            self.stream.begin(f"node {place}")
            asked = message()
            watched = twin is self.twins[-1]
            if watched:
                tracemalloc.start()
            try:
                reply = twin(asked)
                taken = tracemalloc.get_traced_memory()[1] if watched else 0
            finally:
                tracemalloc.stop()
            assert taken < MEMORY, f"{taken} bytes for one message"
            _check(reply)
            shown = "\n".join(self.lines).replace(str(twin.folder), "FOLDER")
            replies.append((travelled(reply), shown))
        return replies


def _check(reply: Message) -> None:
    """A code, or the vector: one record, with nothing else in it, and nothing empty."""
    (name,) = reply.content
    record = reply.content.config_records[name]
    assert record["code"] in CODES
    if name == "secagg":
        assert set(record) == ({"code", "data"} if record["code"] == "ok" else {"code"})
        return
    assert name == "answer"
    ticket = {"protocol", "code", "run", "query", "round", "attempt"}
    facts = {"protocol", "code", "weight", "partition", "deployed", "seeded", "evaluates"}
    more = {"vector"} if record["code"] == "ok" else {"key"}
    assert set(record) <= ticket | more or set(record) - {"resources"} == facts
    assert record.get("key", "queries") in POLICY_KEYS


@pytest.fixture
def conversations(
    causal_folder: Path, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Case], Conversation]]:
    """A case's valid run -> what one node was asked, and the twins."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("privsyn_flower")
    logger.addHandler(handler)

    def talk(case: Case) -> Conversation:
        app = case.method.startswith("app")
        users = population(True)
        make = rows_world if case.method == "matrix" else world
        prepare = (
            app_world(case, users, rig.stream)
            if app
            else make(case, users, causal_folder, rig.stream)
        )
        seen = rig.run(prepare)
        assert not seen.failure, seen.failure
        asked = [(place, data) for node, place, data in seen.asked if node == NODE]
        _quick(monkeypatch)
        twins = []
        for kind in ("", "together"):
            folder = tmp_path / f"twin-{kind}"
            folder.mkdir()
            rows = neighbour(users, kind) if kind else users
            names = list(rows)[(NODE - 1) * HOSTED : NODE * HOSTED]
            write(folder / "node.jsonl", {name: rows[name] for name in names}, case.columns)
            twins.append(Twin(folder, _config(case, folder, causal_folder, rig, app), app))
        return Conversation(asked, twins, rig.stream, lines)

    yield talk
    logger.removeHandler(handler)


def _config(case: Case, folder: Path, models: Path, rig: Rig, app: bool) -> dict[str, Any]:
    policy = next(rig.folder.glob("world-*/policy.toml"))
    config: dict[str, Any] = {"weight": HOSTED, "policy": str(policy)}
    if app:
        return config | {"texts": str(folder / "node.jsonl"), "partition-id": NODE - 1}
    config |= {"data": str(folder / "node.jsonl"), "embedder": "ngram-32", "device": "cpu"}
    config |= {"downstream": str(models)}
    return config | ({"label-column": "label"} if case.labels else {})


def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No question makes these models compute for long: what it asks for is checked before."""

    def fit(self: LoadedLM, rows: Any, options: Any, rng: Any, *more: Any) -> Any:
        return np.full(self.layout.length, 1e-3 * len(rows))

    monkeypatch.setattr(LoadedLM, "_fit", fit)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("case", FUZZED, ids=str)
def test_no_message_makes_a_node_say_more_than_a_code(
    case: Case, conversations: Callable[[Case], Conversation]
) -> None:
    talk = conversations(case)
    for place, data in talk.asked:  # valid: both answer, and the same
        for twin in talk.twins:
            twin.keep()
        first, second = talk.say(place, functools.partial(received, data))
        assert first == second, place
    number = itertools.count()
    last = len(talk.asked) - 1
    places = st.integers(0, last)

    @fuzz_settings(per_second=14)
    @given(
        depth=places,
        odd=st.lists(st.tuples(st.integers(-1, 2), changes()), min_size=1, max_size=3),
    )
    def fuzzed(depth: int, odd: list[tuple[int, Callable[[Message], Message]]]) -> None:
        for twin in talk.twins:
            twin.restore(depth)
        for step, change in odd:
            _, data = talk.asked[min(max(depth + step, 0), last)]

            def message(data: bytes = data, change: Any = change) -> Message:
                return _again(change(received(data)))

            first, second = talk.say(f"fuzz {next(number)}", message)
            assert first == second

    fuzzed()


def _again(message: Message) -> Message:
    """What is left of a changed message once it has travelled."""
    return received(message_to_proto(message).SerializeToString())
