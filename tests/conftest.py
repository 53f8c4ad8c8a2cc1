"""Shared fixtures: an in-process grid that runs the real ClientApp handlers, and small texts."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, Metadata, RecordDict
from hypothesis import HealthCheck, settings
from typer.main import get_command

from privsyn_flower.config import RunConfig
from privsyn_flower.config.api import configured
from privsyn_flower.privacy import Ledger
from privsyn_flower.protocol import messaging
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.privacy_plan import ledger_terms
from privsyn_flower.strategies.engine.run_ledger import open_ledger

# No test measures time: on a busy machine an example takes as long as it takes.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

WORDS = (
    "alpha beta gamma delta river stone cloud forest matrix vector tensor kernel neuron lemma "
    "theorem proof axiom graph vertex edge colour metre second voltage current field charge"
).split()

# What takes the real vLLM, or container images: collected when an argument of the call lies there.
ONLY_NAMED = [Path(__file__).parent / name for name in ("images", "vllm")]


def pytest_configure() -> None:
    """Tests give what they start a HOME of their own, which these variables would go before."""
    for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        os.environ.pop(variable, None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path not in ONLY_NAMED:
        return None
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(collection_path) for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: it must not be left to one worker at the end. Files with a real
    Flower run, which waits for half of its time, lie among those that compute, until two thirds."""
    marked = {
        mark: list(dict.fromkeys(item.path for item in items if item.get_closest_marker(mark)))
        for mark in ("slow", "e2e")
    }
    real = marked["e2e"]
    computing = [path for path in marked["slow"] if path not in real]
    places = {path: number / len(computing) for number, path in enumerate(computing)}
    places |= {path: number / len(real) / 1.5 for number, path in enumerate(real)}
    items.sort(key=lambda item: places.get(item.path, 1.0))


class LoopbackGrid:
    """A Grid whose nodes are functions message -> reply (or None for silence)."""

    def __init__(self, nodes: dict[int, Callable[[Message], Message | None]]) -> None:
        self.nodes = nodes
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self._waiting: dict[str, Message] = {}
        self._ids = itertools.count(1)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            key = f"m{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = key
            self.sent.append(message)
            try:
                reply = self.nodes[message.metadata.dst_node_id](message)
            except Exception as error:  # what Flower does with a ClientApp that raises
                reply = Message(Error(2, f"traceback with private text: {error}"), reply_to=message)
            if reply is not None:
                self._waiting[key] = reply
            ids.append(key)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = [self._waiting.pop(key) for key in list(message_ids) if key in self._waiting]
        self.received += replies
        return replies


def loopback_message(
    content: Any, dst_node_id: int, message_type: str, *, ttl: float = 60.0, group_id: str = ""
) -> Message:
    """What Message(...) makes inside a Flower process, without one."""
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=dst_node_id,
        reply_to_message_id="",
        group_id=group_id,
        created_at=time.time(),
        ttl=ttl,
        message_type=message_type,
    )
    return Message(content=content, metadata=metadata)


@pytest.fixture(autouse=True, scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ledgers and noise keys of the tests: not among those of whoever runs them."""
    folder = tmp_path_factory.mktemp("data-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        yield folder


class NotWaiting(sqlite3.Connection):
    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        waits = sql.startswith("PRAGMA synchronous =")
        return super().execute("PRAGMA synchronous = OFF" if waits else sql, *values)


@pytest.fixture(autouse=True, scope="session")
def no_power_cuts() -> Iterator[None]:
    """Nothing in this process waits for the disk: what a kill leaves is in the system's memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=NotWaiting))
        yield


@functools.cache
def _leave_alone(_hundreds_of_modules: int) -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def libraries_are_no_garbage() -> None:
    """Collections pass over what is loaded: with torch and transformers each takes a third of a
    second, and a training asks for two."""
    _leave_alone(len(sys.modules) // 100)


@pytest.fixture(autouse=True, scope="session")
def one_command_line() -> Iterator[None]:
    """Click's commands are made once, not for every call: that takes 50 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield


@pytest.fixture(autouse=True)
def simulation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers called in this process are simulated nodes unless a test says otherwise; the
    processes of an end-to-end test must find out for themselves."""
    if not request.node.get_closest_marker("e2e"):
        monkeypatch.setenv("PRIVSYN_SIMULATION", "1")


@pytest.fixture(autouse=True)
def keys_in_errors() -> Iterator[None]:
    """Errors name keys, as in `privsyn run`; tests of somebody's own ServerApp change that."""
    with configured():
        yield


def looped(patch: pytest.MonkeyPatch) -> type[LoopbackGrid]:
    """The loopback grid, with wire's messages made for it."""

    def make(content: Any, *args: Any, **kwargs: Any) -> Message:
        if "reply_to" in kwargs:
            return Message(content, **kwargs)
        return loopback_message(content, *args, **kwargs)

    patch.setattr(messaging, "Message", make)
    return LoopbackGrid


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> type[LoopbackGrid]:
    """As `looped` makes it."""
    return looped(monkeypatch)


def sentences(count: int, seed: int, words: list[str] | None = None) -> list[str]:
    """Distinct little sentences of a topic."""
    rng = np.random.default_rng(seed)
    pool = words or WORDS
    out: dict[str, None] = {}
    while len(out) < count:
        out[" ".join(rng.choice(pool, size=8))] = None
    return list(out)


def node_context(
    node_config: dict[str, Any], run_config: dict[str, Any] | None = None, node_id: int = 1
) -> Any:
    """The part of Flower's Context that handlers read."""
    return SimpleNamespace(
        node_config=node_config,
        run_config=run_config or {},
        node_id=node_id,
        run_id=1,
        state=RecordDict(),
    )


def config_ledger(config: RunConfig, folder: RunFolder) -> Ledger:
    """The ledger that a run of this configuration opens in `folder`."""
    names = {"ledger": config.ledger, "population_name": config.population_name}
    return open_ledger(folder, **names, **ledger_terms(config))
