"""Many real SuperNodes against one SuperLink on this machine: TLS, node keys, a secure sum.

    python benchmarks/many_nodes.py [--nodes 5 10 25 50] [--kill 10] [--idle 30] [--json FILE]

The SuperNodes are started in steps. At each number of them the SuperLink is watched doing nothing,
then during one round of votes under secure aggregation. In the round with all of them `--kill` are
killed (SIGKILL) in the stage in which vectors are masked: the sum must be released with the others.
Then one more is killed, which leaves fewer than W_min asks for: the sum must be refused and nothing
charged. Loopback only. Every node is a SuperNode with its own key, data, cache and home; every
message is handled by a fresh process, of which `--at-once` run at the same time.

A node takes 190 MB here, and two processes' imports to start: with `--forked` the nodes' processes
are forked from one that has imported what they need (forked_flower.py), which leaves the
SuperLink's part as it is. The benchmark ends itself when less than `--spare` GB of memory are left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked_flower
from messages import write_users

from privsyn_flower.app.cli.run import RunFailed, run_command
from privsyn_flower.app.local import loopback_guard, simulation
from privsyn_flower.app.local.federation import CONNECTION, LocalFederation
from privsyn_flower.app.local.layout import create
from privsyn_flower.common.files import locked

USERS_A_NODE, EMBEDDER, CANDIDATES = 6, "ngram-256", 1024
COUNTER = Path(__file__).with_name("counted_superlink.py")
FORKS = Path(__file__).with_name("forked_flower.py")
TICK = os.sysconf("SC_CLK_TCK")

CONFIG = """
epsilon = 50.0
noise-multiplier = 2.0
rounds = 1
spare-rounds = 0
nodes = {nodes}
min-surviving-weight = {share}
stage-timeout = 900.0
round-timeout = 900.0
node-timeout = {wait}
cache = "{cache}"

[data]
source = "files"
path = ""
public-path = "{public}"
users = {users}
public-pool = 1400
public-validation = 100

[models]
embedder = "{embedder}"

[pretext]
population = {candidates}
lookahead = 1
threshold = 0.0
variation = "retrieval"

[expand]
samples = 0
"""
POLICY = "min-noise-multiplier = 2.0\nmin-surviving-weight = 10.0\nlifetime-epsilon = 100.0\n"

# The run's ClientApp: every device's, which writes down what it took, and waits to be killed
# where it was told to.
CLIENT = """
import atexit
import json
import os
import resource
import time
from pathlib import Path

from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import main
from privsyn_flower.protocol.secure import stage_of

app = ClientApp()
facts = {{}}


def write():
    used = resource.getrusage(resource.RUSAGE_SELF)
    row = {{**facts, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1024}}
    Path("{rows}", f"{{os.getpid()}}-{{time.time_ns()}}.json").write_text(json.dumps(row))


atexit.register(write)


@app.query("hello")
def hello(message, context):
    facts.update(stage="hello")
    return main.hello(message, context)


@app.query("votes")
def votes(message, context):
    facts.update(stage=stage_of(message))
    folder = Path(str(context.node_config["cache"])).parent
    if facts["stage"] == "mask" and (folder / "hold").exists():
        (folder / "held").touch()
        time.sleep(3600)
    return main.votes(message, context)
"""


class Growing(LocalFederation):
    """A federation whose SuperNodes are started a few at a time, and killed."""

    def __init__(self, folder: Path, at_once: int, forked: bool) -> None:
        self.counts, self.forked = folder / "counts.json", forked
        super().__init__(folder, node_python=str(_slots(folder / "bin", at_once)))
        self.started = 0
        self.dead = set[int]()
        self.forks: subprocess.Popen[bytes] | None = None
        if forked:
            environment = simulation.flower_environment(folder, 1)
            command = [sys.executable, "-P", str(FORKS), str(folder), str(at_once)]
            self.forks = subprocess.Popen(command, env=environment)
            while not (folder / "fork.sock").exists():
                time.sleep(0.1)

    def _spawn(self, command: list[str], environment: dict[str, str], log: Path) -> Any:
        if not self.forked or "flower-supernode" not in command:
            return super()._spawn(command, environment, log)
        argv = command[command.index("flower-supernode") :]
        pid = forked_flower.ask(self.folder, argv, environment, log)
        return SimpleNamespace(pid=pid, poll=lambda: None)  # another process's child

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        if not self.forked:
            return super()._flwr(*arguments)
        environment = simulation.flower_environment(self.home, self.facts["port"])
        log = self.folder / f"flwr-{time.monotonic_ns()}.log"
        argv = ["flwr", *arguments, "--format", "json"]
        text = str(forked_flower.ask(self.folder, argv, environment, log))
        log.unlink()
        reply: dict[str, Any] = json.loads(text[text.index("{") :])
        return reply

    def stop(self) -> None:
        """End all processes."""
        super().stop()
        if self.forks is not None:
            self.forks.terminate()
            self.forks.wait()

    def node_pids(self, number: int) -> list[int]:
        """A SuperNode's processes; forked, those of all together."""
        if self.forks is not None:
            return [pid for pid, _ in _tree(self.forks.pid)]
        return [pid for pid, _ in _tree(self.facts["nodes"][number]["pid"])]

    def grow(self, count: int) -> None:
        """Start nodes until `count` were started, and wait until all that live are online."""
        with locked(self.folder / ".lock"):
            if not self.started:
                self._start_superlink()
            for number in range(self.started, count):
                self._register(number)
                self._start_node(number)
            self.started = count
        while len(self._online()) < count - len(self.dead):
            time.sleep(2.0)

    def kill_held(self, numbers: list[int]) -> None:
        """Kill each of these nodes when it holds a message, and unregister it, as operators do."""
        for number in numbers:
            (self.node_folder(number) / "hold").touch()
        waiting = list(numbers)
        while waiting:
            for number in [n for n in waiting if (self.node_folder(n) / "held").exists()]:
                # Processes below that have a session of their own see that it is gone, and end.
                os.killpg(self.facts["nodes"][number]["pid"], signal.SIGKILL)
                self.dead.add(number)
                waiting.remove(number)
                self._flwr("supernode", "unregister", self.facts["nodes"][number]["node_id"],
                           CONNECTION)  # fmt: skip
            time.sleep(0.2)


def _slots(folder: Path, at_once: int) -> Path:
    """An interpreter for SuperNodes, beside which `flwr-clientapp` waits for one of few slots."""
    folder.mkdir()
    real = Path(sys.executable)
    scripts = {
        "python": f'#!/bin/sh\nPATH={folder}:{real.parent}:$PATH exec {real} "$@"\n',
        "flwr-clientapp": (
            f"#!/bin/sh\nexec flock {folder}/slot-$(( $$ % {at_once} )) "
            f'{real.parent}/flwr-clientapp "$@"\n'
        ),
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder / "python"


class Watch(threading.Thread):
    """Looks at the SuperLink and its ServerApps once a second; guards the machine's memory."""

    def __init__(self, pid: int, spare: float) -> None:
        super().__init__(daemon=True)
        self.pid, self.spare = pid, spare
        self.peak: Counter[str] = Counter()  # MB of a role's process
        self.server_cpu: dict[int, float] = {}  # of each ServerApp's process
        self.start()

    def run(self) -> None:
        while True:
            for pid, command in _tree(self.pid):
                role = "serverapp" if "flwr-serverapp" in command else "superlink"
                role = "superexec" if "flower-superexec" in command else role
                self.peak[role] = max(self.peak[role], _status(pid, "VmHWM") // 1024)
                if role == "serverapp":
                    self.server_cpu[pid] = _cpu(pid)
            free = _free()
            if free < self.spare:
                print(f"{free:.1f} GB of memory left: given up", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(1.0)


def _tree(pid: int) -> list[tuple[int, str]]:
    """A process and all below it, with their command lines."""
    found = [(pid, _command(pid))]
    for child in _read(f"/proc/{pid}/task/{pid}/children").split():
        found += _tree(int(child))
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # ended meanwhile
        return ""


def _command(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ")


def _status(pid: int, key: str, file: str = "status") -> int:
    """A figure in kB of /proc/PID/status or smaps_rollup."""
    for line in _read(f"/proc/{pid}/{file}").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return 0


def _cpu(pid: int) -> float:
    """CPU seconds of one process, without its children."""
    fields = _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK if fields else 0.0


def _free() -> float:
    found = Path("/proc/meminfo").read_text(encoding="ascii").split("MemAvailable:")[1]
    return int(found.split()[0]) / 2**20


def disk(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


class Bench:
    """The federation, and what was measured of it."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.rows = folder / "rows"
        self.rows.mkdir()
        most = max(options.nodes)
        write_users(folder / "users.jsonl", most * USERS_A_NODE, 1)
        write_users(folder / "public.jsonl", 200, 2)
        (folder / "policy.toml").write_text(POLICY)
        common = {"embedder": EMBEDDER, "policy": str(folder / "policy.toml"), "device": "cpu"}
        create(folder / "fed", [folder / "users.jsonl"], nodes=most, node_config=common)
        simulation.MODULES["client"] = CLIENT.format(rows=self.rows)
        self.federation = Growing(folder / "fed", options.at_once, options.forked)
        counted, plain = str(self.federation.counts), loopback_guard.command
        loopback_guard.command = lambda name, python=sys.executable: (
            [python, "-P", str(COUNTER), counted, name]
            if name == "flower-superlink"
            else plain(name, python)
        )
        self.found: list[dict[str, Any]] = []

    def all(self) -> None:
        """Every step; the processes end with it."""
        federation = self.federation
        try:
            for count in sorted(self.options.nodes):
                began = time.monotonic()
                federation.grow(count)
                if not self.found:
                    self.watch = Watch(federation.facts["pid"], self.options.spare)
                self.note("start", began, nodes=count, free=_free())
                self.idle(count)
                if count < max(self.options.nodes) or not self.options.kill:
                    self.round("round", count)
            if kill := self.options.kill:
                left = max(self.options.nodes) - kill
                victims = list(range(kill))
                self.round("killed", left + kill, victims, left * USERS_A_NODE)
                self.round("refused", left, [kill], left * USERS_A_NODE)
            self.note("disk", time.monotonic(), superlink=disk(federation.home),
                      log=(federation.folder / "superlink.log").stat().st_size,
                      node=disk(federation.node_folder(max(self.options.nodes) - 1)))  # fmt: skip
        finally:
            federation.stop()

    def note(self, what: str, began: float, **facts: Any) -> None:
        row = {"what": what, "seconds": time.monotonic() - began, **facts}
        self.found.append(row)
        print(json.dumps(row), flush=True)
        if self.options.json:
            self.options.json.write_text(json.dumps(self.found, indent=1) + "\n")

    def counts(self) -> Counter[str]:
        time.sleep(1.5)  # they are written once a second
        return Counter(json.loads(self.federation.counts.read_text()))

    def node_cpu(self) -> list[float]:
        """CPU seconds of each living SuperNode, its two processes together."""
        facts = self.federation.facts["nodes"]
        alive = [n for n in range(self.federation.started) if n not in self.federation.dead]
        return [
            sum(_cpu(pid) for pid, command in _tree(facts[n]["pid"]) if "clientapp" not in command)
            for n in alive
        ]

    def idle(self, count: int) -> None:
        """The SuperLink and the SuperNodes while nothing is asked."""
        link, began = self.federation.facts["pid"], time.monotonic()
        before, cpu, nodes = self.counts(), _cpu(link), self.node_cpu()
        time.sleep(self.options.idle)
        spent, after = _cpu(link) - cpu, self.counts()
        node = statistics.median(b - a for a, b in zip(nodes, self.node_cpu(), strict=True))
        pids = self.federation.node_pids(count - 1)
        nodes_in = count if self.options.forked else 1
        memory = {
            key: sum(_status(pid, key, "smaps_rollup") for pid in pids) / 1024 / nodes_in
            for key in ("Rss", "Pss")
        }
        self.note("idle", began, nodes=count, superlink_cpu=spent, node_cpu=node,
                  counts=after - before, node_memory=memory, processes=len(pids),
                  superlink_rss=_status(link, "VmRSS") / 1024)  # fmt: skip

    def round(self, what: str, count: int, victims: list[int] = [], least: int = 0) -> None:
        """One run of one round. victims: killed in it; least: W_min, default a tenth less."""
        folder = self.folder / f"{what}-{count}"
        wait = 150.0 if what == "refused" else 900.0
        # The declared population is everybody's, whoever was started yet.
        users, here = max(self.options.nodes) * USERS_A_NODE, count * USERS_A_NODE
        config = self.folder / f"{what}-{count}.toml"
        config.write_text(
            CONFIG.format(
                nodes=count, users=users, cache=self.folder / "cache", embedder=EMBEDDER,
                public=self.folder / "public.jsonl", candidates=CANDIDATES, wait=wait,
                share=(least or 0.9 * here) / users,
            )
        )  # fmt: skip
        for path in self.rows.glob("*"):
            path.unlink()
        self.watch.peak.clear()
        link, began = self.federation.facts["pid"], time.monotonic()
        before, cpu, nodes = self.counts(), _cpu(link), Counter(enumerate(self.node_cpu()))
        servers = sum(self.watch.server_cpu.values())
        killer = threading.Thread(target=self.federation.kill_held, args=(victims,), daemon=True)
        killer.start()
        error = ""
        try:
            run_command(config, [f"run-folder={folder}"], None, self.federation.folder)
        except RunFailed as failed:
            error = str(failed)
        killer.join()
        clients = [json.loads(path.read_text()) for path in self.rows.glob("*.json")]
        self.note(what, began, nodes=count, killed=len(victims), error=error[:500],
                  superlink_cpu=_cpu(link) - cpu, counts=self.counts() - before,
                  serverapp_cpu=sum(self.watch.server_cpu.values()) - servers,
                  peak=dict(self.watch.peak), messages=Counter(row["stage"] for row in clients),
                  clientapp_cpu=statistics.median(row["cpu"] for row in clients),
                  clientapp_peak=max(row["peak"] for row in clients),
                  node_cpu=None if victims else statistics.median(
                      after - nodes[at] for at, after in enumerate(self.node_cpu())),
                  **self.said(folder))  # fmt: skip

    def said(self, folder: Path) -> dict[str, Any]:
        """What the run folder says: the round's facts, and the ledger's rows."""
        metrics = folder / "metrics.jsonl"
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        ledger = (folder / "ledger.jsonl").read_text().splitlines()[1:]
        return {
            "round": json.loads(rows[-1]) if rows else None,
            "ledger": [json.loads(row)["kind"] for row in ledger],
            "released": len(list((folder / "releases").glob("*"))),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 10, 25, 50])
    parser.add_argument("--kill", type=int, default=10, help="in mid-round, at the last number")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds that nothing is asked")
    parser.add_argument("--at-once", type=int, default=12, help="ClientApps that run together")
    parser.add_argument("--forked", action="store_true", help="processes that share their imports")
    parser.add_argument("--spare", type=float, default=4.0, help="GB of memory to leave alone")
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # SIGINT's too: a shell starts what is in the background with it ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    if not shutil.which("flock"):
        raise SystemExit("flock (util-linux) is needed")
    with tempfile.TemporaryDirectory() as name:
        Bench(Path(name), options).all()


if __name__ == "__main__":
    main()
