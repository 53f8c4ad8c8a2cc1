"""Flower's commands forked from one process that has imported them: many nodes in little memory.

    python forked_flower.py FOLDER AT_ONCE

Listens on FOLDER/fork.sock. A SuperNode, its SuperExec and every ClientApp are processes of their
own, as always, and run Flower's own code; but their imports (90 MB and a second of CPU for each)
are shared with this process, until they are written to. At most AT_ONCE ClientApps run at the same
time. What is left ends with this process. Used by many_nodes.py --forked.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.metadata
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from privsyn_flower.app.local import loopback_guard

# Which modules start another process, and have that forked here instead.
STARTERS = (
    "flwr.supernode.start_client_internal",
    "flwr.supercore.superexec.executor.subprocess_executor",
)
OURS = ("main", "votes", "node.records", "node.policy")
APP = "flwr-clientapp"


def ask(folder: Path, argv: list[str], environment: dict[str, str], log: Path) -> Any:
    """Start one of Flower's commands -> its process id; `flwr` -> what it printed, at its end."""
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(str(folder / "fork.sock"))
        request = {"argv": argv, "environment": environment, "log": str(log)}
        there.sendall(json.dumps(request).encode() + b"\n")
        with there.makefile("rb") as reply:
            return json.loads(reply.readline())


def become(folder: Path, argv: list[str], environment: dict[str, str], log: Path) -> None:
    """In the child: be that command, to its end."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()

    def start(command: list[str], **_: Any) -> None:
        ask(folder, command, dict(os.environ), log)

    for name in STARTERS:
        sys.modules[name].subprocess = SimpleNamespace(Popen=start, DEVNULL=None)  # type: ignore[attr-defined]
    status: Any = 0
    try:
        if argv[0] in loopback_guard.COMMANDS:
            sys.argv = ["loopback_guard", *argv]
            loopback_guard.main()
        else:
            sys.argv = argv
            entry(argv[0]).load()()
    except SystemExit as end:
        status = end.code
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


def entry(name: str) -> importlib.metadata.EntryPoint:
    """One of the installed commands."""
    return next(iter(importlib.metadata.entry_points(group="console_scripts", name=name)))


class Forks:
    """The processes that were forked, and those that wait for a slot."""

    def __init__(self, folder: Path, at_once: int) -> None:
        self.folder, self.at_once = folder, at_once
        self.alive: dict[int, str] = {}  # process id -> command
        self.waiting: list[dict[str, Any]] = []
        self.told: dict[int, tuple[socket.socket, Path]] = {}  # who waits for the end of a process
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(folder / "fork.sock"))
        self.listening.listen(256)

    def serve(self) -> None:
        """Until this process is ended."""
        looked_at = selectors.DefaultSelector()
        looked_at.register(self.listening, selectors.EVENT_READ)
        while True:
            if looked_at.select(0.05):
                self.answer(self.listening.accept()[0])
            self.reap()
            while self.waiting and list(self.alive.values()).count(APP) < self.at_once:
                self.fork(self.waiting.pop(0))

    def answer(self, asking: socket.socket) -> None:
        with asking.makefile("rb") as words:
            request = json.loads(words.readline())
        if request["argv"][0] == APP:
            self.waiting.append(request)
            pid = 0
        else:
            pid = self.fork(request)
        if request["argv"][0] == "flwr":
            self.told[pid] = asking, Path(request["log"])
        else:
            asking.sendall(json.dumps(pid).encode() + b"\n")
            asking.close()

    def fork(self, request: dict[str, Any]) -> int:
        if pid := os.fork():
            self.alive[pid] = request["argv"][0]
            return pid
        self.listening.close()
        become(self.folder, request["argv"], request["environment"], Path(request["log"]))
        raise AssertionError("not reached")

    def reap(self) -> None:
        while self.alive:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self.alive.pop(pid, None)
            if pid in self.told:
                asking, log = self.told.pop(pid)
                asking.sendall(json.dumps(log.read_text("utf-8")).encode() + b"\n")
                asking.close()

    def close(self) -> None:
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        while self.alive:
            self.reap()
            time.sleep(0.05)


def main() -> None:
    for name in ("flower-supernode", "flower-superexec", APP, "flwr"):
        entry(name).load()
    for name in (*STARTERS, *(f"privsyn_flower.client_apps.{name}" for name in OURS), "uvicorn"):
        importlib.import_module(name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    forks = Forks(Path(sys.argv[1]), int(sys.argv[2]))
    parent = os.getpid()
    try:
        forks.serve()
    finally:
        if os.getpid() == parent:
            forks.close()


if __name__ == "__main__":
    main()
