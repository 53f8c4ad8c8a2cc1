"""What several tests share about scores."""

from __future__ import annotations

from typing import Any

from privsyn_flower.protocol.question import Query
from privsyn_flower.text import load_embedder
from tests.conftest import sentences

EMBEDDER = "ngram-64"


def embed(texts: Any) -> Any:
    return load_embedder(EMBEDDER).embed(texts)


def question(**options: Any) -> Query:
    given = {"model": load_embedder(EMBEDDER).fingerprint, "groups": [5, 4, 3], "bound": 1.0}
    return Query.scores(embed(sentences(12, 99)), **{**given, **options})
