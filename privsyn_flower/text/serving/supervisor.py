"""Runs one server, and ends it when the process that asked for it is gone, however it ended.

Started (`start`) as a file of its own, in a process group of its own:
`python supervisor.py PARENT COMMAND...`. It imports the standard library alone. Its exit status is
the server's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import BinaryIO

LOOK_EVERY = 0.5  # seconds
GRACE = 10.0  # seconds between asking to end and ending


def start(
    command: list[str], environment: Mapping[str, str], output: BinaryIO
) -> subprocess.Popen[bytes]:
    """A process group that runs `command`, writes to `output` and ends with this process."""
    return subprocess.Popen(
        [sys.executable, "-I", __file__, str(os.getpid()), *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def keep(parent: int, command: list[str]) -> int:
    """Run `command` until it ends or `parent` does."""
    # The group is asked to end as a whole; the supervisor stays to see it done.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    )
    while not ended(server, LOOK_EVERY):
        if os.getppid() != parent:
            end_own_group(server)
    return server.returncode


def ended(server: subprocess.Popen[bytes], wait: float) -> bool:
    """Whether the server ends within `wait` seconds."""
    try:
        server.wait(wait)
    except subprocess.TimeoutExpired:
        return False
    return True


def end_own_group(server: subprocess.Popen[bytes]) -> None:
    """Ask every process of this group to end, and end what is left: this one too."""
    os.killpg(0, signal.SIGTERM)
    ended(server, GRACE)
    os.killpg(0, signal.SIGKILL)


def end_group(process: subprocess.Popen[bytes], wait: float = 15.0) -> None:
    """End a supervisor's whole group from outside: politely, then for good."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]) & 0xFF)
