"""run.log: this package's own log lines, kept in the run folder and read from there.

What the ServerApp logs ends in Flower's processes, far from the user's terminal; the file outlives
them, and `privsyn run` shows its warnings as they happen. One line for each record.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

RUN_LOG = "run.log"
LOGGERS = ("privsyn_flower", "flwr")  # strategies in somebody's ServerApp write to Flower's log
_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_NODES = f"{_PACKAGE}client_apps{os.sep}"  # where nodes are functions of this process
_WARNING = re.compile(r"\S+ \S+ WARNING (.*)")


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " | ".join(super().format(record).splitlines())


class _File(logging.Handler):
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
            handler = _File(descriptor)
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
