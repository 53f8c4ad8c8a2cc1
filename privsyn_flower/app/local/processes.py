"""Processes of our own on this machine, started, found again and ended by their ids; the signals
that end a run, as Ctrl-C does, or not while something must not be left half done.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


def free_port() -> int:
    """A TCP port on loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process in a session of its own (Ctrl-C is not its business), writing to `log`."""
    log.touch(mode=0o600)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def end_group(pid: int, process: subprocess.Popen[bytes] | None = None, wait: float = 15.0) -> None:
    """End a process group: politely, then for good."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, sign)
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            if process is not None:
                process.poll()  # reaps a child, so that the group can vanish
            if _has_ended(pid):
                return
            time.sleep(0.1)


def started_under(home: Path) -> list[int]:
    """Live processes of this run, by the FLWR_HOME in their environment (Linux; else none)."""
    mark = f"FLWR_HOME={home}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            own = mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if own and _state(entry)[:1] not in ([], [b"Z"]) and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def end_process(pid: int, wait: float = 15.0) -> None:
    """End one process that is not a child: politely, then for good."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, sign)
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            if _state(Path("/proc", str(pid)))[:1] == [b"Z"]:
                return
            time.sleep(0.1)


def _state(entry: Path) -> list[bytes]:
    """Of a folder of /proc: state, parent and group of the process, and more; [] without one. Z: it
    has ended, but nobody reaped it, as the first process of a container may not."""
    try:
        return (entry / "stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return []


def _has_ended(group: int) -> bool:
    """Whether all processes of a group have, those that nobody reaped among them."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return True
    states = [_state(entry)[:3] for entry in Path("/proc").glob("[0-9]*")]
    own = [state for state, _, number in filter(None, states) if int(number) == group]
    return bool(own) and set(own) == {b"Z"}


ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, end a run as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with on_endings(interrupt):
        yield


@contextmanager
def on_endings(handler: Handler) -> Iterator[None]:
    """Another handler of the signals that end a run; nohup's wish to outlive a terminal stays."""
    before = {sign: signal.getsignal(sign) for sign in ENDINGS}
    for sign, other in before.items():
        signal.signal(sign, signal.SIG_IGN if other == signal.SIG_IGN else handler)
    try:
        yield
    finally:
        for sign, other in before.items():
            signal.signal(sign, other)
