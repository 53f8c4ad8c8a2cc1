"""DP-FTRL on a deployed federation whose nodes answer rows: kill -9 of nodes and of the ServerApp.

A ClientApp made for this test leaves out the nodes' noise and keeps a copy of each vector, so that
every release must equal the rows of the survivors to the last integer.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.app.cli.run import RunFailed, run_command
from privsyn_flower.app.local import simulation as launch
from privsyn_flower.app.local.federation import LocalFederation, hosted
from privsyn_flower.common.arrays import F64, I64
from privsyn_flower.config import load_config
from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol.noise import decode_sum
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.matrix_noise import MatrixNoise
from tests.end_to_end.conftest import processes_mentioning
from tests.end_to_end.forked_flower import fork_apps
from tests.rigs.run import check_nothing_private
from tests.text.conftest import causal_folder

__all__ = ["causal_folder"]  # pytest finds the fixture by name

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

NODES, USERS, ROUNDS, W_MIN = 4, 24, 3, 17
LOST, TOO_MANY = 1, (1, 2)  # in round 2; in round 3, where too little weight is left

CONFIG = """
method = "dp-ftrl"
epsilon = 50.0
noise-multiplier = 2.0
rounds = 3
nodes = 4
min-surviving-weight = 0.7
stage-timeout = 500.0
round-timeout = 500.0
node-timeout = 300.0
cache = "{cache}"

[data]
source = "files"
path = ""
public-path = "{public}"
users = 24
public-pool = 200
public-validation = 20

[models]
downstream = "{model}"

[training]
parameters = "layers"
layers = "*norm*"
learning-rate = 0.5
batch-size = 4
clip-norm = 0.5

[ftrl]
mechanism = "banded"
bands = 3
min-separation = 2

[evaluation]
sequence-length = 32
start = "base"
"""

POLICY = """
queries = ["update"]
min-surviving-weight = 8.0  # a turn has half of W_min
max-past-vectors = 2
lifetime-epsilon = 50.0
"""

CLIENT = """
import sqlite3
import time
from pathlib import Path

import numpy as np
from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import answers, main
from privsyn_flower.client_apps.node import rows
from privsyn_flower.protocol.secure import stage_of

answers.node_noise_integers = lambda length, *rest: np.zeros(length, dtype=np.int64)
store = rows.store_vector
app = ClientApp()


def copied(folder, token, vector):
    store(folder, token, vector)
    with sqlite3.connect(folder.parent / "node.sqlite") as records:
        found = records.execute("SELECT round FROM vectors WHERE token = ?", (token,)).fetchone()
    np.save(folder.parent.parent / f"said-{found[0]}.npy", vector)


rows.store_vector = copied


@app.query("hello")
def hello(message, context):
    return main.hello(message, context)


@app.train()
def update(message, context):
    context.node_config["downstream"] = "MODEL"
    folder = Path(str(context.node_config["cache"])).parent
    if stage_of(message) == "mask" and (folder / "hold").exists():
        (folder / "held").touch()
        time.sleep(600)
    reply = main.update(message, context)
    while stage_of(message) == "mask" and (folder / "late").exists():
        time.sleep(0.05)
    return reply
"""


@pytest.fixture
def federation(mini: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFederation]:
    """Four SuperNodes with six users each; nothing is left of them."""
    fork_apps(mini / "training-bin", monkeypatch)
    folder, data, rules = (mini / f"training{what}" for what in ("", ".jsonl", ".toml"))
    data.write_text("".join((mini / "users.jsonl").read_text().splitlines(True)[: USERS * 4]))
    rules.write_text(POLICY)
    config = {"embedder": "ngram-64", "device": "auto", "policy": str(rules)}
    with hosted(folder, [data], nodes=NODES, node_config=config) as found:
        yield found
    assert processes_mentioning(str(folder)) == []


class Breaker(threading.Thread):
    """Kills a node in round 2, the ServerApp after it, and too many in the resumed round 3."""

    def __init__(self, federation: LocalFederation, folder: Path) -> None:
        super().__init__(daemon=True)
        self.federation, self.folder, self.done = federation, folder, list[str]()

    def run(self) -> None:
        self._wait(self.folder / "releases" / "round-0001.npz")
        self._kill((LOST,))
        shutil.copy(self.folder / "queries" / "round-0002.npz", self.folder.parent)
        self._wait(self.folder / "checkpoints" / "round-0002.json")
        os.kill(int((self.folder / ".lock").read_text()), signal.SIGKILL)
        self.done.append("server")
        self._kill(TOO_MANY)

    def _kill(self, nodes: tuple[int, ...]) -> None:
        """When they are next asked for their rows; start them again before the others answer."""
        places = [self.federation.node_folder(node) for node in nodes]
        late = [self.federation.node_folder(node) / "late" for node in set(range(NODES)) - {*nodes}]
        for place in places:
            (place / "hold").touch()
        for mark in late:
            mark.touch()
        for place in places:
            self._wait(place / "held")
            (place / "hold").unlink()
            (place / "held").unlink()
        for node in nodes:
            os.killpg(self.federation.facts["nodes"][node]["pid"], signal.SIGKILL)
        self.federation.start()
        for mark in late:
            mark.unlink()
        self.done.append(f"nodes {nodes}")

    def _wait(self, path: Path) -> None:
        while not path.exists():
            time.sleep(0.05)


def said(place: Path) -> dict[int, I64]:
    """What a node's users said, by round; of it nothing is left where the node keeps it."""
    assert not list((place / "cache" / "past").iterdir())
    return {int(path.stem[-1]): np.load(path) for path in place.glob("said-*.npy")}


def expected(federation: LocalFederation, path: Path, folder: Path) -> list[F64]:
    """The release of every round: the rows of the nodes that were in it, without noise."""
    made, scratch = privacy_plan(load_config(path, {})), RunFolder(folder.parent / "scratch")
    matrix = made.main.matrix
    assert matrix is not None and matrix.bands == ROUNDS
    (scratch.path / "queries").mkdir()
    shutil.copy(folder.parent / "round-0002.npz", scratch.path / "queries")
    query = scratch.load_query(2)
    assert query is not None
    plan = RoundPlan("", USERS, 1.0, min_surviving_weight=0.7, distance=made.distance)
    noise = MatrixNoise(matrix, made.main.multiplier, scratch).noise(plan, query)
    nodes = range(NODES)
    own = [said(federation.node_folder(node)) for node in nodes]
    # A node that was killed had not yet trained in that attempt: the others answer it again.
    assert [sorted(of_one) for of_one in own] == [
        [rnd for rnd in range(1, ROUNDS + 1) if (node, rnd) != (LOST, 2)] for node in nodes
    ]
    assert all(any(vector.any() for vector in of_one.values()) for of_one in own)
    found = []
    for rnd in range(1, ROUNDS + 1):
        alive = [node for node in nodes if (node, rnd) != (LOST, 2)]
        rows: Any = [matrix.row(rnd, own[node].get) for node in alive]
        found.append(decode_sum(to_modulus(sum(rows), noise.bits), query, noise))
    return found


def test_nodes_and_the_server_are_killed_and_every_release_is_the_survivors_rows(
    federation: LocalFederation,
    mini: Path,
    causal_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that was killed has its earlier vectors in its next row."""
    monkeypatch.setitem(launch.MODULES, "client", CLIENT.replace("MODEL", str(causal_folder)))
    monkeypatch.setattr(cli_run, "GRACE", 0.5)  # who is killed leaves no result
    path, folder = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(
        CONFIG.format(cache=tmp_path, public=mini / "public.jsonl", model=causal_folder)
    )
    breaker = Breaker(federation, folder)
    breaker.start()
    with pytest.raises(RunFailed):
        run_command(path, [f"run-folder={folder}"], None, federation.folder)
    assert breaker.done == [f"nodes {(LOST,)}", "server"]
    assert run_command(None, [], folder, federation.folder) == folder
    breaker.join(60)
    assert breaker.done == [f"nodes {(LOST,)}", "server", f"nodes {TOO_MANY}"]
    assert f"W_min = {W_MIN}" in (folder / "run.log").read_text()

    run = RunFolder(folder)
    for rnd, rows in enumerate(expected(federation, path, folder), start=1):
        assert np.array_equal(run.load_release(rnd), rows), rnd  # type: ignore[arg-type]
    assert [row["nodes_answered"] for row in run.metrics()] == [4, 3, 4]
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]
    kinds = [row["kind"] for row in rows]
    assert kinds.count("commit") == ROUNDS and "void" in kinds
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == ROUNDS
    assert summary["threat_model"].startswith("honest-but-curious server")
    assert summary["participations_per_user"] == 2
    check_nothing_private(folder, mini)
