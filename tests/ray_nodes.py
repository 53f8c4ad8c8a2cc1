"""Ray nodes of a cluster that lives on this machine's loopback, under a token, for tests alone.

Each is a `ray start --block` of its own with its own folder, and is ended by its own process ids:
`ray stop` would end every Ray of this account.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from privsyn_flower.app.local.processes import end_group, free_port
from tests.strangers import descendants

# Ray takes the machine's other address for 127.0.0.1, and then listens everywhere. Its switch for
# loopback forbids a second node; so the one function behind that switch is told here.
START = (
    "import ray._private.services as services\n"
    "services.get_node_ip_address = lambda *_, **__: '127.0.0.1'\n"
    "from ray.scripts.scripts import main\n"
    "main()"
)
STARTED = "Ray runtime started"


class RayNode:
    """One node. address: of the cluster it joins; "": the first of a new one. inside: a command
    that is given this node's, and runs it."""

    def __init__(
        self, token: str, *, address: str = "", cpus: int = 2, inside: Sequence[str] = ()
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets: short names
        self.address = address or f"127.0.0.1:{free_port()}"
        where = ["--address", address] if address else ["--head", "--include-dashboard", "false"]
        if not address:
            where += [
                "--port",
                self.address.rpartition(":")[2],
                "--ray-client-server-port",
                str(free_port()),
            ]
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_worker_niceness": "0",
        }
        for name in ("ADDRESS", "ENABLE_WINDOWS_OR_OSX_CLUSTER", "OVERRIDE_RESOURCES"):
            self.environment.pop(f"RAY_{name}", None)
        command = [*inside, sys.executable, "-c", START, "start", *where, "--block"]
        command += ["--node-ip-address", "127.0.0.1", "--num-cpus", str(cpus)]
        command += ["--temp-dir", str(self.folder), "--object-store-memory", "80000000"]
        command += ["--include-log-monitor", "false", "--disable-usage-stats"]
        self.log = self.folder / "start.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                start_new_session=True,
            )

    def wait(self, seconds: float = 900.0) -> RayNode:
        """Until it runs. Raises RuntimeError with its log."""
        deadline = time.monotonic() + seconds
        while STARTED not in (text := self.log.read_text()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no Ray node: {text[-2000:]}")
            time.sleep(0.1)
        return self

    def processes(self) -> set[int]:
        """All of its processes, workers among them."""
        return descendants(self.process.pid)

    def kill(self) -> None:
        """As a machine that loses its power: every process at once, by its own id."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def end(self) -> None:
        """End what is left of it."""
        left = self.processes() if self.process.poll() is None else set()
        end_group(self.process.pid, self.process)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)
