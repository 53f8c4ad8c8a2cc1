"""How a case becomes files, nodes and a run: each method, simulated and deployed."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from privsyn_flower.client_apps import private_evaluation, private_training
from privsyn_flower.config import RunConfig
from privsyn_flower.data import Federation, load_users, prepare
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.run import Run
from privsyn_flower.strategies import DPFedAvg, PrivateEvaluation
from privsyn_flower.strategies.engine.aggregation import PlainSum, SecureAggregation
from tests.conftest import node_context
from tests.strategies.training_rig import ftrl

from .hostile import LABELS, RAISES, TARGET, Row, ordinary, public_texts, write
from .rig import HANDLERS, Seen, Stream, WireGrid

HELD_OUT = {"data.held-out-users": 3, "data.development-users": 2}
NODES = 3
HOSTED = 4  # users of a deployed node
USERS = NODES * HOSTED
POLICY = """
aggregation = ["secure", "plain"]
queries = ["votes", "scores", "evaluation", "update"]
trusted-aggregator = true
max-past-vectors = 9
min-noise-multiplier = 0.01
min-surviving-weight = 1.0
lifetime-epsilon = 1e9
max-rounds-per-run = 10000
"""

SYNTHETIC: dict[str, Any] = {
    "epsilon": 500.0,
    "rounds": 2,
    "pretext.population": 12,
    "pretext.lookahead": 1,
    "pretext.threshold": 0.0,
    "pretext.variation": "retrieval",
    "expand.samples": 4,
    "expand.min-words": 1,
    "expand.max-tokens": 8,
}
PE: dict[str, Any] = {
    **{key.replace("pretext.", "pe."): value for key, value in SYNTHETIC.items()},
    "method": "pe",
    "pe.selection": "rank",
    "pe.copies": 2,
}
POPRI: dict[str, Any] = {
    **SYNTHETIC,
    "method": "popri",
    "rounds": 1,
    "popri.prompts": 4,
    "popri.responses": 3,
    "popri.examples": 1,
    "popri.rejected-rank": 3,
    "popri.learning-rate": 1e-2,
    "popri.epochs": 1,
    "popri.batch-size": 4,
    "popri.lora-rank": 2,
}
CLASSES = {
    "popri.labels": ",".join(LABELS),
    "popri.examples": 0,
    "popri.instruction": "Write about {label}:",
}
TRAINING: dict[str, Any] = {
    "method": "dp-fedavg",
    "epsilon": 500.0,
    "rounds": 2,
    "training.parameters": "lora",
    "training.lora-rank": 2,
    "training.lora-factors": "up",
    "training.learning-rate": 0.5,
    "training.max-steps": 2,
    "training.evaluate": True,
    "evaluation.learning-rates": "1e-3",  # of public text: of several, each is tried on more of it
    "evaluation.sequence-length": 16,
}
FTRL: dict[str, Any] = {
    **TRAINING,
    "method": "dp-ftrl",
    "rounds": 3,
    "training.noise": "aggregator",
    "training.parameters": "layers",
    "training.layers": "*norm*",
    "training.evaluate": False,
    "training.evaluate-rounds": "0,2",
    "ftrl.mechanism": "banded",
    "ftrl.min-separation": 2,
    "ftrl.schedule": "users",
}
CTCL: dict[str, Any] = {
    **TRAINING,
    "method": "ctcl",
    "training.evaluate": False,
    "ctcl.topic-count": 4,
    "ctcl.topic-threshold": 0.0,
    "ctcl.histogram-multiplier": 0.0,
    "ctcl.max-source": 16,
    "expand.samples": 4,
    "expand.min-words": 1,
    "expand.max-tokens": 8,
}
MEASURED: dict[str, Any] = {
    "method": "evaluation",
    "epsilon": 500.0,
    "measure.models": "start=downstream,other=generator",
    "evaluation.sequence-length": 16,
}
METHODS = {
    "pretext": SYNTHETIC,
    "pe": PE,
    "popri": POPRI,
    "dp-fedavg": TRAINING,
    "dp-ftrl": FTRL,
    "ctcl": CTCL,
    "evaluation": MEASURED,
}


@dataclass(frozen=True)
class Case:
    """One way to run a method. held_out: the target takes part in no round (simulation only).
    values: more keys of the configuration."""

    method: str
    deployed: bool
    format: str
    labels: bool = False
    held_out: bool = False
    values: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        where = "nodes" if self.deployed else "simulation"
        named = ["labels"] if self.labels else []
        named += ["held-out"] if self.held_out else []
        named += [f"{key.rpartition('.')[2]}={value}" for key, value in self.values]
        return "-".join([self.method, where, self.format, *named])

    @property
    def columns(self) -> list[str]:
        return ["user_id", "text", "label"] if self.labels else ["user_id", "text"]

    def config(self, place: Path, models: Path) -> RunConfig:
        """The run's configuration, in the world at `place`."""
        values: dict[str, Any] = {
            "nodes": NODES,
            "cache": str(place / "cache"),
            "run-folder": str(place / "run"),
            "round-timeout": 20.0,
            "stage-timeout": 20.0,
            "node-timeout": 20.0,
            "data.source": "files",
            "data.public-path": str(place / "public.jsonl"),
            "data.users": USERS,
            "data.public-pool": 40,
            "data.public-validation": 8,
            "data.sample-words": 12,
            "models.embedder": "ngram-32",
            "models.generator": str(models),
            "models.downstream": str(models),
            "models.conditional": str(models),
            "models.device": "cpu",
            **METHODS[self.method],
        }
        if not self.deployed:
            values |= {
                "data.path": str(place / f"private.{self.format}"),
                **HELD_OUT,
                "data.seed": seed_of(self.held_out),
                "simulation-seeded-noise": self.method != "dp-ftrl",  # of the nodes' noise only
            }
            values |= {"training.public-steps": 2} if self.method == "dp-fedavg" else {}
        values |= {"data.label-column": "label"} if self.labels else {}
        if self.labels and self.method == "popri":
            values |= CLASSES
        if self.labels and self.method in ("ctcl", "pe"):
            values |= {f"{self.method}.labels": ",".join(LABELS)}
        return RunConfig.from_flat({**values, **dict(self.values)})


@functools.cache
def seed_of(held_out: bool) -> int:
    """A seed of the split by which the target is held out, or takes part in the rounds."""
    for seed in range(100):
        with tempfile.TemporaryDirectory() as name:
            for file in ("a.jsonl", "public.jsonl"):
                write(Path(name) / file, population(False), ["user_id", "text"])
            values = {"data.path": f"{name}/a.jsonl", "data.public-path": f"{name}/public.jsonl"}
            values |= {"data.source": "files", "data.users": USERS, "data.seed": seed, **HELD_OUT}
            values |= {"data.public-pool": 1, "data.public-validation": 1}
            config = RunConfig.from_flat({**values, "data.near-duplicates": "keep"})
            federation = Federation(prepare(config.data, Path(name)))
            users = federation.held_out("test") if held_out else federation.shard(0, 1)
            if TARGET in users:
                return seed
    raise AssertionError("no seed of the split puts the target there")


def population(deployed: bool) -> dict[str, list[Row]]:
    """Ordinary users; of a simulation more than it enrols, so that who is enrolled is a choice."""
    return ordinary(USERS if deployed else USERS + 9)


def world(
    case: Case, users: Mapping[str, list[Row]], models: Path, stream: Stream
) -> Callable[[Path], Callable[[Seen], None]]:
    """What runs `case` on these users, for `Rig.run`."""

    def prepare(place: Path) -> Callable[[Seen], None]:
        public = {
            f"p{i // 4}": [
                {"user_id": f"p{j // 4}", "text": text, "label": LABELS[j % 2]}
                for j, text in enumerate(public_texts())
                if j // 4 == i // 4
            ]
            for i in range(len(public_texts()))
        }
        write(place / "public.jsonl", public, ["user_id", "text", "label"])
        if not case.deployed:
            write(place / f"private.{case.format}", users, case.columns)
        config = case.config(place, models)
        contexts = deployed(case, place, users, models) if case.deployed else simulated(config)

        def run(seen: Seen) -> None:
            nodes = {context.node_id: answering(context) for context in contexts}
            folder = RunFolder(place / "run")
            with folder.lock():
                Run(config, WireGrid(nodes, seen, stream), folder).run()

        return run

    return prepare


def answering(context: Any) -> Callable[[Message], Message]:
    """A node: the handler that Flower would choose."""

    def answer(message: Message) -> Message:
        return HANDLERS[message.metadata.message_type](message, context)

    return answer


def simulated(config: RunConfig) -> list[Any]:
    """Nodes whose users are shards of one prepared federation."""
    return [
        node_context({"partition-id": i, "num-partitions": config.nodes}, config.flat(), i + 1)
        for i in range(config.nodes)
    ]


def deployed(case: Case, place: Path, users: Mapping[str, list[Row]], models: Path) -> list[Any]:
    """Nodes with a file each, HOSTED users in it; the target's node is the second."""
    (place / "policy.toml").write_text(POLICY)
    names, contexts = list(users), []
    for i in range(NODES):
        own = {name: users[name] for name in names[i * HOSTED : (i + 1) * HOSTED]}
        write(place / f"node{i}.{case.format}", own, case.columns)
        config: dict[str, Any] = {
            "data": str(place / f"node{i}.{case.format}"),
            "weight": HOSTED,
            "cache": str(place / f"private-{i}"),
            "embedder": "ngram-32",
            "downstream": str(models),
            "device": "cpu",
            "policy": str(place / "policy.toml"),
        }
        if case.labels:
            config["label-column"] = "label"
        contexts.append(node_context(config, node_id=i + 1))
    return contexts


# Somebody else's app --------------------------------------------------------------------------

WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3) / 8, "b": np.float32([0.5, -1.0])}


_users_of = functools.cache(
    load_users
)  # path -> user -> texts: a file is read once, not by every call


def _texts(context: Context) -> dict[str, list[str]]:
    found: dict[str, list[str]] = _users_of(str(context.node_config["texts"]))
    return found


def _users(context: Context) -> list[str]:
    return list(_texts(context))


def _drawn(message: Message, context: Context) -> np.ndarray[Any, Any]:
    """Numbers that depend on all of one user's texts, or what a function may do wrong."""
    user = str(message.content["config"]["user"])
    texts = _texts(context)[user]
    if any(RAISES in text for text in texts):
        raise SystemExit(f"{user} wrote {texts[0]}")
    if not texts:
        return np.full(8, np.nan)
    digest = hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).digest()
    return np.frombuffer(digest, dtype=np.uint8)[:8] / 255.0


@private_training(users=_users)
def train(message: Message, context: Context) -> Message:
    """A train function of Flower's; more metrics than anybody asked for."""
    change = _drawn(message, context).astype(np.float32)
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    found = {"w": arrays["w"] + change[:6].reshape(2, 3), "b": arrays["b"] + change[6:]}
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array) for name, array in found.items()}),
                "metrics": MetricRecord({"num-examples": len(_texts(context)), "loss": 1.0}),
            }
        ),
        reply_to=message,
    )


@private_evaluation(users=_users)
def evaluate(message: Message, context: Context) -> Message:
    """An evaluate function of Flower's."""
    values = _drawn(message, context)
    metrics = {"accuracy": float(values[0]), "num-examples": int(100 * np.nan_to_num(values[1]))}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def app_world(
    case: Case, users: Mapping[str, list[Row]], stream: Stream
) -> Callable[[Path], Callable[[Seen], None]]:
    """What runs the app above on these users: `case.method` is "app" or "app-ftrl"."""
    options = dict(case.values)

    def prepare(place: Path) -> Callable[[Seen], None]:
        (place / "policy.toml").write_text(POLICY)
        names, nodes = list(users), {}
        for i in range(NODES):
            own = {name: users[name] for name in names[i * HOSTED : (i + 1) * HOSTED]}
            write(place / f"node{i}.{case.format}", own, case.columns)
            config: dict[str, Any] = {
                "texts": str(place / f"node{i}.{case.format}"),
                "partition-id": i,
                "num-partitions": NODES,
            }
            if case.deployed:
                config |= {"weight": HOSTED, "cache": str(place / f"private-{i}")}
                config |= {"policy": str(place / "policy.toml")}
            nodes[i + 1] = _app_node(node_context(config, node_id=i + 1))

        def run(seen: Seen) -> None:
            if case.method == "app":
                strategy: Any = DPFedAvg()
            else:
                strategy = ftrl(mechanism="banded", min_separation=2, schedule="users")
            plain = options.get("aggregation") == "plain"
            strategy.start(
                WireGrid(nodes, seen, stream),
                ArrayRecord({name: Array(array) for name, array in WEIGHTS.items()}),
                num_rounds=3,
                timeout=20.0,
                train_config=ConfigRecord({"lr": 0.5}),
                evaluation=PrivateEvaluation({"accuracy": (0, 1)}, max_examples=50),
                epsilon=50.0,
                delta=1e-5,
                users=USERS,
                nodes=NODES,
                folder=place / "run",
                noise_keys=place / "keys",
                aggregation=PlainSum() if plain else SecureAggregation(),
                node_timeout=20.0,
            )

        return run

    return prepare


def _app_node(context: Any) -> Callable[[Message], Message]:
    def answer(message: Message) -> Message:
        handler = evaluate if message.metadata.message_type == "evaluate" else train
        found: Message = handler(message, context)
        return found

    return answer


__all__ = ["TARGET", "Case", "app_world", "population", "world"]
