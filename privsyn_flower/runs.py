"""The run folder: atomic files, checkpoints, and what is needed to resume after any kill.

    summary.json  metrics.jsonl  ledger.jsonl  seeds.jsonl  synthetic.jsonl  config.toml
    privacy.md    changes.jsonl (settings that were changed since the start)
    checkpoints/  round-0003.json (public strategy state after round 3)
    queries/      round-0003.npz  (the question asked in round 3, public)
    releases/     round-0003.npz  (the noisy sum of round 3, public once released)
    models/       NAME.safetensors (named arrays of a training, public)
    run.log       this package's own log lines

summary.json comes with the result; `unfinished` stands in it until the benchmark is done, too.

A question of kind "update" or "evaluation" holds whole models; it is kept until its round has a
checkpoint.

Every file is written to a temporary name, flushed to disk and renamed, so that a reader sees
the old or the new content and never a part of it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import LockTaken, file_lock, write_atomic
from privsyn_flower.protocol.question import Query

Json = dict[str, Any]

SYNTHETIC, SEEDS = "synthetic.jsonl", "seeds.jsonl"
UNFINISHED = "unfinished"  # in summary.json: what is still to come after the result
UNUSABLE = "unusable"  # in summary.json: why the result is of no use, for a run that is no success


class RunLocked(RuntimeError):
    """Another live process holds the run folder."""


class RunMoved(RuntimeError):
    """The run folder was moved or removed while the run was going on."""


def json_bytes(value: object) -> bytes:
    """A value as a JSON file has it; NaN and infinity are refused (not JSON)."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def write_json(path: Path, value: object) -> None:
    """A JSON file, atomically."""
    write_atomic(path, json_bytes(value))


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object per line, atomically."""
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())


def read_jsonl(path: Path) -> list[Json]:
    """Rows of a JSON-lines file; an absent file has none."""
    if not path.exists():
        return []
    # Not splitlines: a text may hold U+2028 and its like, which JSON leaves as they are.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def failure(error: Exception, folder: Path | str = "FOLDER") -> str:
    """An exception as one line that says what to do about it. folder: the run's."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += f" (free space there, then `privsyn run --resume {folder}`)"
        return text
    return f"{type(error).__name__}: {error}"


def complete(folder: Path) -> bool:
    """Whether a run has its result, and the benchmark of it that it is to have."""
    return (folder / "summary.json").exists() and not benchmark_due(folder)


def benchmark_due(folder: Path) -> bool:
    """Whether a run has its result, and not yet the benchmark of it."""
    path = folder / "summary.json"
    return path.exists() and UNFINISHED in json.loads(path.read_text(encoding="utf-8"))


class RunFolder:
    """One run on disk. Methods that save are atomic; loads return None for what is absent."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # A benchmark's figures and pictures show private text; the owner alone may look.
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder exclusively, and log to its run.log. Raises RunLocked naming the
        holder's process id."""
        with ExitStack() as stack:
            try:  # a look at who holds it (`lock_holder`) takes it for a moment, too
                stack.enter_context(file_lock(self.path / ".lock", patience=2.0))
            except LockTaken as error:
                raise RunLocked(
                    f"run folder {self.path} is in use by process {error.owner}; "
                    "wait for it, stop it, or choose another run-folder"
                ) from None
            stack.enter_context(logged(self.path))
            yield

    def has_rounds(self) -> bool:
        """Whether anything was asked from this folder."""
        patterns = ("queries/round-*", "releases/round-*", "checkpoints/round-*")
        return any(True for pattern in patterns for _ in self.path.glob(pattern))

    def _write(self, name: str, data: bytes) -> None:
        """A file of the run. Raises RunMoved rather than begin another folder in its place."""
        if not self.path.is_dir():
            raise RunMoved(
                f"run folder {self.path} was moved or removed while the run was going on: continue "
                "it with `privsyn run --resume` and the folder's new place"
            )
        write_atomic(self.path / name, data)

    # Checkpoints -------------------------------------------------------------------------

    def save_checkpoint(self, rnd: int, state: Json, metrics: Json) -> None:
        """Public strategy state after round `rnd`, with that round's metrics row."""
        value = {"round": rnd, "state": state, "metrics": metrics}
        self._write(f"checkpoints/round-{rnd:04d}.json", json_bytes(value))
        write_jsonl(self.path / "metrics.jsonl", self.metrics())
        self._drop_models(rnd)

    def last_checkpoint(self) -> Json | None:
        """The newest checkpoint: {"round", "state", "metrics"}."""
        files = self._checkpoints()
        return json.loads(files[-1].read_text(encoding="utf-8")) if files else None

    def metrics(self) -> list[Json]:
        """One row per finished round, from the checkpoints (so a kill cannot double a row)."""
        return [checkpoint["metrics"] for checkpoint in self.checkpoints()]

    def checkpoints(self) -> Iterator[Json]:
        """As of `last_checkpoint`, one for each finished round, in their order."""
        return (json.loads(file.read_text(encoding="utf-8")) for file in self._checkpoints())

    def exchanges(self) -> list[Json]:
        """The rows of `metrics`; of a run without rounds, those of the questions in their place."""
        beside = sorted((self.path / "evaluations").glob("*/"))
        return self.metrics() or [row for path in beside for row in RunFolder(path).metrics()]

    def _checkpoints(self) -> list[Path]:
        found = {
            int(number): path
            for path in (self.path / "checkpoints").glob("round-*.json")
            if (number := path.stem.removeprefix("round-")).isdecimal()  # others have a word behind
        }
        return [found[number] for number in sorted(found)]

    def _drop_models(self, rnd: int) -> None:
        """Whole models that nobody will ask again; a kill may have left the round before's."""
        for path in (self._query_path(rnd - 1), self._query_path(rnd)):
            if path.exists() and _stored_kind(path) in ("update", "evaluation"):
                path.unlink()

    def save_value(self, name: str, value: object) -> None:
        """A small JSON value under checkpoints/, for example the roster or a stage's result."""
        self._write(f"checkpoints/{name}.json", json_bytes(value))

    def load_value(self, name: str) -> Any:
        """What `save_value` stored, or None."""
        path = self.path / "checkpoints" / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    # Queries and releases ----------------------------------------------------------------

    def save_query(self, rnd: int, query: Query) -> None:
        """The question of round `rnd` (public), before it is asked."""
        head = {
            "kind": query.kind,
            "length": query.length,
            "bound": query.bound,
            "model": query.model,
            "options": dict(query.options),
        }
        buffer = io.BytesIO()
        extra: dict[str, Any] = {f"extra.{name}": array for name, array in query.extra.items()}
        np.savez(
            buffer, rows=query.rows, scales=query.scales, head=np.array(json.dumps(head)), **extra
        )
        self._write(f"queries/round-{rnd:04d}.npz", buffer.getvalue())

    def load_query(self, rnd: int) -> Query | None:
        """The question of round `rnd`, exactly as it was asked."""
        path = self._query_path(rnd)
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as archive:
            head = json.loads(str(archive["head"]))
            extra = {
                name.removeprefix("extra."): archive[name]
                for name in archive.files
                if name.startswith("extra.")
            }
            return Query(rows=archive["rows"], scales=archive["scales"], extra=extra, **head)

    def _query_path(self, rnd: int) -> Path:
        return self.path / "queries" / f"round-{rnd:04d}.npz"

    def save_release(self, rnd: int, released: np.ndarray[Any, Any]) -> None:
        """The noisy sum of round `rnd`, float64, unclipped and unrounded."""
        buffer = io.BytesIO()
        np.savez(buffer, released=np.asarray(released, dtype=np.float64))
        self._write(f"releases/round-{rnd:04d}.npz", buffer.getvalue())

    def load_release(self, rnd: int) -> F64 | None:
        """The stored noisy sum of round `rnd`; a stored release is never asked again."""
        path = self.path / "releases" / f"round-{rnd:04d}.npz"
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as archive:
            released: F64 = archive["released"]
            return released

    def has_release(self, rnd: int) -> bool:
        """Whether the noisy sum of round `rnd` is stored."""
        return (self.path / "releases" / f"round-{rnd:04d}.npz").exists()

    def drop_unfinished_release(self, rnd: int) -> None:
        """Remove what a kill left of a release of round `rnd` that was never complete."""
        for path in (self.path / "releases").glob(f".round-{rnd:04d}.npz.*.tmp"):
            path.unlink()

    # Named arrays ------------------------------------------------------------------------

    def save_arrays(self, name: str, packed: bytes) -> None:
        """Named arrays as safetensors bytes (public), under models/."""
        self._write(f"models/{name}.safetensors", packed)

    def load_arrays(self, name: str) -> bytes | None:
        """What `save_arrays` stored, or None."""
        path = self._arrays_path(name)
        return path.read_bytes() if path.exists() else None

    def has_arrays(self, name: str) -> bool:
        """Whether `save_arrays` stored something under this name."""
        return self._arrays_path(name).exists()

    def drop_arrays(self, name: str) -> None:
        """Remove what `save_arrays` stored, if it is there."""
        self._arrays_path(name).unlink(missing_ok=True)

    def _arrays_path(self, name: str) -> Path:
        return self.path / "models" / f"{name}.safetensors"


def _stored_kind(path: Path) -> str:
    """The kind of a stored question; its arrays are not read."""
    with np.load(path, allow_pickle=False) as archive:
        return str(json.loads(str(archive["head"]))["kind"])


def lock_holder(folder: Path) -> int | None:
    """The process that holds a run folder; None when nobody does (0: alive but unnamed)."""
    lock = folder / ".lock"
    if not lock.exists():
        return None
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            text = file.read().strip()
            return int(text) if text.isdigit() else 0
    return None


class StageClock:
    """Wall seconds per stage, kept across resumes: `with clock("rounds"): ...`.

    after: called with the name and the seconds of a stage that is over.
    """

    def __init__(
        self, folder: RunFolder, after: Callable[[str, float], None] | None = None
    ) -> None:
        self.folder, self.after = folder, after
        self.seconds: dict[str, float] = folder.load_value("seconds") or {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            spent = self.seconds.get(stage, 0.0) + time.monotonic() - start
            self.seconds[stage] = round(spent, 3)
            self.folder.save_value("seconds", self.seconds)
            if self.after is not None:
                self.after(stage, self.seconds[stage])


# run.log ---------------------------------------------------------------------------------
#
# What the ServerApp logs ends in Flower's processes, far from the user's terminal; the file
# outlives them, and `privsyn run` shows its warnings as they happen. One line for each record.

RUN_LOG = "run.log"
LOGGERS = ("privsyn_flower", "flwr")  # strategies in somebody's ServerApp write to Flower's log
_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_NODES = f"{_PACKAGE}client_apps{os.sep}"  # where nodes are functions of this process
_WARNING = re.compile(r"\S+ \S+ WARNING (.*)")


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " | ".join(super().format(record).splitlines())


class _LogFile(logging.Handler):
    """Appends lines to an open file. One that cannot be written is given up: that must change
    nothing else."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))

    def filter(self, record: logging.LogRecord) -> bool:
        """Lines of this package only, whichever logger they came by."""
        return record.pathname.startswith(_PACKAGE) and not record.pathname.startswith(_NODES)

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        with suppress(Exception):
            os.write(self.descriptor, f"{self.format(record)}\n".encode(errors="replace"))


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Append our lines to FOLDER/run.log (mode 0600) until the block ends; an error is the last."""
    with ExitStack() as stack:
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            descriptor = os.open(folder / RUN_LOG, flags, 0o600)
            stack.callback(os.close, descriptor)
            os.fchmod(descriptor, 0o600)
            handler = _LogFile(descriptor)
            for name in LOGGERS:
                logging.getLogger(name).addHandler(handler)
                stack.callback(logging.getLogger(name).removeHandler, handler)
        try:
            yield
        except Exception as error:
            logging.getLogger(LOGGERS[0]).error("%s: %s", type(error).__name__, error)
            raise


def log_size(folder: Path) -> int:
    """Where the log ends now: what follows is new."""
    path = folder / RUN_LOG
    return path.stat().st_size if path.exists() else 0


def read_warnings(folder: Path, offset: int) -> tuple[list[str], int]:
    """The warnings after byte `offset`, and the offset to go on from."""
    path = folder / RUN_LOG
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    lines = data[:end].decode("utf-8", "replace").split("\n")
    return [found[1] for line in lines if (found := _WARNING.match(line))], offset + end
