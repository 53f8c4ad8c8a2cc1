"""The images of both roles (`make image-test`): what is in them, and a federation of them.

The federation is the manifests': their commands, environments, probes and configuration, with
folders for volumes, loopback for the cluster's network and no proxy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.local.layout import AUTHORITY, CERTIFICATE, KEY, write_certificates
from privsyn_flower.app.local.processes import end_group
from tests.end_to_end.conftest import mini
from tests.images.containers import (
    STARTERS,
    USER,
    Container,
    podman,
    podman_run,
    root_of,
    settings_of,
)
from tests.test_kubernetes import SUPERLINK, SUPERNODE, named

__all__ = ["mini"]  # pytest finds the fixture by name

ROOT = Path(__file__).parents[2]
SERVER, NODE = SUPERLINK["image"], SUPERNODE["image"]
MOST_MB = {SERVER: 2600, NODE: 650}
BUILDERS = "apt apt-get cc dpkg gcc git ld make perl pip pip3".split()
NODES, USERS = 3, 36  # in all
TO_SUPERLINK = {"superlink.privsyn.svc:9092": "127.0.0.1:8000"}  # there is no proxy

RUN = """
epsilon = 50.0
noise-multiplier = 2.0
rounds = 1
nodes = 3
min-surviving-weight = 0.6
stage-timeout = 500.0
round-timeout = 500.0
node-timeout = 500.0
run-folder = "/var/lib/privsyn/run"
cache = "/var/lib/privsyn/cache"

[data]
source = "files"
path = ""
public-path = "/var/lib/privsyn/public.jsonl"
users = 36
public-pool = 100
public-validation = 20

[models]
embedder = "minilm-int8"

[pretext]
population = 24
lookahead = 1
threshold = 0.0
variation = "retrieval"

[expand]
samples = 0
"""

Start = Callable[..., list[str]]


@pytest.fixture(scope="module", autouse=True)
def images() -> Iterator[None]:
    """Skips where there are no images or no rights, and leaves none of them mounted."""
    try:
        podman("image", "exists", SERVER), podman("image", "exists", NODE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"make images first: {error}")
    if os.getuid():
        pytest.skip("the images' files can be read by root alone")
    yield
    podman("image", "unmount", SERVER, NODE)


@pytest.fixture(params=sorted(STARTERS))
def runtime(request: pytest.FixtureRequest) -> tuple[Start, int]:
    """How containers are started, and the account that volumes belong to; skips where it fails."""
    start, owner = STARTERS[request.param]
    bare = Container({"image": NODE, "volumeMounts": []}, {})
    try:
        podman_run() if request.param == "podman" else None
        subprocess.run(start(bare, "true"), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{request.param}: {getattr(error, 'stderr', error)}")
    return start, owner


def finished(command: list[str]) -> str:
    """What a command printed; fails the test with its log when it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("image", [SERVER, NODE])
def test_nothing_in_it_builds_or_gains_rights(image: str) -> None:
    root = root_of(image)
    assert settings_of(image)["User"] == f"{USER}:{USER}"
    assert int(podman("image", "inspect", "--format", "{{.Size}}", image)) < MOST_MB[image] * 1e6
    folders = [root / name for name in ("usr/bin", "usr/sbin", "usr/local/bin", "opt/privsyn/bin")]
    assert [f / name for f in folders for name in BUILDERS if os.path.lexists(f / name)] == []
    (packages,) = root.glob("opt/privsyn/lib/python3*/site-packages")
    assert (packages / "privsyn_flower").is_dir()
    assert ((packages / "torch").is_dir()) == (image == SERVER)
    assert not (packages / "pip").exists()
    programs = [Path(at) / name for at, _, names in os.walk(root) for name in names]
    assert not any(path.lstat().st_mode & 0o6000 for path in programs if not path.is_symlink())


def test_it_is_closed(runtime: tuple[Start, int], tmp_path: Path) -> None:
    start, owner = runtime
    node = Container(SUPERNODE, {"state": tmp_path})
    os.chown(tmp_path, owner, owner)
    code = (
        "import os; from pathlib import Path; own = Path('/proc/self/status').read_text();"
        "print(os.getuid(), [l.split()[1] for l in own.splitlines() if l.startswith('CapEff')],"
        "sorted(l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l));"
        "Path('/var/lib/privsyn/kept').touch(); Path('/opt/privsyn/changed').touch()"
    )
    done = subprocess.run(start(node, "python", "-c", code), capture_output=True, text=True)
    if "lo" not in done.stdout or "eth" in done.stdout:
        pytest.skip("a network: make image-test starts this without one")
    assert done.stdout.split("\n")[0] == f"{USER} ['0000000000000000'] ['lo']"
    assert "Read-only file system: '/opt/privsyn/changed'" in done.stderr
    assert (tmp_path / "kept").exists()


class Federation:
    """The manifests' containers with volumes in a folder; what it started ends with `stop`."""

    def __init__(self, start: Start, owner: int, folder: Path, mini: Path) -> None:
        self.start, self.owner, self.folder = start, owner, folder
        self.running: list[subprocess.Popen[bytes]] = []
        tls, state, rows = folder / "tls", folder / "server", mini.joinpath("users.jsonl")
        for path in (tls, state, state / "flower", folder / "config"):
            path.mkdir()
        write_certificates(tls)
        (tls / CERTIFICATE).rename(tls / "tls.crt"), (tls / KEY).rename(tls / "tls.key")
        assert AUTHORITY == "ca.crt"
        config = named("ConfigMap", "superlink")["data"]["config.toml"]
        config = config.replace("localhost", "127.0.0.1")  # a bare namespace has no /etc/hosts
        (state / "flower" / "config.toml").write_text(config)
        (state / "run.toml").write_text(RUN)
        shutil.copy(mini / "public.jsonl", state)
        shutil.copytree(ROOT / "app", state / "app")
        self.superlink = Container(SUPERLINK, {"state": state, "tls": tls})
        lines = rows.read_text().splitlines()[: USERS * 4]
        each = len(lines) // NODES
        texts = [lines[number * each : (number + 1) * each] for number in range(NODES)]
        self.nodes = [self._node(number, text) for number, text in enumerate(texts)]
        for at, folders, names in os.walk(folder):
            for name in (".", *folders, *names):
                os.chown(Path(at) / name, owner, owner)

    def _node(self, number: int, lines: list[str]) -> Container:
        own = self.folder / f"node-{number}"
        for name in ("state", "data", "config"):
            (own / name).mkdir(parents=True)
        (own / "data" / "users.jsonl").write_text("\n".join(lines) + "\n")
        for name, text in named("ConfigMap", "supernode")["data"].items():
            text = text.replace("weight = 50", f"weight = {USERS // NODES}")
            text = text.replace("weight = 100.0", "weight = 20.0")
            text = text.replace("lifetime-epsilon = 8.0", "lifetime-epsilon = 50.0")
            (own / "config" / name).write_text(text)
        other = {**TO_SUPERLINK, "9094": str(9094 + number)}
        spec = {**SUPERNODE, "args": [other.get(word, word) for word in SUPERNODE["args"]]}
        volumes = {name: own / name for name in ("state", "data", "config")}
        return Container(spec, volumes | {"authority": self.folder / "tls"})

    def run(self, of: Container, *command: str) -> str:
        """What a command printed in a container of its own."""
        return finished(self.start(of, *command))

    def begin(self, of: Container) -> None:
        """Start the manifest's command, with its log in the folder."""
        log = (self.folder / f"{len(self.running)}.log").open("wb")
        command = self.start(of)
        self.running.append(
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        )

    def wait(self, of: Container) -> None:
        """Until its startup probe passes, or it ended."""
        probe = of.spec["startupProbe"]["exec"]["command"]
        while subprocess.run(self.start(of, *probe), capture_output=True).returncode:
            assert self.running[-1].poll() is None, (self.folder / "0.log").read_text()
            time.sleep(1)

    def stop(self) -> None:
        """End every container."""
        for process in reversed(self.running):
            end_group(process.pid, process)


@pytest.fixture
def federation(runtime: tuple[Start, int], tmp_path: Path, mini: Path) -> Iterator[Federation]:
    """A SuperLink and three SuperNodes, registered."""
    found = Federation(*runtime, tmp_path, mini)
    key = named("StatefulSet", "supernode")["spec"]["template"]["spec"]["initContainers"][0]
    try:
        found.begin(found.superlink)
        found.wait(found.superlink)
        for number, node in enumerate(found.nodes):
            public = found.run(Container({**SUPERNODE, **key}, node.volumes))
            file = tmp_path / "server" / f"{number}.pub"
            file.write_text(public)
            os.chown(file, found.owner, found.owner)
            inside = f"/var/lib/privsyn/{file.name}"
            found.run(found.superlink, "flwr", "supernode", "register", inside, "here")
            found.begin(node)
        yield found
    finally:
        found.stop()


def test_a_round_of_secure_sums(federation: Federation) -> None:
    place = "/var/lib/privsyn"
    run = ["flwr", "run", f"{place}/app", "here", "--stream", "--run-config", f"{place}/run.toml"]
    out = federation.run(federation.superlink, *run)
    file = federation.folder / "server" / "run" / "summary.json"
    assert file.exists(), out + "".join(p.read_text() for p in federation.folder.glob("*.log"))
    summary: dict[str, Any] = json.loads(file.read_text())
    assert summary["rounds"] == 1 and summary["synthetic_samples"] > 0
    assert "claim holds against the server" in summary["privacy"]
    for node in federation.nodes:
        config = ["--node-config", "/etc/privsyn/node.toml"]
        status = json.loads(federation.run(node, "privsyn", "node", "status", "--json", *config))
        assert status["answers"] == 1 and status["refusals"] == {}
        assert status["records"]["users"] == USERS // NODES
        assert 0 < status["records"]["max_spent_epsilon"] < 50
