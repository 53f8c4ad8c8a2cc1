"""What several tests share about ctcl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.client_apps import main as client
from privsyn_flower.config import CtclConfig, ExpandConfig, TrainingConfig
from privsyn_flower.strategies import CTCL
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.text import load_embedder
from privsyn_flower.text.topics import TopicModel
from tests.conftest import node_context, sentences
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

EPSILON, DELTA, USERS = 60.0, 1e-5, 6


POLICY = (
    'queries = ["votes", "update"]\naggregation = ["plain"]\nmin-noise-multiplier = 0.01\n'
    "min-surviving-weight = 1.0\nlifetime-epsilon = 1e6\ntrusted-aggregator = true\n"
)


@pytest.fixture
def base(causal_folder: Path) -> Path:
    return causal_folder


def topics(seed: int = 9) -> TopicModel:
    embedder = load_embedder("ngram-32")
    texts = sentences(4, seed)
    words = tuple(tuple(text.split()[:2]) for text in texts)
    return TopicModel(embedder.embed(texts), words, embedder.fingerprint)


def training(**values: Any) -> TrainingConfig:
    given = {"clip_norm": 0.5, "parameters": "lora", "lora_rank": 2, "lora_factors": "up"}
    return TrainingConfig(**{**given, "batch_size": 8, **values})


def made(folder: Path, model: TopicModel | None = None, rounds: int = 2, **values: Any) -> CTCL:
    keys = {name: values.pop(name) for name in ("ftrl", "sampler") if name in values}
    table = {name: values.pop(name) for name in ("noise",) if name in values}
    config = CtclConfig(**{"histogram_multiplier": 0.0, "max_source": 12, **values})
    return CTCL(
        topics() if model is None else model,
        folder,
        rounds=rounds,
        config=config,
        training=training(**table),
        sequence_length=12,
        samples_per_user=3,
        **keys,
    )


def nodes(tmp_path: Path, loopback: Any, base: Path) -> Any:
    """Three devices of two users each, with the real handlers."""
    (tmp_path / "policy.toml").write_text(POLICY)
    handlers = {
        "query.hello": client.hello,
        "query.votes": client.votes,
        "train": client.update,
    }

    def node(number: int) -> Any:
        data = tmp_path / f"node{number}.jsonl"
        rows = [
            json.dumps({"user_id": f"{number}-{user}", "text": text})
            for user in range(2)
            for text in sentences(3, 10 * number + user)
        ]
        data.write_text("\n".join(rows) + "\n")
        own = {
            "data": str(data), "weight": 2, "cache": str(tmp_path / f"cache{number}"),
            "embedder": "ngram-32", "downstream": str(base), "device": "cpu",
            "policy": str(tmp_path / "policy.toml"),
        }  # fmt: skip
        context = node_context(own, node_id=number)
        return lambda message: handlers[message.metadata.message_type](message, context)

    return loopback({number: node(number) for number in (1, 2, 3)})


def started(strategy: CTCL, grid: Any, folder: Path, **options: Any) -> Any:
    return strategy.start(
        grid,
        **{
            "folder": folder, "users": USERS, "nodes": 3, "epsilon": EPSILON, "delta": DELTA,
            "spare_rounds": 0, "min_surviving_weight": 1.0, "aggregation": PlainSum(),
            "samples": 12, "expand": ExpandConfig(max_tokens=16, min_words=1, batch_size=12),
            "device": "cpu", **options,
        },
    )  # fmt: skip
