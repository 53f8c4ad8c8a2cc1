"""Devices as they are installed: with the extra `edge`, and nothing else.

The SuperLink and the ServerApp run in this environment, three SuperNodes in a new one that holds
what the extra asks for: no torch, no dp-accounting. The ClientApp writes down what each process
loaded and took; everything else is what a user runs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.cli.run import run_command
from privsyn_flower.app.local import simulation as launch
from privsyn_flower.app.local.federation import LocalFederation, hosted
from privsyn_flower.client_apps.node.failures import read_failures
from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
from tests.rigs.environments import linked
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

NODES, USERS, EMBEDDER = 3, 36, "minilm-int8"
STAGES = ["advertise", "confirm", "mask", "share", "unmask"]
ABSENT = ("torch", "transformers", "sentence_transformers", "dp_accounting", "scipy", "pandas")
MOST_MB = 250  # of a process that answers, resident

POLICY = """
min-noise-multiplier = 2.0
min-surviving-weight = 20.0
lifetime-epsilon = 50.0
aggregation = ["secure", "plain"]
"""

COMMON = """
epsilon = 50.0
noise-multiplier = 2.0
nodes = 3
min-surviving-weight = 0.6
stage-timeout = 500.0
round-timeout = 500.0
node-timeout = 300.0
cache = "{cache}"
{method}
[data]
source = "files"
path = ""
public-path = "{public}"
users = 36
public-pool = 100
public-validation = 20

[models]
embedder = "minilm-int8"
"""

PRETEXT = """
[pretext]
population = 24
lookahead = 1
threshold = 0.0
variation = "retrieval"

[expand]
samples = 0
"""

POPRI = """
generator = "{generator}"

[popri]
prompts = 6
responses = 3
examples = 1
rejected-rank = 3
learning-rate = 1e-3
epochs = 1
batch-size = 6
lora-rank = 2

[expand]
samples = 12
min-words = 1
max-tokens = 16
"""

# Besides answering it writes what the process loaded and took until then.
CLIENT = """
import json
import sys
import time
from pathlib import Path

from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import main
from privsyn_flower.protocol.secure import stage_of

app = ClientApp()


def noted(handler, message, context):
    reply = handler(message, context)
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    row = {
        "kind": handler.__name__,
        "stage": stage_of(message) or "",
        "mb": {key: int(status[key].split()[0]) // 1024 for key in ("VmHWM", "VmPeak", "VmData")},
        "cpu": time.process_time(),
        "prefix": sys.prefix,
        "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
    }
    with (Path(str(context.node_config["cache"])).parent / "messages.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\\n")
    return reply


@app.query("hello")
def hello(message, context):
    return noted(main.hello, message, context)


@app.query("votes")
def votes(message, context):
    return noted(main.votes, message, context)


@app.query("scores")
def scores(message, context):
    return noted(main.scores, message, context)
"""


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the package and the extra `edge`; its folder."""
    return linked(tmp_path_factory.mktemp("edge") / "venv", "privsyn-flower[edge]")


@pytest.fixture(scope="module")
def federation(device: Path, mini: Path) -> Iterator[LocalFederation]:
    """Three SuperNodes with twelve users each, started from the device's environment."""
    folder = mini / "edge-federation"
    rows = (mini / "users.jsonl").read_text().splitlines()
    users, policy = mini / "edge-users.jsonl", mini / "edge-policy.toml"
    users.write_text("\n".join(rows[: USERS * 4]) + "\n")
    policy.write_text(POLICY)
    config = {"embedder": EMBEDDER, "device": "auto", "policy": str(policy)}
    python = str(device / "bin" / "python")
    with hosted(folder, [users], nodes=NODES, node_config=config, node_python=python) as found:
        yield found


def messages(federation: LocalFederation, kind: str) -> list[dict[str, Any]]:
    """What all nodes' processes wrote of the messages of one kind."""
    files = [federation.node_folder(n) / "messages.jsonl" for n in range(NODES)]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def check_processes(rows: list[dict[str, Any]], device: Path) -> None:
    for row in rows:
        assert row["prefix"] == str(device)
        assert not {*ABSENT, "pyarrow"} & set(row["loaded"])
        assert row["mb"]["VmHWM"] <= MOST_MB, row


def test_the_environment_holds_what_a_device_needs(device: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {ABSENT!r} if u.find_spec(n)])"
    found = subprocess.check_output([device / "bin" / "python", "-c", code], text=True)
    assert found.strip() == "[]"
    for command in (["--help"], ["embedder", "show", EMBEDDER], ["node", "--help"]):
        subprocess.run([device / "bin" / "privsyn", *command], check=True, cwd=device)
    asked = [device / "bin" / "privsyn", "account", "--noise-multiplier", "2", "--rounds", "3"]
    done = subprocess.run([*asked, "--delta", "1e-6"], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'privsyn-flower[strategies]'" in done.stderr


def test_devices_vote_under_secure_aggregation(
    federation: LocalFederation,
    device: Path,
    mini: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(launch.MODULES, "client", CLIENT)
    path, folder = tmp_path / "run.toml", tmp_path / "run"
    config = COMMON.format(cache=tmp_path, public=mini / "public.jsonl", method="rounds = 1")
    path.write_text(config + PRETEXT)
    assert run_command(path, [f"run-folder={folder}"], None, federation.folder) == folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 1 and summary["synthetic_samples"] > 0
    assert "claim holds against the server" in summary["privacy"]
    rows = messages(federation, "votes")
    assert sorted(row["stage"] for row in rows) == sorted(NODES * STAGES)
    check_processes(rows + messages(federation, "hello"), device)
    # A model was loaded where texts were new, and tried before; no other stage needs one.
    loaded = [row["stage"] for row in rows if "onnxruntime" in row["loaded"]]
    assert 0 < len(loaded) <= 2 * NODES
    for number in range(NODES):
        cache = federation.node_folder(number) / "cache"
        status = NodeRecords(cache / RECORDS_FILE).status(1e-6)
        assert status["users"] == USERS // NODES and status["max_participations"] == 1
        assert status["pins"] == NODES and 0 < status["max_spent_epsilon"] < 50
        assert read_failures(cache) == []


def test_devices_score(
    federation: LocalFederation,
    device: Path,
    mini: Path,
    causal_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the rows that the votes left in their caches, or new ones where this runs alone. Each
    node's noisy sum goes to the server as it is."""
    monkeypatch.setitem(launch.MODULES, "client", CLIENT)
    path, folder = tmp_path / "run.toml", tmp_path / "run"
    method = 'method = "popri"\naggregation = "plain"\nrounds = 1'
    config = COMMON.format(cache=tmp_path, public=mini / "public.jsonl", method=method)
    path.write_text(config + POPRI.format(generator=causal_folder))
    assert run_command(path, [f"run-folder={folder}"], None, federation.folder) == folder
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 1
    rows = messages(federation, "scores")
    assert [row["stage"] for row in rows] == NODES * [""]
    check_processes(rows, device)
    for number in range(NODES):
        assert read_failures(federation.node_folder(number) / "cache") == []
