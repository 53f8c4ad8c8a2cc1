"""What several tests share about conditional updates."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.common.randomness import seeded
from privsyn_flower.protocol.question import Query
from privsyn_flower.text.embedders import load_embedder
from privsyn_flower.text.topics import TopicModel
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.conditions import ROWS, Conditions
from privsyn_flower.training.models import load_model
from tests.conftest import sentences
from tests.rigs.updates import (
    USERS,
    question,
    start,
)
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

SOURCE = 10


@pytest.fixture
def base(causal_folder: Path) -> Path:
    return causal_folder


@functools.cache
def topics(seed: int = 5) -> TopicModel:
    """Of the node's embedder."""
    embedder = load_embedder("ngram-64", "cpu", progress=False)
    texts = sentences(5, seed)
    words = tuple(tuple(text.split()[:3]) for text in texts)
    return TopicModel(embedder.embed(texts), words, embedder.fingerprint)


def conditions(model: TopicModel | None = None, **values: Any) -> Conditions:
    given = {"document_type": "note", "max_source": SOURCE, **values}
    return Conditions(**{"topics": model or topics(), **given})


def about(base: Path, asked: Conditions | None = None, **values: Any) -> Query:
    """An update question about pairs."""
    asked = asked or conditions()
    query = question(base, **values)
    options = {**query.options, **asked.to_options()}
    return replace(query, options=options, extra={**query.extra, **asked.to_arrays()})


def by_hand(base: Path, query: Query, user: str) -> Any:
    """One user's delta: its texts embedded here, and their conditions written here."""
    embedder, model = load_embedder("ngram-64", "cpu", progress=False), topics()
    rows = query.extra[ROWS].astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = (embedder.embed(list(USERS[user])) @ rows.T).argmax(axis=1)
    told = [f"Document Type: note\nKeywords: {', '.join(model.keywords[i])}" for i in nearest]
    options = LocalTraining.from_options(query.options)
    rng = seeded(options.seed, query.rotation.hex(), "order", user)
    with load_model(base, "cpu").load(start(base), options.trained) as loaded:
        return loaded.train(USERS[user], options, rng, told, SOURCE)
