"""A deployed federation on loopback: TLS, node keys, a process per message, and kill -9.

Six SuperNodes answer PrE-Text's questions under secure aggregation. A ClientApp made for this
test leaves out the nodes' noise, so that a release must equal the survivors' sum to the last
integer, and stops where a node is to be killed; the ServerApp of one test waits for nobody who is
gone. Everything else is what a user runs.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.cli.run import RunFailed, run_command
from privsyn_flower.app.local import simulation as launch
from privsyn_flower.app.local.federation import CONNECTION, FederationRun, LocalFederation
from privsyn_flower.app.local.layout import AUTHORITY
from privsyn_flower.app.local.processes import started_under
from privsyn_flower.app.local.simulation import FlowerError
from privsyn_flower.client_apps.answers import Participants
from privsyn_flower.client_apps.votes import user_votes
from privsyn_flower.data import load_users
from privsyn_flower.privacy.encoding.quantize import IntegerPlan, decode, to_modulus
from privsyn_flower.privacy.encoding.sizing import distance_each
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import encoding_of
from tests.end_to_end.conftest import commanded_federation, left_running
from tests.end_to_end.listening import IN, OUT, tried
from tests.strangers import descendants, listeners

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

NODES, USERS = 6, 36
# (stage, node): with six nodes the round can lose this many and still have the shares that
# unmask it. Every stage, and any number of nodes, is tests/secagg/test_rounds.py's.
KILLS = [("mask", 1), ("unmask", 4)]
OUT_OF_IT = 1  # killed before its masked vector arrived; who dies later is in, and unmasked
LEFT = (0, 2, 3, 5)  # the nodes of the run after that, with 24 users
TOO_LIGHT = 2  # whose loss leaves 18 of them, where 22 are needed: 0.6 of all

CONFIG = """
epsilon = 50.0
noise-multiplier = 2.0
rounds = 1
nodes = {nodes}
min-surviving-weight = {weight}
stage-timeout = 500.0
round-timeout = 500.0
node-timeout = 120.0
cache = "{cache}"

[data]
source = "files"
path = ""
public-path = "{public}"
users = 36
public-pool = 200
public-validation = 20

[models]
embedder = "ngram-64"

[pretext]
population = 24
lookahead = 1
threshold = 0.0
variation = "retrieval"

[expand]
samples = 0
"""

POLICY = """
min-noise-multiplier = 2.0
min-surviving-weight = 22.0
lifetime-epsilon = 50.0
"""

# Only a module that this test ships can leave out noise: no configuration and no message can.
CLIENT = """
import time
from pathlib import Path

import numpy as np
from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import answers, main
from privsyn_flower.protocol.secure import stage_of

answers.node_noise_integers = lambda length, *rest: np.zeros(length, dtype=np.int64)
app = ClientApp()


@app.query("hello")
def hello(message, context):
    return main.hello(message, context)


@app.query("votes")
def votes(message, context):
    folder = Path(str(context.node_config["cache"])).parent
    stage = stage_of(message)
    (folder / f"reached-{stage}").touch()
    if (folder / f"hold-{stage}").exists():
        time.sleep(600)
    return main.votes(message, context)
"""

# Nodes that are late are waited for at the start; the test knows of those killed that none returns.
SERVER = """
from privsyn_flower.server_apps.main import app
from privsyn_flower.strategies.engine.cohort import Cohort

__all__ = ["app"]
Cohort._nobody_else = lambda self, here: self._waited
"""


@pytest.fixture(scope="module")
def federation(mini: Path) -> Iterator[LocalFederation]:
    """Six SuperNodes with six users each."""
    with commanded_federation(mini, "federation", USERS, NODES, POLICY) as found:
        yield found


def configured(
    mini: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, weight: float
) -> Path:
    """A configuration file of one round; the runs' ClientApp becomes this test's."""
    monkeypatch.setitem(launch.MODULES, "client", CLIENT)
    path, public = folder / "run.toml", mini / "public.jsonl"
    path.write_text(CONFIG.format(cache=folder, public=public, nodes=nodes, weight=weight))
    return path


def lose(federation: LocalFederation, node: int) -> None:
    """Kill a node that runs, and do what an operator does about one that is gone for good: once
    it is unregistered the server need not wait for its stage-timeout."""
    facts = federation.facts["nodes"][node]
    if federation._runs(facts["pid"]):
        os.killpg(facts["pid"], signal.SIGKILL)
        federation._flwr("supernode", "unregister", facts["node_id"], CONNECTION)


class Killer(threading.Thread):
    """Kills nodes for good when they have been asked a stage."""

    def __init__(self, federation: LocalFederation, kills: list[tuple[str, int]]) -> None:
        super().__init__(daemon=True)
        self.federation, self.kills = federation, kills
        self.killed: list[int] = []
        for stage, node in kills:
            (federation.node_folder(node) / f"hold-{stage}").touch()

    def run(self) -> None:
        for stage, node in self.kills:
            while not (self.federation.node_folder(node) / f"reached-{stage}").exists():
                time.sleep(0.1)
            self.killed.append(node)
            lose(self.federation, node)


@pytest.fixture(autouse=True)
def no_traces(federation: LocalFederation) -> Iterator[None]:
    yield
    for number in range(NODES):
        for mark in federation.node_folder(number).glob("[hr][oe]*-*"):
            mark.unlink()


def survivors_sum(
    federation: LocalFederation, folder: Path, alive: list[int]
) -> np.ndarray[Any, Any]:
    """What the release must be when exactly the nodes `alive` are in it."""
    query = RunFolder(folder).load_query(1)
    assert query is not None
    asked = RoundPlan(
        "", USERS, 2.0, min_surviving_weight=0.7, distance=distance_each(50.0, 3e-6, 2)
    )
    plan = encoding_of(asked, query, 2.0)
    assert isinstance(plan, IntegerPlan)
    total = np.zeros(query.length, dtype=np.int64)
    for number in alive:
        users = load_users(federation.node_folder(number) / "users.jsonl")
        assert len(users) == USERS // NODES
        cache = folder / "expected" / str(number)
        node: Any = SimpleNamespace(cache=cache, embedder="ngram-64", device="cpu", memory=1 << 20)
        everybody = np.ones(len(users), dtype=bool)
        total += user_votes(query, users, Participants(everybody, everybody), plan, node)
    assert total.any()
    return decode(to_modulus(total, plan.bits), plan)


def ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]


def test_a_stranger_is_refused_at_every_port(federation: LocalFederation) -> None:
    """All listen on loopback and answer their own account: the SuperLink, and every SuperNode."""
    facts = federation.facts
    pids = set().union(*map(descendants, [facts["pid"], *(n["pid"] for n in facts["nodes"])]))
    homes = [federation.home, *(federation.node_folder(n) / "flower" for n in range(NODES))]
    pids.update(pid for home in homes for pid in started_under(home))
    opened = [tried(one, federation.folder / "tls" / AUTHORITY) for one in listeners(pids)]
    assert len(opened) == 1 + NODES
    for one in opened:
        assert one.listener.loopback, one
        assert one.owner == IN, one
        assert one.stranger in (OUT, None), one


def test_nodes_killed_before_and_after_arrival_leave_the_survivors_exact_sum(
    federation: LocalFederation, mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = configured(mini, tmp_path, monkeypatch, NODES, 0.7), tmp_path / "run"
    killer = Killer(federation, KILLS)
    killer.start()
    assert run_command(config, [f"run-folder={folder}"], None, federation.folder) == folder
    killer.join()
    assert killer.killed == [node for _, node in KILLS]
    alive = [node for node in range(NODES) if node != OUT_OF_IT]
    released = RunFolder(folder).load_release(1)
    assert np.array_equal(released, survivors_sum(federation, folder, alive))
    assert not np.array_equal(released, survivors_sum(federation, folder, alive[2:]))
    states = [row["kind"] for row in ledger(folder)]
    assert states.count("commit") == 1
    assert "void" not in states
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 1
    assert summary["synthetic_samples"] > 0
    assert "claim holds against the server" in summary["privacy"]


def test_too_many_killed_unmasks_nothing(
    federation: LocalFederation, mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four masked vectors arrive, too light: nobody is asked more, nothing is charged."""
    for _, node in KILLS:  # the test before has, unless this runs alone
        lose(federation, node)
    monkeypatch.setitem(launch.MODULES, "server", SERVER)
    config, folder = configured(mini, tmp_path, monkeypatch, len(LEFT), 0.6), tmp_path / "run"
    killer = Killer(federation, [("mask", TOO_LIGHT)])
    killer.start()
    with pytest.raises(RunFailed, match="TooFewNodes"):
        run_command(config, [f"run-folder={folder}"], None, federation.folder)
    killer.join()
    assert killer.killed == [TOO_LIGHT]
    assert not list((folder / "releases").glob("*"))
    assert not (folder / "summary.json").exists()
    rows = ledger(folder)
    assert {row["kind"] for row in rows} == {"reserve", "void"}
    assert "nothing was revealed" in rows[1]["reason"]
    for node in set(LEFT) - {TOO_LIGHT}:
        assert (federation.node_folder(node) / "reached-mask").exists()
        for stage in ("confirm", "unmask"):
            assert not (federation.node_folder(node) / f"reached-{stage}").exists()
    assert left_running(str(federation.node_folder(TOO_LIGHT) / "flower")) == []


def test_a_stopped_federation_is_named_with_its_remedy(federation: LocalFederation) -> None:
    """Runs last: stops what the others used."""
    federation.stop()
    assert federation.status() == {
        "superlink": "",
        "nodes": [
            {"name": f"node-{n}", "pid": 0, "node_id": "", "online": False} for n in range(NODES)
        ],
    }
    with pytest.raises(FlowerError, match="privsyn federation start"):
        FederationRun(federation.folder / "none", federation).start()
