"""A Flower run on this machine that tells the truth: own SuperLink, own home, real exit status.

Flower's own `flwr run` starts a daemon that outlives it, keeps the first run's environment and
exits 0 when the ServerApp failed. Here the SuperLink is a child process with a free port, an
in-memory database (noisy node vectors are PRIVATE and must not stay on disk) and an FLWR_HOME
inside the run folder; it ends with the run. It answers this account alone (`loopback_guard`), and
so does the simulation's Ray (`private_ray`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower import NO_TELEMETRY, __version__
from privsyn_flower.app.local import loopback_guard
from privsyn_flower.app.local.command import FlowerCommand, Result
from privsyn_flower.app.local.processes import (
    end_group,
    end_process,
    free_port,
    spawn,
    started_under,
)
from privsyn_flower.common.files import write_atomic
from privsyn_flower.config import RunConfig, Scalar, to_toml, toml_value
from privsyn_flower.runs import lock_holder, write_json

CLUSTER_CHECKED = "PRIVSYN_RAY_CHECKED"  # variable: the cluster that `ray_cluster` has looked at
# Set by notebooks and some build servers: Flower's JSON would come with colours in it.
COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE")
CONNECTION = "local"  # what the SuperLink is called in Flower's configuration
RAY_MARK = "made-for-ray"  # a file in the folder that a run makes for Ray, and removes again
START_SECONDS = 300.0  # at most; one that ends is noticed at once
GRACE_SECONDS = 8.0  # for a ServerApp to notice that its SuperLink is gone

PYPROJECT = """\
[project]
name = "privsyn-run"
version = "{version}"
description = "A privsyn-flower run; the code is the installed package's."
license = "Apache-2.0"
dependencies = ["privsyn-flower"]

[tool.flwr.app]
publisher = "privsyn"

[tool.flwr.app.components]
serverapp = "privsyn_server:app"
clientapp = "privsyn_client:app"

{config}"""

# A device loads its own side only, and does so for every message.
MODULES = {
    name: f"from privsyn_flower.{name}_apps.main import app\n\n__all__ = ['app']\n"
    for name in ("client", "server")
}

# Ray's dashboard asks the metadata servers of three clouds which of them it runs in, without usage
# reports too. It asks through `requests`, which finds a proxy for one host under such a name; no
# other program's requests go there, and nothing listens at it.
NO_CLOUD_METADATA = {
    f"http://{host}_proxy": "http://127.0.0.1:9"
    for host in ("169.254.169.254", "metadata.google.internal")
}


class FlowerError(RuntimeError):
    """Flower could not be started, or did not accept the run."""


def write_app(folder: Path) -> Path:
    """The small Flower app that names the installed package's ServerApp and ClientApp."""
    config = to_toml(RunConfig(), prefix="tool.flwr.app.config")
    text = PYPROJECT.format(version=__version__, config=config)
    write_atomic(folder / "pyproject.toml", text.encode())
    for name, code in MODULES.items():
        write_atomic(folder / f"privsyn_{name}.py", code.encode())
    return folder


class LocalFlower:
    """One SuperLink for one run folder.

    The facts that let another process find it again are in `<run folder>/flower.json`.
    """

    def __init__(self, run_folder: Path, *, port: int = 0, pid: int = 0, run_id: str = "") -> None:
        self.run_folder = run_folder
        self.home = run_folder / ".flower"
        self.port = port or free_port()
        self.pid = pid
        self.run_id = run_id
        self.scratch: Path | None = None  # Ray's files, PRIVATE: logs, what did not fit in memory
        self._ray: dict[str, str] = {}
        self._command = FlowerCommand()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls, run_folder: Path) -> LocalFlower | None:
        """The SuperLink an earlier `privsyn run` started for this folder, if it still answers."""
        path = run_folder / "flower.json"
        if not path.exists():
            return None
        facts = json.loads(path.read_text(encoding="utf-8"))
        found = cls(run_folder, port=facts["port"], pid=facts["pid"], run_id=facts["run_id"])
        found.scratch = ray_folder_of(facts)
        return found if found.healthy() else None

    @classmethod
    def end_moved(cls, run_folder: Path) -> None:
        """End what still runs for a folder that was moved here from where it was started.

        A copy's original is left alone: its folder is still there.
        """
        path = run_folder / "flower.json"
        facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        there = (Path(facts.get("folder", run_folder)) / "config.toml").exists()
        if "federation" in facts or there:
            return
        old = cls(Path(facts["folder"]), port=facts["port"])
        old.scratch = ray_folder_of(facts)
        old._clear()

    def environment(self) -> dict[str, str]:
        """The environment of every process started here."""
        return flower_environment(self.home, self.port) | self._ray

    def start(self) -> None:
        """Start the SuperLink and wait until it answers. Raises FlowerError with its log."""
        self.home.mkdir(parents=True, exist_ok=True)
        if cluster := users_cluster():
            self._ray = {CLUSTER_CHECKED: cluster}
        else:
            self.scratch = ray_folder()
            self._ray = private_ray(self.scratch)
        write_connection(self.home, self.port, insecure=True)
        self._command.begin(self.environment())  # loads while the SuperLink does
        log = self.home / "superlink.log"
        command = [*loopback_guard.command("flower-superlink"), "--insecure", "--simulation"]
        command += ["--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = spawn(command, self.environment(), log)
        self.pid = self._process.pid
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.close()
                tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                waited = "it ended" if ended else f"no answer in {START_SECONDS:g} s"
                raise FlowerError(
                    f"flower-superlink did not start on port {self.port} ({waited}; {log}):\n{tail}"
                )
            time.sleep(0.2)

    def healthy(self) -> bool:
        """True when the SuperLink answers on its port."""
        return loopback_guard.answers(self.port)

    def submit(self, config: RunConfig) -> str:
        """Start the run; returns Flower's run id."""
        app = write_app(self.run_folder / ".flower" / "privsyn-run")
        overrides = app.with_name("run-config.toml")
        write_atomic(overrides, flat_toml(config.flat()).encode())
        place = self.where(config)
        reply = self._flwr("run", str(app), *place, "--run-config", str(overrides))
        self.run_id = str(reply["run-id"])
        write_json(self.run_folder / "flower.json", self.facts())
        return self.run_id

    def where(self, config: RunConfig) -> list[str]:
        """What tells `flwr run` where to run."""
        nodes = f"num-supernodes={config.nodes} client-resources-num-cpus=1"
        return ["--federation-config", nodes]

    def facts(self) -> dict[str, Any]:
        """What finds the run again."""
        return {
            "port": self.port,
            "pid": self.pid,
            "run_id": self.run_id,
            "folder": str(self.run_folder),  # a copied folder's Flower is its original's
            "scratch": str(self.scratch or ""),
        }

    def status(self) -> str:
        """Flower's word on the run, for example running or finished:completed."""
        reply = self._flwr("list", "--run-id", self.run_id)
        return str(reply["runs"][0]["status"])

    def log(self) -> str:
        """The run's log as Flower kept it. Raises FlowerError when Flower does not answer."""
        command = ["log", self.run_id, "--show"]
        return _run_flwr(command, self._command, self.environment(), timeout=60).stdout

    def stop(self) -> None:
        """Ask Flower to stop the run."""
        if self.run_id:
            self._flwr("stop", self.run_id)

    def close(self) -> None:
        """End the SuperLink and everything it started."""
        self._command.close()
        if self.pid:
            end_group(self.pid, self._process)
        self.pid = 0
        # Flower gives the ServerApp's process a session of its own. It ends itself, and Ray with
        # it, unless it is deep in a computation: then it would go on for minutes, unseen.
        deadline = time.monotonic() + GRACE_SECONDS
        while lock_holder(self.run_folder) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if holder := lock_holder(self.run_folder):
            end_process(holder)
        (self.run_folder / "flower.json").unlink(missing_ok=True)
        self._clear()

    def _clear(self) -> None:
        for left in started_under(self.home):
            end_process(left, wait=3.0)
        shutil.rmtree(self.home / "apps", ignore_errors=True)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        return flwr(arguments, self._command, self.environment())


def users_cluster() -> str:
    """The Ray cluster that the user wants simulations in, and protects; "": none, we start one."""
    address = os.environ.get("RAY_ADDRESS", "").strip()
    # "auto" is whatever cluster a file in the shared /tmp/ray names, whoever wrote it.
    return "" if address in ("local", "auto") else address


def ray_folder() -> Path:
    """A new folder for Ray's files that only this account can enter; Ray opens its own to all.

    Ray would also join any cluster that a file in the shared /tmp/ray names.
    """
    short = len(tempfile.gettempdir()) <= 20  # Ray's sockets lie in it: 107 characters at most
    folder = Path(tempfile.mkdtemp(prefix="privsyn-", dir=None if short else "/tmp"))
    (folder / RAY_MARK).touch()
    return folder


def ray_folder_of(facts: Mapping[str, Any]) -> Path | None:
    """Ray's folder as flower.json names it, to be removed; None for one that `ray_folder` did not
    make: a run folder, and this file in it, may come from somebody else."""
    path = Path(str(facts.get("scratch") or ""))
    try:
        ours = path.is_absolute() and not path.is_symlink() and (path / RAY_MARK).is_file()
    except OSError:  # nor one that this account may not enter
        return None
    return path if ours else None


def private_ray(scratch: Path) -> dict[str, str]:
    """The environment of a Ray on loopback that only holders of a new random token can use."""
    return {
        **({"RAY_ADDRESS": "local"} if "RAY_ADDRESS" in os.environ else {}),  # it may say "auto"
        "RAY_TMPDIR": str(scratch),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the switch for loopback, on Linux too
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Where prometheus_client is installed the autoscaler serves metrics, on 44217 for everybody
        # on the machine, and has no switch for it: no such port, so it logs that and goes on.
        "AUTOSCALER_METRIC_PORT": "65536",
        **NO_CLOUD_METADATA,
    }


def write_connection(home: Path, port: int, **more: Scalar) -> None:
    """Which SuperLink Flower's commands in `home` ask. Without it each of them looks for one first,
    for 0.4 seconds, and starts another one where a busy machine answers later."""
    connection: dict[str, Scalar] = {"address": f"127.0.0.1:{port}", **more}
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    write_atomic(home / "config.toml", (text + flat_toml(connection)).encode())


def flower_environment(home: Path, port: int, python: str = sys.executable) -> dict[str, str]:
    """The environment of Flower's commands and daemons: own home, own port, no reporting.

    python: of the installation whose commands they start.
    """
    binaries = str(Path(python).parent)
    return {
        **{name: value for name, value in os.environ.items() if name not in COLOURED},
        **NO_TELEMETRY,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": os.environ.get(
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"
        ),
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}",
        # Threads of a numeric library that wait for each other would spin, and starve the others.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "TOKENIZERS_PARALLELISM": "true",
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",  # whatever the locale: paths and texts are not ASCII
        "PYTHONIOENCODING": "utf-8",
    }


def flwr(
    arguments: Sequence[str], command: FlowerCommand, environment: dict[str, str]
) -> dict[str, Any]:
    """One `flwr` command that answers in JSON. Raises FlowerError with what it printed."""
    result = _run_flwr([*arguments, "--format", "json"], command, environment, timeout=180)
    start = result.stdout.find("{")
    try:
        reply: dict[str, Any] = json.loads(result.stdout[start:])
    except ValueError:
        reply = {}
    if result.returncode or not reply or reply.get("success") is False:
        text = (result.stdout + result.stderr).strip()[-2000:]
        raise FlowerError(f"flwr {arguments[0]} failed:\n{text}")
    return reply


def _run_flwr(
    arguments: Sequence[str], command: FlowerCommand, environment: dict[str, str], timeout: float
) -> Result:
    try:
        return command.ask(arguments, environment, timeout)
    except subprocess.TimeoutExpired:
        raise FlowerError(
            f"flwr {arguments[0]} did not answer within {timeout:g} s: is the machine overloaded?"
        ) from None


def flat_toml(values: dict[str, Scalar]) -> str:
    """Dotted keys as TOML, the form `flwr run --run-config FILE` takes."""
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())
