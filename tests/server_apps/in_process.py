"""Whole runs in one process: real handlers on a loopback grid, small models, few users.

What test files share; a fixture is found by its name where a file imports it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.tracking.public import public_row
from privsyn_flower.client_apps import main as client
from privsyn_flower.config import RunConfig
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.server_apps.run import Run
from tests.app.report.records import deployment_of
from tests.conftest import node_context, sentences
from tests.rigs.models import one_thread  # noqa: F401 - a fixture

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
POLICY = "min-surviving-weight = 1.0\nmin-noise-multiplier = 0.1\nlifetime-epsilon = 50.0\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Private and public text, and a cache, that the tests of a file share."""
    return with_texts(tmp_path_factory.mktemp("shared"))


def with_texts(folder: Path, private_words: list[str] | None = None) -> Path:
    """`folder`, with private and public text in it."""
    write_rows(folder / "private.jsonl", sentences(120, 1, private_words))
    write_rows(folder / "public.jsonl", sentences(120, 2))
    return folder


def write_rows(path: Path, texts: Sequence[str], per_user: int = TEXTS_PER_USER) -> None:
    """Users of so many texts each."""
    rows = [{"user_id": f"u{i // per_user}", "text": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def small_config(shared: Path, model: Path, /, **values: Any) -> RunConfig:
    """SMALL with the texts of `shared` and one model for all purposes; dotted keys on top."""
    found: dict[str, Any] = {
        "cache": str(shared / "cache"),
        "data.path": str(shared / "private.jsonl"),
        "data.public-path": str(shared / "public.jsonl"),
        "models.generator": str(model),
        "models.downstream": str(model),
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
    return run_on(grid, config, path), grid


def run_on(grid: Any, config: RunConfig, path: Path) -> dict[str, Any]:
    """One process' run on these nodes -> summary."""
    folder = RunFolder(path)
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


def deployed(tmp_path: Path, policy: str = POLICY) -> tuple[RunConfig, list[Any]]:
    """Three nodes of two users each with data, a cache and a policy of their own."""
    write_rows(tmp_path / "public.jsonl", sentences(80, 2), 4)
    (tmp_path / "policy.toml").write_text(policy)
    contexts = []
    for i in range(3):
        write_rows(tmp_path / f"node{i}.jsonl", sentences(6, 10 + i))
        node_config = {
            "data": str(tmp_path / f"node{i}.jsonl"),
            "weight": 2,
            "cache": str(tmp_path / f"cache{i}"),
            "embedder": "ngram-32",
            "policy": str(tmp_path / "policy.toml"),
        }
        contexts.append(node_context(node_config, node_id=i + 1))
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
        "pretext.population": 16,
        "pretext.lookahead": 1,
        "pretext.variation": "retrieval",
        "expand.samples": 0,
    }
    return RunConfig.from_flat(values), contexts


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
