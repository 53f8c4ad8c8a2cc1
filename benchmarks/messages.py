"""CPU seconds and memory of the processes that answer a round's messages, Flower's share apart.

    python benchmarks/messages.py [--embedder minilm-int8] [--nodes 3] [--rounds 3]

A deployed federation on this machine (`privsyn federation`), votes under secure aggregation: each
message is handled by a fresh process on its node. Processor time: a busy machine distorts little.
Medians over nodes and rounds, without the first, in which files are made and texts embedded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from privsyn_flower.app.cli.run import run_command
from privsyn_flower.app.local import simulation
from privsyn_flower.app.local.federation import hosted

USERS_A_NODE, TEXTS, WORDS = 6, 8, 40
FLOWER_START, FLOWER_END = "Flower: start", "Flower: rest"
OURS = ("imports", "set-up", "model check", "records", "protocol", "embedding", "answer")

CONFIG = """
epsilon = 50.0
noise-multiplier = 2.0
rounds = {rounds}
nodes = {nodes}
min-surviving-weight = 0.7
cache = "{cache}"

[data]
source = "files"
path = ""
public-path = "{public}"
users = {users}
public-pool = 200
public-validation = 20

[models]
embedder = "{embedder}"

[pretext]
population = 24
lookahead = 1
threshold = 0.0
variation = "retrieval"

[expand]
samples = 0
"""
POLICY = "min-noise-multiplier = 2.0\nmin-surviving-weight = 10.0\nlifetime-epsilon = 50.0\n"

# The run's ClientApp: what it does is what every device does, with a clock around it. One label
# at a time is charged, the innermost.
CLIENT = """
import time

spent, labels, last = {{}}, ["{start}"], 0.0


def switch(label=None):
    global last
    now = time.process_time()
    spent[labels[-1]] = spent.get(labels[-1], 0.0) + now - last
    last = now
    labels.append(label) if label else labels.pop()


def charged(label, function):
    def called(*arguments, **options):
        switch(label)
        try:
            return function(*arguments, **options)
        finally:
            switch()
    return called


switch("imports")
from privsyn_flower.client_apps import main
switch()
labels[0] = "{end}"

import atexit
import json
import os
import resource

from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps.node.records import NodeRecords
from privsyn_flower.protocol.secure import session_of, stage_of

app = ClientApp()
facts = {{}}


def write():
    labels.append("{end}")
    switch()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {{**facts, "spent": spent, "peak": peak}}
    with open(os.path.join("{folder}", f"{{os.getpid()}}-{{time.time_ns()}}.json"), "w") as file:
        json.dump(row, file)


atexit.register(write)


@app.query("hello")
def hello(message, context):
    facts.update(stage="hello", round=0)
    main.open_node = charged("set-up", main.open_node)
    return charged("protocol", main.hello)(message, context)


@app.query("votes")
def votes(message, context):
    facts.update(stage=stage_of(message), round=session_of(message, context.state).round)
    switch("imports")
    from privsyn_flower.client_apps import votes as kind
    switch()
    kind.open_node = charged("set-up", kind.open_node)
    answers.identity = charged("set-up", answers.identity)
    kind.check_embedder = charged("model check", kind.check_embedder)
    rows = kind.user_rows
    kind.user_rows = charged("embedding", lambda *asked: list(rows(*asked)))
    answers.contribution = charged("answer", answers.contribution)
    for name in ("mark_stage", "take", "withdrawn", "pin_all", "ids"):
        setattr(NodeRecords, name, charged("records", getattr(NodeRecords, name)))
    return charged("protocol", main.votes)(message, context)
"""


def texts(seed: int, count: int) -> list[str]:
    """`count` texts of WORDS words that no tokenizer has whole."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 8))) for _ in range(500)]
    return [" ".join(rng.choices(words, k=WORDS)) for _ in range(count)]


def write_users(path: Path, users: int, seed: int) -> None:
    """A file of users with TEXTS texts each."""
    made = texts(seed, users * TEXTS)
    rows = [{"user_id": f"{seed}-{i // TEXTS}", "text": text} for i, text in enumerate(made)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured(folder: Path, embedder: str, nodes: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each process that answered a message of a run in a federation of its own."""
    users = nodes * USERS_A_NODE
    write_users(folder / "users.jsonl", users, 1)
    write_users(folder / "public.jsonl", 60, 2)
    (folder / "policy.toml").write_text(POLICY)
    (folder / "run.toml").write_text(
        CONFIG.format(
            rounds=rounds,
            nodes=nodes,
            users=users,
            cache=folder / "cache",
            public=folder / "public.jsonl",
            embedder=embedder,
        )
    )
    rows = folder / "rows"
    rows.mkdir()
    simulation.MODULES["client"] = CLIENT.format(folder=rows, start=FLOWER_START, end=FLOWER_END)
    # Told the device, a node does not ask torch, which an edge device has not.
    common = {"embedder": embedder, "policy": str(folder / "policy.toml"), "device": "cpu"}
    data = [folder / "users.jsonl"]
    with hosted(folder / "federation", data, nodes=nodes, node_config=common) as federation:
        run_command(folder / "run.toml", [f"run-folder={folder / 'run'}"], None, federation.folder)
    return [json.loads(path.read_text()) for path in sorted(rows.glob("*.json"))]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each stage; of the first round those that look at texts or models."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for stage in ("hello", "advertise", "share", "mask", "confirm", "unmask"):
        for row in rows:
            if row.get("stage") != stage:
                continue
            if row["round"] != 1 or stage == "hello":
                groups[stage].append(row)
            elif stage in ("advertise", "mask"):
                groups[stage + ", first round"].append(row)
    head = ["message", FLOWER_START, *OURS, FLOWER_END, "ours", "all", "peak MB"]
    lines = [head, ["---"] * len(head)]
    for name, group in groups.items():
        parts = {k: _median(group, k) for k in (FLOWER_START, *OURS, FLOWER_END)}
        ours = statistics.median(sum(r["spent"].get(k, 0.0) for k in OURS) for r in group)
        total = statistics.median(sum(r["spent"].values()) for r in group)
        peak = statistics.median(r["peak"] for r in group)
        figures = [*parts.values(), ours, total]
        lines.append([name, *(f"{value:.3f}" for value in figures), f"{peak:.0f}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _median(rows: list[dict[str, Any]], label: str) -> float:
    return statistics.median(row["spent"].get(label, 0.0) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embedder", default="minilm-int8")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        rows = measured(Path(name), arguments.embedder, arguments.nodes, arguments.rounds)
    size = f"{USERS_A_NODE} users x {TEXTS} texts of {WORDS} words a node"
    print(f"{arguments.embedder}, {arguments.nodes} nodes, {size}")
    print(f"CPU seconds of a message; {len(rows)} messages")
    print(table(rows))


if __name__ == "__main__":
    main()
