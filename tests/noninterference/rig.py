"""Two runs on neighbouring populations, and all that a server gets, writes or shows in each.

What an operating system draws at random comes from a stream that is the same in both runs, and
the target's bounded vector is taken off its node's sum in both. Then nothing may differ. Real
handlers, real pipelines; messages travel as Flower's bytes.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import os
import re
import secrets
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto

from privsyn_flower.app.report.html import markup
from privsyn_flower.app.report.page import page
from privsyn_flower.app.report.registry import FILE as RECORD
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.client_apps import answers, evaluation, main, scores, updates, votes
from privsyn_flower.client_apps.dropin import evaluation as dropin_evaluation
from privsyn_flower.client_apps.dropin import training as dropin
from privsyn_flower.common import progress
from privsyn_flower.runs import RUN_LOG
from privsyn_flower.secagg import keys
from privsyn_flower.text import embedders
from privsyn_flower.text.models.lm_metrics import Scorer
from privsyn_flower.training.models import LoadedLM
from tests.conftest import LoopbackGrid

from .hostile import RAISES, TARGET

# Wall-clock time, by key of a JSON object and by file. Everything else is compared.
CLOCK_KEYS = {"wall_seconds", "stage_seconds", "seconds", "exchange_seconds", "time", "t"}
CLOCK_FILES = {"checkpoints/seconds.json"}
CLOCK = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", re.MULTILINE)  # of run.log's lines
# Of privacy.yaml: the day on which it was made.
DAY = re.compile(rb"(?m)^(url_slug: .*|    publication_date: .*)\d{4}-\d\d-\d\d")
# What a simulation tells its owner's terminal, and nobody else, of what failed on its nodes.
FAILED = re.compile(r"^warning: .* zeros and noise were sent \(.*\)\n", re.MULTILINE)
# What a simulation keeps for its nodes, in folders of its owner's only: not the server's.
# skipped.txt is for the terminal of whoever owns the private file.
PRIVATE = ("private.arrow", "test.arrow", "development.arrow", "skipped.txt")
# So is the name of their folder, and the digest of the private file in it: one goes with them.
FOLDER, ORIGIN = re.compile(r"^data/[0-9a-f]{24}(?=/|\.lock)"), "origin"

HANDLERS: dict[str, Callable[[Message, Any], Message]] = {
    "query.hello": main.hello,
    "query.votes": main.votes,
    "query.scores": main.scores,
    "query.evaluation": main.evaluation,
    "train": main.update,
}


class Stream:
    """What stands for the operating system's randomness: SHAKE-256 of a label and a counter."""

    def __init__(self) -> None:
        self.begin("start")

    def begin(self, label: str) -> None:
        """Each message handled draws from a stream of its own, whatever was drawn before."""
        self._label, self._count = label.encode(), 0

    def __call__(self, size: int = 32) -> bytes:
        self._count += 1
        return hashlib.shake_256(b"%s %d" % (self._label, self._count)).digest(size)

    def below(self, bound: int) -> int:
        return int.from_bytes(self(bound.bit_length() // 8 + 9), "big") % bound


@dataclass
class Seen:
    """What the server's side got, wrote or showed in one run: name -> bytes, in order."""

    parts: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[int, str, bytes]] = field(default_factory=list)  # node, place, message
    contributions: int = 0  # vectors of the target that were taken off a sum
    failure: str = ""  # what the run ended with

    def add(self, name: str, content: bytes) -> None:
        assert name not in self.parts, name
        self.parts[name] = content


class WireGrid(LoopbackGrid):
    """Nodes behind bytes: every message is serialised and read again, both ways, and kept."""

    def __init__(self, nodes: dict[int, Any], seen: Seen, stream: Stream) -> None:
        super().__init__({node: self._behind(handler) for node, handler in nodes.items()})
        self.seen, self.stream, self.number = seen, stream, 0

    def _behind(self, handler: Any) -> Callable[[Message], Message]:
        def handled(message: Message) -> Message:
            self.number += 1
            place = f"{self.number:05} {message.metadata.message_type}"
            self.seen.add(f"message {place} asked", travelled(message))
            # Bytes between the two sides, as between a SuperLink and a SuperNode.
            data = message_to_proto(message).SerializeToString()
            self.seen.asked.append((message.metadata.dst_node_id, place, data))
            arrived = received(data)
            self.stream.begin(f"node {place}")
            try:
                reply = handler(arrived)
            except Exception as error:  # what Flower does with a ClientApp that raises
                reason = "".join(traceback.format_exception_only(error))
                reply = Message(Error(2, reason), reply_to=arrived)
                pytest.fail(f"an exception left a node: {reason}")
            finally:
                self.stream.begin(f"server {place}")
            self.seen.add(f"message {place} reply", travelled(reply))
            return received(message_to_proto(reply).SerializeToString())

        return handled


def received(data: bytes) -> Message:
    """A message as it comes out of Flower's bytes."""
    return message_from_proto(MessageProto.FromString(data))


def travelled(message: Message) -> bytes:
    """A message's bytes without its clock: made when, and how long it may still wait."""
    proto = message_to_proto(message)
    proto.metadata.ClearField("created_at")
    proto.metadata.ClearField("ttl")
    return bytes(proto.SerializeToString(deterministic=True))


# What is forced -----------------------------------------------------------------------------


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stream, Callable[[], int]]]:
    """Equal randomness, and sums without the target's vector -> stream, and how many were not 0.

    The target's vector is subtracted from the node's sum with everybody in it: what the other
    users add must not depend on who was computed beside them either.
    """
    stream = Stream()
    monkeypatch.setattr(os, "urandom", stream)
    monkeypatch.setattr(secrets, "token_bytes", stream)
    monkeypatch.setattr(secrets, "token_hex", lambda size=32: stream(size).hex())
    monkeypatch.setattr(secrets, "randbelow", stream.below)
    monkeypatch.setattr(keys, "new_secret", stream)
    now: dict[str, Any] = {"index": None, "taker": None, "nonzero": 0}
    real = answers._vectors_or_zero

    def noted(query: Any, noise: Any, users: Any, participants: Any, node: Any, kind: Any) -> Any:
        names = list(users)
        takers = [name for name, asked in zip(names, participants.eligible, strict=True) if asked]
        now["index"] = names.index(TARGET) if TARGET in names else None
        now["taker"] = takers.index(TARGET) if TARGET in takers else None
        return real(query, noise, users, participants, node, kind)

    monkeypatch.setattr(answers, "_vectors_or_zero", noted)

    def sampled(own: Any) -> Any:
        now["nonzero"] += bool(np.any(own))
        return own

    _force_rows(monkeypatch, now, sampled)
    _force_deltas(monkeypatch, now, sampled)
    _force_metrics(monkeypatch, now, sampled)
    _fail_on_marked(monkeypatch)
    yield stream, lambda: int(now["nonzero"])


def _force_rows(monkeypatch: Any, now: dict[str, Any], sampled: Any) -> None:
    """Votes and scores: rows with their owners."""
    for module, name in ((votes, "shard_votes"), (scores, "shard_scores")):

        def sum_of(rows: Any, owner: Any, *args: Any, _real: Any, **options: Any) -> Any:
            total = _real(rows, owner, *args, **options)
            own = np.asarray(owner) == (-1 if now["index"] is None else now["index"])
            if own.any():
                if options.get("sample_classes") is not None:
                    options["sample_classes"] = options["sample_classes"][own]
                total = total - sampled(_real(rows[own], owner[own], *args, **options))
            return total

        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, _real=real, **o: sum_of(*args, _real=_real, **o)
        )


def _force_deltas(monkeypatch: Any, now: dict[str, Any], sampled: Any) -> None:
    """Updates: one delta after the other, of those who take part."""
    for module in (updates, dropin):
        real = module.shard_updates

        def without(deltas: Iterable[Any], _real: Any = real, **options: Any) -> Any:
            def others() -> Iterator[Any]:
                for place, delta in enumerate(deltas):
                    if place == now["taker"]:
                        sampled(0 if delta is None else delta)
                    yield None if place == now["taker"] else delta

            return _real(others(), **options)

        monkeypatch.setattr(module, "shard_updates", without)


def _force_metrics(monkeypatch: Any, now: dict[str, Any], sampled: Any) -> None:
    """Evaluations: a row of numbers for each user, or for each who takes part."""
    places = (
        (evaluation, "shard_metrics", "index"),
        (dropin_evaluation, "shard_app_metrics", "taker"),
    )
    for module, name, place in places:
        real = getattr(module, name)

        def without(*numbers: Any, _real: Any = real, _place: str = place, **options: Any) -> Any:
            total = _real(*numbers, **options)
            if now[_place] is None:
                return total
            own = slice(now[_place], now[_place] + 1)
            options["sampled"] = options["sampled"][own]
            return total - sampled(_real(*(part[own] for part in numbers), **options))

        monkeypatch.setattr(module, name, without)


class Panic(BaseException):
    """What a library in Rust raises."""


def _fail_on_marked(monkeypatch: Any) -> None:
    """Models that fail for a marked text, with that text in the error, each in another way."""

    def check(texts: Iterable[str], error: type[BaseException]) -> None:
        marked = [text for text in texts if RAISES in text]
        if marked:
            raise error(f"cannot read {marked[0]}")

    real_embedder = embedders.load_embedder

    def load_embedder(*args: Any, **options: Any) -> Any:
        made = real_embedder(*args, **options)

        def embed(texts: Any) -> Any:
            check(texts, Panic)
            return made.embed(texts)

        copied = copy.copy(made)  # a node may keep it: for other tests' texts it is as the real one
        copied.embed = embed
        return copied

    monkeypatch.setattr(embedders, "load_embedder", load_embedder)
    real_encode, real_train = Scorer.encode, LoadedLM.train

    def encode(self: Scorer, texts: Any, **options: Any) -> Any:
        check(texts, MemoryError)
        return real_encode(self, texts, **options)

    def train(self: LoadedLM, texts: Any, options: Any, rng: Any, *more: Any) -> Any:
        clean = [text.replace(RAISES, "") for text in texts]
        delta = real_train(self, clean, options, rng, *more)  # the model has learned of it by then
        check(texts, RuntimeError)
        return delta

    monkeypatch.setattr(Scorer, "encode", encode)
    monkeypatch.setattr(LoadedLM, "train", train)


# What is seen -------------------------------------------------------------------------------


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.levelname} {self.format(record)}")


@contextlib.contextmanager
def shown(lines: _Lines) -> Iterator[None]:
    """All loggers' lines but those of the node's own log, which goes to a file of the node's."""
    names = ("", "privsyn_flower", "flwr", "transformers", "py.warnings")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(lines)
    logging.getLogger("privsyn_flower").setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield
        lines.lines += [f"{one.category.__name__} {one.message}" for one in told]
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(lines)
            logger.setLevel(level)


def ticking() -> Any:
    """A clock for progress, which is thinned out by time: every event is written."""
    seconds = iter(range(10**9))
    return SimpleNamespace(monotonic=lambda: float(next(seconds)), time=lambda: 0.0)


@dataclass
class Rig:
    """Runs worlds below `folder`, each in a place of its own; what names the place is replaced."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    stream: Stream
    nonzero: Callable[[], int]
    capfd: Any
    made: int = 0

    def run(self, prepare: Callable[[Path], Callable[[Seen], None]]) -> Seen:
        """One world. prepare(place): writes its files -> what runs it with `place`/run as its
        run folder and `place`/cache as what a simulation shares."""
        self.made += 1
        place = self.folder / f"world-{self.made:03}"
        place.mkdir()
        seen, lines, before = Seen(), _Lines(), self.nonzero()
        self.monkeypatch.setattr(progress, "time", ticking())
        self.monkeypatch.setenv("XDG_DATA_HOME", str(place / "home"))
        self.monkeypatch.setenv("HOME", str(place / "home"))
        self.stream.begin("start")
        run = prepare(place)
        self.capfd.readouterr()
        with shown(lines):
            try:
                run(seen)
            except Exception as error:
                seen.failure = f"{type(error).__name__}: {error}"
        out, err = self.capfd.readouterr()
        seen.contributions = self.nonzero() - before
        seen.add("how the run ended", seen.failure.encode())
        seen.add("log", "\n".join(lines.lines).encode("utf-8", "surrogatepass"))
        seen.add("stdout", out.encode("utf-8", "surrogatepass"))
        seen.add("stderr", FAILED.sub("", err).encode("utf-8", "surrogatepass"))
        for top in ("run", "cache"):
            _add_files(seen, place / top, top)
        self.monkeypatch.setattr(markup, "library", lambda: "")  # a table is beside every chart
        seen.add("report page", _page(place / "run", place / "shown"))
        own = str(place).encode()
        seen.parts = {name: content.replace(own, b"PLACE") for name, content in seen.parts.items()}
        return seen


@pytest.fixture
def rig(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forced: tuple[Stream, Callable[[], int]],
    loopback: Any,
    capfd: Any,
) -> Rig:
    """What runs a world, with the target's vector forced to zero."""
    from transformers.utils import logging as bars
    from trl import DPOConfig, DPOTrainer  # noqa: F401 - draws random numbers as it is imported

    bars.disable_progress_bar()  # they show how fast a file was read
    return Rig(tmp_path, monkeypatch, *forced, capfd)


def _add_files(seen: Seen, folder: Path, top: str) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if top == "cache":
            # Digests of what runs have read are as private as the folders beside them.
            if name.startswith(("nodes/", "data/read-")) or path.name in PRIVATE:
                continue
            name = FOLDER.sub("data/FOLDER", name)
        content = b"" if name in CLOCK_FILES else path.read_bytes()
        if name == RUN_LOG:
            content = CLOCK.sub(b"", content)
        if name == RECORD:
            content = DAY.sub(rb"\1DAY", content)
        if path.suffix in (".json", ".jsonl"):
            private = {ORIGIN} if name == "data/FOLDER/meta.json" else set()
            content = _cleaned(content, CLOCK_KEYS | private)
        seen.add(f"{top}/{name}", content)


def _page(folder: Path, copy: Path) -> bytes:
    """The report page of a run folder without its clocks; of a folder of no run, why not."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        content = b"{}" if name in CLOCK_FILES else path.read_bytes()
        if path.suffix in (".json", ".jsonl"):  # path: of the ledger itself, whose rows have times
            content = _cleaned(content, CLOCK_KEYS | {"path"}).replace(b'"LEFT OUT"', b"0") + b"\n"
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    try:
        return page([copy]).encode()
    except ReportError as error:
        return str(error).encode()


def _cleaned(content: bytes, left_out: set[str]) -> bytes:
    """JSON lines, or one JSON value, without the values of these keys."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: "LEFT OUT" if k in left_out else clean(v) for k, v in value.items()}
        return [clean(item) for item in value] if isinstance(value, list) else value

    text = content.decode()
    try:
        values = [json.loads(text)]
    except json.JSONDecodeError:
        values = [json.loads(line) for line in text.split("\n") if line]
    return "\n".join(json.dumps(clean(value)) for value in values).encode()


def differences(one: Seen, other: Seen) -> list[str]:
    """What differs: the name of each part, and where its bytes part."""
    found = []
    for name in dict.fromkeys([*one.parts, *other.parts]):
        a, b = one.parts.get(name), other.parts.get(name)
        if a == b:
            continue
        if a is None or b is None:
            found.append(f"{name}: only in the {'second' if a is None else 'first'} run")
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
        at = at or min(len(a), len(b))
        start = max(0, at - 60)
        found.append(
            f"{name}: {len(a)} and {len(b)} bytes, from byte {at}: "
            f"{a[start : at + 60]!r} and {b[start : at + 60]!r}"
        )
    return found
