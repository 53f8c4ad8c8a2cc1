"""What a device does for each message of a secure sum: what it loads, and how often it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower.client_apps.node.device import Node, base_model
from privsyn_flower.client_apps.node.embedder import check_embedder
from privsyn_flower.common import files
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.text import fingerprints
from privsyn_flower.text.fingerprints import folder_fingerprint

# Three devices in one process. Before each message the rooms below are thrown out of it, so that
# those that are there afterwards are what a process of the message's own would have loaded.
ROUND = """
import itertools, json, sqlite3, sys
from pathlib import Path
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
from privsyn_flower.client_apps.main import app
at_start = sorted(sys.modules)
from privsyn_flower import client_apps
from privsyn_flower.protocol import messaging
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.secure import Transport, run_session
from privsyn_flower.text import load_embedder

folder, connect, opened = Path(sys.argv[1]), sqlite3.connect, []
embedder = load_embedder("ngram-64")
texts = [f"a public text about {number}" for number in range(10)]
options = {"groups": [5, 5], "classes": ["a", "b"], "labels": ["a", "b"]}
asked_for = {"votes": Query.votes, "scores": lambda *a, **o: Query.scores(*a, **o, **options)}
query = asked_for[sys.argv[2]](embedder.embed(texts), bound=1.0, model=embedder.fingerprint)
noise = Noise(1.0, 4096.0, 32, 6.0)
seen = {"start": {"loaded": at_start, "opened": []}}
state = {node: RecordDict() for node in (1, 2, 3)}


def connected(path, *args, **options):
    opened.append(Path(path).name)
    return connect(path, *args, **options)


sqlite3.connect = connected


def answered(message):
    node = message.metadata.dst_node_id
    own = {"data": str(folder / f"{node}.jsonl"), "weight": 2, "cache": str(folder / str(node)),
           "policy": str(folder / "policy.toml"), "embedder": "ngram-64"}
    for name in [name for name in sys.modules if name.startswith((*ROOMS, *KINDS))]:
        del sys.modules[name]
    for name in KINDS:  # `from package import module` would find it there
        vars(client_apps).pop(name.rpartition(".")[2], None)
    opened.clear()
    reply = app(message, Context(1, node, own, state[node], {}))
    stage = message.content.config_records.get("secagg", {"stage": "hello"})["stage"]
    loaded = [name for name in sys.modules if name.startswith(ROOMS)]
    seen[stage] = {"loaded": loaded, "opened": list(opened)}
    return reply


class Grid:
    def push_messages(self, messages):
        self.waiting = {}
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
            self.waiting[str(number)] = answered(message)
        return list(self.waiting)

    def pull_messages(self, ids):
        return [self.waiting.pop(key) for key in ids]


def along(stage):
    if stage not in ("advertise", "mask"):
        return RecordDict()
    return wire.ask_records(query, ticket, noise, question=stage == "mask")


ROOMS = tuple(f"privsyn_flower.{room}" for room in ("data", "text", "evaluation", "training"))
KINDS = ("privsyn_flower.client_apps.votes", "privsyn_flower.client_apps.scores")
with messaging.in_process():
    answered(greeting.hello(1, 60.0))
    for rnd in (1, 2):  # the first makes files
        ticket = Ticket("run", query.kind, rnd, 1)
        session = wire.session_for(query, ticket, noise)
        transport = Transport(Grid(), f"query.{query.kind}")
        run_session(transport, session, dict.fromkeys(state, 2), along)
print(json.dumps(seen))
"""
RECORDS = "node.sqlite"
# Connections to SQLite files, each a transaction of its own.
TRANSACTIONS = {
    "hello": [],
    "advertise": [],
    "share": [RECORDS, RECORDS],  # the peers' keys; this stage of this session
    # Who withdrew; this ticket, and what it costs whom; rows of texts that are gone; kept rows.
    "mask": [RECORDS, RECORDS, "embeddings.sqlite", "embeddings.sqlite"],
    "confirm": [RECORDS],
    "unmask": [RECORDS],
}


@pytest.fixture(scope="module", params=["votes", "scores"])
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[str]]]:
    """Stage -> what a device loaded of the rooms of texts and models, and the files it opened."""
    folder = tmp_path_factory.mktemp("devices")
    for node in (1, 2, 3):
        rows = [{"user_id": f"u{n}", "text": f"a private text {n} {node}"} for n in range(2)]
        (folder / f"{node}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "policy.toml").write_text("min-surviving-weight = 2.0\n")
    done = subprocess.run(
        [sys.executable, "-c", ROUND, folder, request.param],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return found


def test_only_the_stage_that_answers_opens_texts(seen: dict[str, Any]) -> None:
    assert list(seen) == ["start", *TRANSACTIONS]
    for stage in ("hello", "share", "confirm", "unmask"):
        assert seen[stage]["loaded"] == [], stage
    readers = {stage for stage in seen if "privsyn_flower.data.users" in seen[stage]["loaded"]}
    assert readers == {"mask"}
    embedding = {s for s in seen if "privsyn_flower.text.embedders" in seen[s]["loaded"]}
    assert embedding == {"advertise", "mask"}


def test_the_app_alone_loads_nothing_of_texts_or_models(seen: dict[str, Any]) -> None:
    heavy = {"torch", "onnxruntime", "tokenizers", "transformers", "scipy", "dp_accounting"}
    assert heavy.isdisjoint(seen["start"]["loaded"])
    rooms = tuple(f"privsyn_flower.{room}" for room in ("data", "text", "evaluation", "training"))
    assert not [name for name in seen["start"]["loaded"] if name.startswith(rooms)]
    assert "privsyn_flower.client_apps.answers" in seen["start"]["loaded"]


def test_each_stage_writes_what_it_must_and_no_more(seen: dict[str, Any]) -> None:
    assert {stage: seen[stage]["opened"] for stage in TRANSACTIONS} == TRANSACTIONS


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed from here on; no file is too new to be remembered."""
    found, real = [], files.file_digest

    def counting(path: Path) -> str:
        found.append(path.name)
        return real(path)

    monkeypatch.setattr(files, "file_digest", counting)
    monkeypatch.setattr(fingerprints, "RESTED", -1)
    monkeypatch.setattr(fingerprints, "_seen", {})
    return found


@pytest.mark.parametrize("asked", ["embedder", "base model"])
def test_a_second_process_hashes_no_model(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr("privsyn_flower.text.embedders.can_import", lambda name: True)
    query: Any = SimpleNamespace(model=folder_fingerprint(model))
    node = Node(
        facts=Hello(1, 0, deployed=True),
        cache=tmp_path / "node",
        embedder=str(model),
        device="cpu",
        policy=None,
        noise_seed=None,
        load=dict,
        downstream=lambda: model,
    )
    check = check_embedder if asked == "embedder" else base_model
    for process in (1, 2):
        hashed.clear()
        fingerprints._seen.clear()
        check(query, node)
        assert ("model.safetensors" in hashed) == (process == 1)
    assert hashed == []
