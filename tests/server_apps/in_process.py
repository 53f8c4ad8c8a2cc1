"""Whole runs in one process: real handlers on a loopback grid, small models, few users."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.tracking.public import public_row
from privsyn_flower.client_apps import main as client
from privsyn_flower.config import RunConfig, load_config, to_toml
from privsyn_flower.config.api import configured
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.run import Run
from privsyn_flower.strategies.engine.rounds import Rounds
from tests.conftest import looped, node_context, sentences
from tests.rigs.registry import deployment_of

CONFIGS = Path(__file__).parent.parent.parent / "configs"
TEXTS_PER_USER = 3
HANDLERS = {
    "query.hello": client.hello,
    "query.votes": client.votes,
    "query.scores": client.scores,
    "query.evaluation": client.evaluation,
    "train": client.update,
}
SMALL: dict[str, Any] = {
    "nodes": 3,
    "data.source": "files",
    "data.users": 18,
    "data.held-out-users": 8,
    "data.development-users": 4,
    "data.public-pool": 60,
    "data.public-validation": 16,
    "data.sample-words": 12,
    "models.embedder": "ngram-32",
    "models.device": "cpu",
    "expand.samples": 8,
    "expand.min-words": 1,
    "expand.max-tokens": 12,
    "evaluation.steps": 2,
    "evaluation.batch-size": 4,
    "evaluation.sequence-length": 16,
    "evaluation.learning-rates": "1e-3",
    "evaluation.bootstrap": 100,
}
POPRI: dict[str, Any] = {
    "method": "popri",
    "epsilon": 500.0,
    "rounds": 1,
    "simulation-seeded-noise": True,
    "popri.prompts": 5,
    "popri.responses": 3,
    "popri.examples": 1,
    "popri.rejected-rank": 3,
    "popri.learning-rate": 1e-2,
    "popri.epochs": 1,
    "popri.batch-size": 5,
    "popri.lora-rank": 2,
}
PRETEXT: dict[str, Any] = {
    "pretext.population": 16,
    "pretext.lookahead": 1,
    "pretext.threshold": 0.0,
    "pretext.variation": "retrieval",
}
EVOLUTION: dict[str, Any] = {
    **PRETEXT,
    "pretext.population": 8,
    "epsilon": 500.0,
    "rounds": 2,
    "simulation-seeded-noise": True,
    "expand.samples": 0,
}
DP_FEDAVG: dict[str, Any] = {
    "method": "dp-fedavg",
    "epsilon": 500.0,
    "rounds": 2,
    "training.parameters": "lora",
    "training.lora-rank": 2,
    "training.lora-factors": "up",
    "training.learning-rate": 0.5,
    "training.max-steps": 1,
    "training.public-steps": 3,
}
FTRL: dict[str, Any] = {
    "method": "dp-ftrl",
    "rounds": 4,
    "training.noise": "aggregator",
    "training.parameters": "layers",
    "training.layers": "*norm*",
    "ftrl.mechanism": "banded",
    "ftrl.min-separation": 2,
}
CTCL: dict[str, Any] = {
    **DP_FEDAVG,
    "method": "ctcl",
    "aggregation": "plain",
    "training.public-steps": 0,
    "ctcl.topic-count": 5,
    "ctcl.histogram-multiplier": 0.0,
    "ctcl.topic-threshold": 0.0,
    "ctcl.max-source": 60,
}
POLICY = "min-surviving-weight = 1.0\nmin-noise-multiplier = 0.1\nlifetime-epsilon = 50.0\n"


def with_texts(folder: Path, private_words: list[str] | None = None) -> Path:
    """`folder`, with private and public text in it."""
    write_rows(folder / "private.jsonl", sentences(120, 1, private_words))
    write_rows(folder / "public.jsonl", sentences(120, 2))
    return folder


def write_rows(path: Path, texts: Sequence[str], per_user: int = TEXTS_PER_USER) -> None:
    """Users of so many texts each."""
    rows = [{"user_id": f"u{i // per_user}", "text": text} for i, text in enumerate(texts)]
    write_jsonl(path, rows)


def small_config(shared: Path, model: Path, /, **values: Any) -> RunConfig:
    """SMALL with the texts of `shared` and one model for all purposes; dotted keys on top."""
    found: dict[str, Any] = {
        "cache": str(shared / "cache"),
        "data.path": str(shared / "private.jsonl"),
        "data.public-path": str(shared / "public.jsonl"),
        **{f"models.{kind}": str(model) for kind in ("generator", "conditional", "downstream")},
    }
    return RunConfig.from_flat({**SMALL, **found, **values})


def kind(message: Any) -> str:
    """The handler that Flower would choose: of a stage, too."""
    found: str = message.metadata.message_type
    return next(name for name in HANDLERS if found == name or found.startswith(name + "."))


def grid_for(loopback: Any, contexts: Sequence[Any]) -> Any:
    """Nodes 1, 2, ... that run the real ClientApp handlers."""

    def node(context: Any) -> Any:
        return lambda message: HANDLERS[kind(message)](message, context)

    return loopback({i: node(context) for i, context in enumerate(contexts, start=1)})


def simulated(config: RunConfig) -> list[Any]:
    """What Flower's simulation gives the nodes."""
    return [
        node_context({"partition-id": i, "num-partitions": config.nodes}, config.flat(), i + 1)
        for i in range(config.nodes)
    ]


def run(config: RunConfig, loopback: Any, path: Path) -> tuple[dict[str, Any], Any]:
    """One process' run, or its resumption -> summary and grid."""
    grid = grid_for(loopback, simulated(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVSYN_SIMULATION", "1")  # an end-to-end test does not set it
        return run_on(grid, config, path), grid


def run_on(grid: Any, config: RunConfig, path: Path) -> dict[str, Any]:
    """One process' run on these nodes -> summary."""
    folder = RunFolder(path)
    (path / "config.toml").write_text(to_toml(config))
    with folder.lock():
        Run(config, grid, folder).run()
    for row in folder.metrics():  # a number that is not listed, a tracker would never be told
        numbers = {key for key, value in row.items() if isinstance(value, int | float)}
        left_out = numbers - set(public_row(row)) - {"round", "epoch"}
        assert not left_out, left_out
    summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
    loss = deployment_of(path)["privacy_loss"]  # a valid record, whatever the method
    assert loss["privacy_parameters"].get("epsilon") in (None, summary["epsilon"])
    return summary


def alone(config: Path, folder: Path) -> subprocess.Popen[str]:
    """A run in a process of its own, without Flower: to be killed."""
    command = [sys.executable, "-m", __name__, str(config), str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=CONFIGS.parent, stdout=pipe, stderr=pipe, text=True)


def deployed(tmp_path: Path, policy: str = POLICY) -> tuple[RunConfig, list[Any]]:
    """Three nodes of two users each with data, a cache and a policy of their own."""
    write_rows(tmp_path / "public.jsonl", sentences(80, 2), 4)
    own = [sentences(6, 10 + i) for i in range(3)]
    contexts = deployed_nodes(tmp_path, policy, own, embedder="ngram-32")
    values: dict[str, Any] = {
        "data.source": "files",
        "data.public-path": str(tmp_path / "public.jsonl"),
        "data.users": 6,
        "nodes": 3,
        "epsilon": 50.0,
        "rounds": 2,
        "round-timeout": 5.0,
        "node-timeout": 5.0,
        "cache": str(tmp_path / "server"),
        "models.embedder": "ngram-32",
        **PRETEXT,
        "pretext.threshold": 1.0,
        "expand.samples": 0,
    }
    return RunConfig.from_flat(values), contexts


def deployed_nodes(
    folder: Path, policy: str, texts: Sequence[Sequence[str]], **node_config: Any
) -> list[Any]:
    """Nodes with data, a cache and a policy of their own. texts: of the users of each."""
    (folder / "policy.toml").write_text(policy)
    contexts = []
    for i, own in enumerate(texts):
        write_rows(folder / f"node{i}.jsonl", own)
        found = {
            "data": str(folder / f"node{i}.jsonl"),
            "weight": len(own) // TEXTS_PER_USER,
            "cache": str(folder / f"cache{i}"),
            "policy": str(folder / "policy.toml"),
        }
        contexts.append(node_context({**found, **node_config}, node_id=i + 1))
    return contexts


def reviews_config(
    name: str, folder: Path, generator: Path, downstream: Path, **values: Any
) -> RunConfig:
    """A paper's configuration of classes with labelled stand-ins: one node, no public text."""
    path = CONFIGS / "papers" / f"{name}.toml"
    labels, source = load_config(path).classes, folder / "reviews.jsonl"
    texts = enumerate(sentences(60, seed=4))
    write_jsonl(source, ({"text": text, "label": labels[i % len(labels)]} for i, text in texts))
    found: dict[str, Any] = {
        "cache": str(folder / "cache"),
        "data.path": str(source),
        "data.users": 30,
        "data.held-out-users": 15,
        "data.development-users": 10,
        "models.embedder": "ngram-32",
        "models.generator": str(generator),
        "models.downstream": str(downstream),
        "models.device": "cpu",
        "generation.backend": "huggingface",
        "expand.min-words": 1,
        "expand.max-tokens": 12,
        "evaluation.steps": 3,
        "evaluation.batch-size": 4,
        "evaluation.sequence-length": 24,
        "evaluation.bootstrap": 100,
    }
    return load_config(path, {**found, **values})


class Killed(BaseException):
    """What no handler of ours catches."""


def killing(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, when: Any = None) -> None:
    """Make `place.name` end the process when it is called (and `when` says so)."""
    real = getattr(place, name)

    def fatal(*args: Any, **kwargs: Any) -> Any:
        if when is None or when(*args, **kwargs):
            raise Killed(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(place, name, fatal)


def ending_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end after their first round."""
    released = Rounds._ensure_released
    first = lambda self, rnd: released(self, rnd) if rnd == 1 else None  # noqa: E731
    monkeypatch.setattr(Rounds, "_ensure_released", first)


def texts(path: Path, name: str = "synthetic") -> list[str]:
    """Of a file of a run folder."""
    return [row["text"] for row in read_jsonl(path / f"{name}.jsonl")]


def charges(folder: Path) -> list[dict[str, Any]]:
    """The reservations of a ledger, or of a run's part of one."""
    return [row for row in read_jsonl(folder / "ledger.jsonl") if row["kind"] == "reserve"]


def committed(folder: Path) -> list[dict[str, Any]]:
    """The reservations that were committed."""
    done = {row["id"] for row in read_jsonl(folder / "ledger.jsonl") if row["kind"] == "commit"}
    return [row for row in charges(folder) if row["id"] in done]


if __name__ == "__main__":  # as `alone` starts it
    with configured(), pytest.MonkeyPatch.context() as context:
        run(load_config(Path(sys.argv[1])), looped(context), Path(sys.argv[2]))
