"""Flower's apps forked by what starts them, for a test whose nodes handle many messages.

A start of an app takes seconds of a processor to import Flower and torch; a fork finds them loaded.
It is a process of its own all the same, runs Flower's own code for one message, watches its
SuperExec and dies with its SuperNode's process group. This file is what a SuperLink and SuperNodes
that are started after `fork_apps` find as `flower-superexec`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

FIRST, LATER = "PRIVSYN_TEST_FIRST", "PRIVSYN_TEST_LATER"  # variables: code that loads modules
CLIENT = {
    FIRST: "import flwr.supernode.cli, privsyn_flower.client_apps.main",
    LATER: "from privsyn_flower.client_apps import updates\n"
    "from privsyn_flower.text.models.pretrained import auto_model\n"
    "auto_model('LlamaForCausalLM')",
}
SERVER = {FIRST: "import flwr.superlink.cli, privsyn_flower.server_apps.main", LATER: ""}


def fork_apps(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Of federations that are started from now on; `folder` is made, and comes first in PATH."""
    from privsyn_flower.app.local import federation

    folder.mkdir()
    program = folder / "flower-superexec"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P {Path(__file__).absolute()} "$@"\n')
    program.chmod(0o755)
    made = federation.flower_environment

    def environment(home: Path, port: int, *node: str) -> dict[str, str]:
        found = made(home, port, *node)
        path = f"{folder}{os.pathsep}{found['PATH']}"
        return {**found, "PATH": path, **(CLIENT if node else SERVER)}

    patch.setattr(federation, "flower_environment", environment)


def command(name: str) -> Any:
    """One of Flower's, loaded."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    return entry.load()


def fork_for_each(asked: int) -> None:
    """Until the SuperExec is gone: a process for each of its lines, a command."""
    exec(os.environ[FIRST], {})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for number, line in enumerate(os.fdopen(asked)):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.argv = json.loads(line)
            sys.exit(command(sys.argv[0])())
        if number == 0:  # the greeting needs no model, and must not wait for one
            exec(os.environ[LATER], {})


def main() -> None:
    start = command("flower-superexec")
    from flwr.supercore.superexec.executor import subprocess_executor

    asked, asking = os.pipe()
    if os.fork() == 0:
        os.close(asking)
        fork_for_each(asked)
        return
    os.close(asked)
    ask: Any = lambda words, **_: os.write(asking, json.dumps(words).encode() + b"\n")  # noqa: E731
    subprocess_executor.subprocess = SimpleNamespace(Popen=ask, DEVNULL=None)  # type: ignore[assignment]
    sys.exit(start())


if __name__ == "__main__":
    main()
