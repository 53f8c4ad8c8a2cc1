"""A miniature federation for real Flower runs: two topics, hashed n-grams, no torch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.app.local.federation import LocalFederation
from privsyn_flower.app.local.processes import free_port
from privsyn_flower.app.local.simulation import write_connection
from tests.rigs.run import finish

ROOT = Path(__file__).parents[2]
NATURE = "river stone cloud forest mountain valley meadow lake rain storm wind leaf".split()
MATHS = "matrix vector tensor kernel lemma theorem proof axiom graph vertex edge ring".split()

MINI = """
rounds = {rounds}
nodes = 3
epsilon = 50.0
simulation-seeded-noise = true
cache = "{cache}"

[data]
source = "files"
path = "{private}"
public-path = "{public}"
users = 40
held-out-users = 10
development-users = 5
public-pool = 200
public-validation = 20

[models]
embedder = "ngram-64"

[pretext]
population = 24
lookahead = 1
variation = "retrieval"

[expand]
samples = 0
"""


# One worker answers for all nodes: a second one would load longer than it answers. None is started
# before it is known what for, and at nice 15, Ray's own choice, it would starve.
RAY = {
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 1}',
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",
}


@pytest.fixture(scope="session", autouse=True)
def small_ray() -> Iterator[None]:
    """Every starter hands its environment down."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY.items():
            patch.setenv(name, value)
        yield


def sentence(rng: np.random.Generator, words: list[str]) -> str:
    return " ".join(rng.choice(words, size=12))


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with users.jsonl, public.jsonl and mini.toml (few rounds), long.toml (many)."""
    folder = tmp_path_factory.mktemp("mini")
    rng = np.random.default_rng(0)
    with (folder / "users.jsonl").open("w") as file:
        for user in range(60):
            for _ in range(4):
                row = {"user_id": f"u{user}", "text": sentence(rng, MATHS)}
                file.write(json.dumps(row) + "\n")
    with (folder / "public.jsonl").open("w") as file:
        for user in range(100):
            for _ in range(4):
                row = {"user_id": f"p{user}", "text": sentence(rng, NATURE if user % 4 else MATHS)}
                file.write(json.dumps(row) + "\n")
    for name, rounds in (("mini", 2), ("long", 16)):
        text = MINI.format(
            rounds=rounds,
            cache=folder / "cache",
            private=folder / "users.jsonl",
            public=folder / "public.jsonl",
        )
        (folder / f"{name}.toml").write_text(text)
    return folder


def privsyn(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """The real command in a process of its own."""
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "privsyn"), *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        # A test run in the background inherits an ignored SIGINT; a user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@contextlib.contextmanager
def commanded_federation(
    mini: Path, name: str, users: int, nodes: int, policy: str
) -> Iterator[LocalFederation]:
    """A federation of the first users, started and stopped by the command; nothing is left."""
    folder, data, rules = mini / name, mini / f"{name}.jsonl", mini / f"{name}-policy.toml"
    data.write_text("".join((mini / "users.jsonl").read_text().splitlines(True)[: users * 4]))
    rules.write_text(policy)
    start = ["start", folder, "--data", data.name, "--nodes", str(nodes)]
    start += ["--embedder", "ngram-64", "--policy", rules.name]
    try:
        code, _, err = finish(privsyn("federation", *start, cwd=mini))
        assert code == 0, err
        yield LocalFederation(folder)
    finally:
        code, _, err = finish(privsyn("federation", "stop", folder, cwd=mini))
        assert code == 0, err
        assert processes_mentioning(str(folder)) == []


def processes_mentioning(text: str) -> list[int]:
    """Live process ids whose command line or environment names `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            seen = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if state != "Z" and text.encode() in seen:
            found.append(int(entry.name))
    return found


def left_running(text: str, seconds: float = 600) -> list[str]:
    """Command lines of the processes that still name `text` when the time is over; mostly none.

    Ray ends its processes one after the other, on a busy machine slowly.
    """
    deadline = time.monotonic() + seconds
    while (found := processes_mentioning(text)) and time.monotonic() < deadline:
        time.sleep(0.5)
    lines = []
    for process in found:
        with contextlib.suppress(OSError):  # gone since
            line = (Path("/proc") / str(process) / "cmdline").read_bytes()
            lines.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return lines


RUNNING = "PRIVSYN_TEST_SUPERLINK"  # variable: one answers already at the environment's port


@contextlib.contextmanager
def superlink(environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """A SuperLink for plain `flwr` commands, once it answers, until the block ends.

    The one that `flwr run` would start itself is given up after 15 seconds, which a busy machine
    exceeds. Here nothing but pytest's own limit counts.
    """
    port = int(environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"])
    write_connection(Path(environment["FLWR_HOME"]), port, insecure=True)
    program = shutil.which("flower-superlink", path=environment["PATH"])
    assert program is not None
    command = [program, "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait()


def flwr(
    command: str | Sequence[str | Path], environment: Mapping[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """A plain `flwr` command, beside a SuperLink that answers already."""
    with contextlib.ExitStack() as stack:
        if RUNNING not in environment:
            stack.enter_context(superlink(environment, cwd / "superlink.log"))
        return subprocess.run(
            command if isinstance(command, str) else [*map(str, command)],
            shell=isinstance(command, str), env=environment, cwd=cwd,
            capture_output=True, text=True,
        )  # fmt: skip


@contextlib.contextmanager
def own_flower(folder: Path) -> Iterator[dict[str, str]]:
    """For plain `flwr`: a home in `folder`, and a port; what it leaves running is ended."""
    home = folder / "flower-home"
    home.mkdir()
    binaries = Path(sys.executable).parent
    yield {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
    }
    deadline = time.monotonic() + 20
    while (left := processes_mentioning(str(home))) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        time.sleep(0.5)


@pytest.fixture
def flower_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Flower of the test's own."""
    with own_flower(tmp_path) as environment:
        yield environment


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Flower without a network, whose SuperLink serves all tests of a module; HOME is a link."""
    folder = tmp_path_factory.mktemp("offline")
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    own = {"HOME": str(folder / "home"), "XDG_DATA_HOME": "", "PYTHONPATH": str(ROOT)}
    with own_flower(folder) as environment:
        environment |= {**proxies, **own, "no_proxy": "127.0.0.1,localhost"}
        with superlink(environment, folder / "superlink.log"):
            yield environment | {RUNNING: "1"}


@pytest.fixture
def environment(tmp_path: Path, offline: dict[str, str]) -> dict[str, str]:
    """The module's Flower; its runs have the test's folder for a home, where keys are kept."""
    home = Path(offline["HOME"])
    home.unlink(missing_ok=True)
    home.symlink_to(tmp_path)
    return {**offline, "HOME": str(tmp_path)}
