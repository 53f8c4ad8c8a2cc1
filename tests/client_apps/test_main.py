"""What a device loads of the package: the kind of answer it is asked for, and nothing else."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A device handles every message in a fresh process; so does this.
VOTE = """
import json, sys
from pathlib import Path
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
from privsyn_flower.client_apps.main import app
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.text import load_embedder

folder = Path(sys.argv[1])
embedder = load_embedder("ngram-64")
texts = [f"a public text about {number}" for number in range(10)]
query = Query.votes(embedder.embed(texts), bound=1.0, model=embedder.fingerprint)
noise = Noise(1.0, 4096.0, 32, 2.0)
own = {"data": str(folder / "users.jsonl"), "weight": 2, "cache": str(folder / "cache"),
       "policy": str(folder / "policy.toml"), "embedder": "ngram-64"}
message = wire.ask(query, Ticket("run", "votes", 1, 1), noise, 1, 2, 60.0)
reply = app(message, Context(1, 1, own, RecordDict(), {}))
loaded = [name for name in sys.modules if name.startswith("privsyn_flower.")]
print(json.dumps({"code": reply.content["answer"]["code"], "loaded": loaded}))
"""
OTHERS = (
    "client_apps.dropin",
    "client_apps.evaluation",
    "client_apps.node.simulated",
    "client_apps.scores",
    "client_apps.updates",
    "config.schema",
    "data.federation",
    "evaluation",
    "privacy.correlated",
    "privacy.accounting.calibration",
    "privacy.ledger",
    "privacy.release",
    "privacy.sentence",
    "queries.metrics",
    "queries.scores",
    "queries.updates",
    "secagg.server",
    "summation",
    "text.generators",
    "text.variation",
    "text.models.parameters",
    "text.tiny",
    "training",
)


def test_a_vote_loads_no_other_kind_of_answer(tmp_path: Path) -> None:
    rows = [{"user_id": f"u{number}", "text": f"a private text {number}"} for number in range(2)]
    (tmp_path / "users.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "policy.toml").write_text('aggregation = ["plain"]\nmin-surviving-weight = 2.0\n')
    done = subprocess.run([sys.executable, "-c", VOTE, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["code"] == "ok", done.stderr
    assert "privsyn_flower.client_apps.votes" in found["loaded"]
    assert len(found["loaded"]) <= 70  # it starts a fresh process for every message
    others = tuple(f"privsyn_flower.{name}" for name in OTHERS)
    assert [name for name in found["loaded"] if name.startswith(others)] == []
    for name in others:  # a module that is gone would be loaded by nobody
        importlib.import_module(name)


# All that a device is asked in a synthetic-text run, with the embedder of the extra `edge`: hello,
# scores, and the five stages of a secure sum of votes. The grid below is the server's.
EVERYTHING = """
import json, sys
from pathlib import Path
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
import numpy as np
from privsyn_flower.client_apps.main import app
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.secure import stage_of
from privsyn_flower.strategies.engine.aggregation import Attempt, SecureAggregation
from privsyn_flower.text.embedders import embedder_fingerprint
from tests.conftest import LoopbackGrid

folder, model = Path(sys.argv[1]), embedder_fingerprint("minilm-int8")
rows, noise = np.eye(4, 384, dtype=np.float32), Noise(1.0, 4096.0, 32, 6.0)
contexts = {}
for number in (1, 2, 3):
    own = {"data": str(folder / "users.jsonl"), "weight": 2, "cache": str(folder / str(number)),
           "policy": str(folder / "policy.toml"), "embedder": "minilm-int8"}
    contexts[number] = Context(1, number, own, RecordDict(), {})
asked = []

def node(number):
    def answer(message):
        reply = app(message, contexts[number])
        asked.append(stage_of(message) or message.metadata.message_type)
        return reply
    return answer

nodes = {number: node(number) for number in contexts}
cohort = {n: greeting.read_hello(nodes[n](greeting.hello(n, 60.0))) for n in nodes}
query = Query.scores(rows, model=model, groups=[2, 2], bound=1.0)
ticket = Ticket("run", "scores", 1, 1)
wire.read_answer(nodes[1](wire.ask(query, ticket, noise, 1, 2, 60.0)), ticket, 4, 32)
query = Query.votes(rows, bound=1.0, model=model)
attempt = Attempt(
    LoopbackGrid(nodes), cohort, query, Ticket("run", "votes", 1, 1), noise, timeout=60.0,
    stage_timeout=60.0, arrived=lambda n, of: None, revealing=lambda: None)
assert SecureAggregation().collect(attempt).nodes_answered == 3
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"asked": sorted(set(asked)), "loaded": loaded}))
"""
HEAVY = {"torch", "transformers", "sentence_transformers", "datasets", "huggingface_hub"}
HEAVY |= {"dp_accounting", "scipy", "sklearn", "pandas", "pyarrow", "ray"}


@pytest.mark.slow
def test_a_device_answers_without_torch_or_numerical_libraries(tmp_path: Path) -> None:
    """What the extra `edge` does not install, nobody may load: here it is all installed."""
    rows = [{"user_id": f"u{number}", "text": f"a private text {number}"} for number in range(2)]
    (tmp_path / "users.jsonl").write_text("\n".join(map(json.dumps, rows)))
    policy = 'aggregation = ["plain", "secure"]\nmin-surviving-weight = 6.0\n'
    (tmp_path / "policy.toml").write_text(policy)
    command = [sys.executable, "-c", EVERYTHING, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    stages = ["advertise", "confirm", "mask", "share", "unmask"]
    assert found["asked"] == sorted([*stages, "query.hello", "query.scores"])
    assert {"onnxruntime", "tokenizers"} <= set(found["loaded"])
    assert not HEAVY & set(found["loaded"])


# A fork a package, of a process that has loaded what all of them import, and nothing of ours.
PUBLIC = """
import importlib, os, sys
import flwr.app, numpy, pydantic

assert not [name for name in sys.modules if name.startswith("privsyn_flower")]
for name in sys.argv[1:]:
    if os.fork() == 0:
        package = importlib.import_module(f"privsyn_flower.{name}")
        for public in package.__all__:
            assert type(getattr(package, public)).__name__ != "module", public
        assert not hasattr(package, "nothing")
        os._exit(0)
    assert os.wait()[1] == 0, name
print("checked", *sys.argv[1:])
"""
PACKAGES = "client_apps config data privacy privacy.ledger queries secagg text".split()


@pytest.mark.slow
def test_every_public_name_is_there_at_once() -> None:
    """In fresh processes: here, somebody may have imported the modules with the names before."""
    command = [sys.executable, "-c", PUBLIC, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checked", *PACKAGES]
