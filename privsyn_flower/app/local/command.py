"""Flower's command line, loaded once and asked often.

A start of `flwr` takes two seconds of a processor, nearly all of it to import Flower, and a run
asks it four times, a federation more than once for each node. So one process,
`python -P -m` of this module, imports it and forks for each question: `flwr` itself in a fresh
process, without the imports. It ends with `close`, or with the process that started it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from privsyn_flower.app.local.processes import end_group

Result = subprocess.CompletedProcess[str]
HOME = "FLWR_HOME"
FORKS = sys.platform == "linux"  # elsewhere a fork after such imports is not safe


class FlowerCommand:
    """`flwr`, in the FLWR_HOME of its environment. Its process starts with `begin`, or with the
    first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}

    def begin(self, environment: dict[str, str]) -> None:
        """Start its process, unless one with this environment runs."""
        running = self._process is not None and self._process.poll() is None
        if not FORKS or (running and environment == self._environment):
            return
        self.close()
        self._environment = environment
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "privsyn_flower.app.local.command"],
            env=environment,
            cwd=environment[HOME],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not its business: it is asked to stop the run then
        )

    def ask(self, arguments: Sequence[str], environment: dict[str, str], timeout: float) -> Result:
        """What `flwr` with these arguments printed. Raises subprocess.TimeoutExpired."""
        command = ["flwr", *arguments]
        if not FORKS:
            return subprocess.run(
                command,
                env=environment,
                cwd=environment[HOME],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                check=False,
            )
        self.begin(environment)
        assert self._process is not None
        try:
            return self._answer(self._process, command, timeout)
        except BaseException:  # an answer that nobody waited for would be the next one's
            self.close()
            raise

    def close(self) -> None:
        """End its process."""
        process, self._process = self._process, None
        if process is not None:
            end_group(process.pid, process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _answer(
        self, process: subprocess.Popen[bytes], command: list[str], timeout: float
    ) -> Result:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended; why is told below
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
        if not select.select([process.stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(command, timeout)
        line = process.stdout.readline()
        if not line:  # Flower could not be loaded, or somebody ended it
            assert process.stderr is not None
            error = process.stderr.read().decode("utf-8", "replace")
            return subprocess.CompletedProcess(command, process.wait(), "", error)
        return subprocess.CompletedProcess(command, **json.loads(line))


def main() -> None:
    """Answer each line of stdin, a command, by a line: what it printed and how it ended."""
    entry = next(iter(importlib.metadata.entry_points(group="console_scripts", name="flwr")))
    flwr = entry.load()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(_response(flwr, json.loads(line))).encode() + b"\n")
        sys.stdout.buffer.flush()


def _response(flwr: Callable[[], Any], command: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = multiprocessing.get_context("fork").Process(
            target=_run, args=(flwr, command, out.fileno(), err.fileno())
        )
        child.start()
        child.join()
        texts = {"stdout": _text(out), "stderr": _text(err)}
    return {"returncode": child.exitcode, **texts}


def _run(flwr: Callable[[], Any], command: list[str], out: int, err: int) -> None:
    """In the child: its exit status is this process's."""
    for here, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(descriptor, here)
    sys.argv = command
    sys.exit(flwr())


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


if __name__ == "__main__":
    main()
