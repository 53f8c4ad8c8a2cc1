"""A deployed federation on one machine: a SuperLink with TLS and SuperNodes with keys.

Nothing here is simulated: every SuperNode is a process with its own node config, data file,
cache, policy and Flower home, admitted by its key, and every message is handled in a fresh
process. All listen on 127.0.0.1 and answer this account alone. What belongs to a federation is in
one folder (`layout`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.app.local import loopback_guard
from privsyn_flower.app.local.command import FlowerCommand
from privsyn_flower.app.local.layout import (
    AUTHORITY,
    CERTIFICATE,
    FACTS,
    KEY,
    create,
    write_certificates,
    write_node_key,
)
from privsyn_flower.app.local.processes import (
    end_group,
    end_process,
    free_port,
    spawn,
    started_under,
)
from privsyn_flower.app.local.simulation import (
    CONNECTION,
    FlowerError,
    LocalFlower,
    flower_environment,
    flwr,
    write_connection,
)
from privsyn_flower.common.files import locked, private_folder
from privsyn_flower.config import RunConfig, Scalar
from privsyn_flower.runs import write_json

START_SECONDS, NODE_SECONDS = 300.0, 5.0  # at most, and more for each node; an end is seen
STOP_SECONDS, LEAST_STOP_SECONDS = 15.0, 1.0  # to sign off: all nodes together, the last of them


@contextlib.contextmanager
def hosted(
    folder: Path,
    data: Sequence[Path],
    *,
    nodes: int,
    node_config: Mapping[str, Scalar],
    node_python: str = sys.executable,
) -> Iterator[LocalFederation]:
    """A new federation in `folder`, started; its processes end with the block, however that ends.

    data, nodes, node_config: as `create` takes them. node_python: as LocalFederation does.
    """
    create(folder, data, nodes=nodes, node_config=node_config)
    federation = LocalFederation(folder, node_python=node_python)
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()


class LocalFederation:
    """The federation in a folder made by `create`. Raises FlowerError when there is none.

    node_python: of another installation, as a device's is, which SuperNodes are started from.
    """

    def __init__(self, folder: Path, *, node_python: str = sys.executable) -> None:
        self.folder = folder.expanduser().absolute()
        self.node_python = node_python
        self.home = self.folder / "flower"
        self._command = FlowerCommand()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        if not (self.folder / FACTS).exists():
            raise FlowerError(f"{self.folder} holds no federation: start one with --data")

    @property
    def facts(self) -> dict[str, Any]:
        """Ports and process ids, as last written. Raises FlowerError on a damaged file."""
        path = self.folder / FACTS
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FlowerError(f"{path} is damaged: {error}") from None
        return found

    def start(self) -> None:
        """Start what is not running, and wait until every SuperNode is online.

        A new SuperLink gets new certificates, so nodes of an old one are started anew as well.
        A node that was killed comes back with a new key, under another of Flower's node ids: the
        SuperLink would take the old one back only when its heartbeats have lapsed (a minute).
        """
        with locked(self.folder / ".lock"):
            if not self.healthy():
                self._stop()
                self._start_superlink()
                for number in range(len(self.facts["nodes"])):
                    self._register(number)
            for number, node in enumerate(self.facts["nodes"]):
                if node["pid"] and not self._runs(node["pid"]):
                    self._flwr("supernode", "unregister", node["node_id"], CONNECTION)
                    (self.node_folder(number) / "key.pub").unlink()
                    self._register(number)
                if not self._runs(node["pid"]):
                    self._start_node(number)
            self._wait_online()

    def stop(self) -> None:
        """End every process of this federation, by its id."""
        with locked(self.folder / ".lock"):
            self._stop()

    def status(self) -> dict[str, Any]:
        """{"superlink": address or "", "nodes": [{"name", "pid", "node_id", "online"}]}."""
        facts, up = self.facts, self.healthy()
        online = self._online() if up else set()
        nodes = [
            {
                "name": f"node-{number}",
                "pid": node["pid"] if self._runs(node["pid"]) else 0,
                "node_id": node.get("node_id", ""),
                "online": self._runs(node["pid"]) and node.get("node_id") in online,
            }
            for number, node in enumerate(facts["nodes"])
        ]
        return {"superlink": f"127.0.0.1:{facts['port']}" if up else "", "nodes": nodes}

    def healthy(self) -> bool:
        """Whether the SuperLink answers under this federation's own certificate."""
        port, authority = self.facts["port"], self.folder / "tls" / AUTHORITY
        if not port or not authority.exists():
            return False
        return loopback_guard.answers(port, authority)

    def node_folder(self, number: int) -> Path:
        """Where node `number` keeps everything."""
        return self.folder / f"node-{number}"

    def _start_superlink(self) -> None:
        tls, port = self.folder / "tls", free_port()
        private_folder(tls)
        write_certificates(tls)
        write_connection(self.home, port, **{"root-certificates": str(tls / AUTHORITY)})
        log = self.folder / "superlink.log"
        command = loopback_guard.command("flower-superlink")
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--ssl-ca-certfile", str(tls / AUTHORITY)]
        command += ["--ssl-certfile", str(tls / CERTIFICATE), "--ssl-keyfile", str(tls / KEY)]
        # In memory, without --database: noisy node vectors are PRIVATE under plain aggregation.
        command += ["--enable-supernode-auth", "--isolation", "subprocess"]
        environment = flower_environment(self.home, port)
        process = self._spawn(command, environment, log)
        self._command.begin(environment)  # loads while the SuperLink does
        self._write(port=port, pid=process.pid)
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            if process.poll() is not None or time.monotonic() > deadline:
                self._stop()
                raise FlowerError(f"flower-superlink did not start:\n{_tail(log)}")
            time.sleep(0.2)

    def _register(self, number: int) -> None:
        """Admit a node's key; the SuperLink numbers it."""
        nodes = self.facts["nodes"]
        public = write_node_key(self.node_folder(number) / "key")
        reply = self._flwr("supernode", "register", str(public), CONNECTION)
        nodes[number] = {"pid": 0, "node_id": str(reply["node-id"])}
        self._write(nodes=nodes)

    def _start_node(self, number: int) -> None:
        folder, nodes = self.node_folder(number), self.facts["nodes"]
        command = loopback_guard.command("flower-supernode", self.node_python)
        command += ["--superlink", f"127.0.0.1:{self.facts['port']}"]
        command += ["--root-certificates", str(self.folder / "tls" / AUTHORITY)]
        command += ["--auth-supernode-private-key", str(folder / "key")]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", str(folder / "node.toml")]
        home = folder / "flower"
        home.mkdir(exist_ok=True)
        environment = flower_environment(home, self.facts["port"], self.node_python)
        nodes[number]["pid"] = self._spawn(command, environment, folder / "supernode.log").pid
        self._write(nodes=nodes)

    def _wait_online(self) -> None:
        deadline = time.monotonic() + START_SECONDS + NODE_SECONDS * len(self.facts["nodes"])
        wanted = {node["node_id"] for node in self.facts["nodes"]}
        while not wanted <= self._online():
            ended = [n for n, node in enumerate(self.facts["nodes"]) if not self._runs(node["pid"])]
            if ended or time.monotonic() > deadline:
                number = ended[0] if ended else 0
                log = _tail(self.node_folder(number) / "supernode.log")
                raise FlowerError(f"node-{number} did not come online:\n{log}")
            time.sleep(0.5)

    def _online(self) -> set[str]:
        listed = self._flwr("supernode", "list", CONNECTION).get("nodes", [])
        return {str(node["node-id"]) for node in listed if node["status"] == "online"}

    def _stop(self) -> None:
        self._command.close()
        facts = self.facts
        nodes = [node["pid"] for node in facts["nodes"] if self._runs(node["pid"])]
        for pid in nodes:  # all at once: each takes a while to sign off
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS  # for all together, however many there are
        for pid in nodes:
            left = max(LEAST_STOP_SECONDS, deadline - time.monotonic())
            end_group(pid, self._children.get(pid), left)
        if self._runs(facts["pid"]):
            end_group(facts["pid"], self._children.get(facts["pid"]), STOP_SECONDS)
        # Flower gives its own helpers sessions of their own; they notice, or are ended here.
        homes = [self.node_folder(n) / "flower" for n in range(len(facts["nodes"]))]
        for home in [*homes, self.home]:
            for left in started_under(home):
                if _is_flower(left):  # the owner's shell may have this home, too
                    end_process(left)
        self._write(port=0, pid=0, nodes=[{"pid": 0} for _ in facts["nodes"]])

    def _spawn(
        self, command: list[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        process = spawn(command, environment, log)
        self._children[process.pid] = process  # to be reaped, if it ends before this process
        return process

    def _runs(self, pid: int) -> bool:
        """Whether this process is still ours: a number may have gone to somebody else's."""
        if not pid:
            return False
        found = subprocess.run(
            ["ps", "-o", "stat=,command=", "-ww", "-p", str(pid)],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # as paths are
            check=False,
        )
        return str(self.folder) in found.stdout and not found.stdout.startswith("Z")

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        environment = flower_environment(self.home, self.facts["port"])
        return flwr(arguments, self._command, environment)

    def _write(self, **changes: Any) -> None:
        write_json(self.folder / FACTS, {**self.facts, **changes})


class FederationRun(LocalFlower):
    """A run of a federation's SuperLink; ends with the run, the federation stays up."""

    def __init__(self, run_folder: Path, federation: LocalFederation, run_id: str = "") -> None:
        super().__init__(run_folder, port=federation.facts["port"], run_id=run_id)
        self.federation = federation
        self.home = federation.home

    def start(self) -> None:
        """Raises FlowerError unless the federation is up."""
        if not self.healthy():
            folder = self.federation.folder
            raise FlowerError(f"{folder} is not running: privsyn federation start {folder}")

    def healthy(self) -> bool:
        """Whether the federation's SuperLink answers."""
        return self.federation.healthy()

    def where(self, config: RunConfig) -> list[str]:
        """The federation's connection."""
        return [CONNECTION]

    def facts(self) -> dict[str, Any]:
        """What finds the run again."""
        where = {"federation": str(self.federation.folder), "folder": str(self.run_folder)}
        return {**where, "run_id": self.run_id}

    def _clear(self) -> None:
        """Nothing: the home is the federation's."""


def find_run(run_folder: Path) -> LocalFlower | None:
    """What an earlier `privsyn run` left running for this folder, if it still answers.

    None for a folder that was moved or copied here meanwhile: that run is another folder's.
    """
    path = run_folder / "flower.json"
    facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if Path(facts.get("folder", run_folder)).resolve() != run_folder.resolve():
        return None
    if "federation" not in facts:
        return LocalFlower.find(run_folder)
    found = FederationRun(run_folder, LocalFederation(Path(facts["federation"])), facts["run_id"])
    return found if found.healthy() else None


def _is_flower(pid: int) -> bool:
    try:
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False
    return b"flwr" in command or b"flower" in command


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]
