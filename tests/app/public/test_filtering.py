"""The filter as a job: what is kept is written, and nothing is measured twice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.public import proximity
from privsyn_flower.app.public.proximity import (
    OtherScores,
    Pair,
    Pool,
    TextScores,
    Thresholds,
    filter_pool,
    shares,
)
from privsyn_flower.runs import read_jsonl

TEXTS = [f"text {i}" for i in range(10)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that were measured: a text's number is its score, negative; without models."""
    read: list[str] = []

    def score(texts: Iterable[str], before: Path, after: Path, **options: Any) -> Any:
        rest = list(texts)
        assert options["done"] + len(rest) == options["total"]
        for first in range(0, len(rest), 4):
            block = rest[first : first + 4]
            read.extend(block)
            scores = -np.array([float(text.split()[1]) for text in block])
            scores[scores == -3.0] = np.nan
            yield TextScores(np.zeros(len(block)), scores, scores + 0.5)

    monkeypatch.setattr(proximity, "BLOCK", 4)
    monkeypatch.setattr(proximity, "score_texts", score)
    return read


@pytest.fixture
def models(tmp_path: Path) -> Pair:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return Pair(tmp_path / "before", tmp_path / "after", 16)


def pool(texts: list[str] = TEXTS, **values: Any) -> Pool:
    rows = [{"text": text, "stage": "chat" if i % 2 else "filter"} for i, text in enumerate(texts)]
    return Pool(lambda: rows, len(rows), values.pop("digest", "d"), by="stage", **values)


def test_kept_texts_with_their_numbers(tmp_path: Path, measured: list[str], models: Pair) -> None:
    target, scores = tmp_path / "out" / "proximity.jsonl", tmp_path / "out" / "scores"
    found = filter_pool(pool(), models, Thresholds(), target, scores)
    # 3 has no score; 6 and beyond are below -5 after the training as well: 5.5 is -5 for text 5.
    assert [row["text"] for row in read_jsonl(target)] == [f"text {i}" for i in (0, 1, 2, 4, 5)]
    assert read_jsonl(target)[1] == {
        "text": "text 1", "stage": "chat", "unknown": 0.0, "before": -1.0, "after": -0.5,
    }  # fmt: skip
    counted = {key: found[key] for key in ("kept", "of", "bytes_kept", "bytes_of", "unscored")}
    assert counted == {"kept": 5, "of": 10, "bytes_kept": 30, "bytes_of": 60, "unscored": 1}
    assert found["by"]["chat"] == {"kept": 2, "of": 5, "bytes_kept": 12, "bytes_of": 30}
    assert found["by"]["filter"]["kept"] == 3
    assert shares(found, "chat") == {"before": 0.5, "after": 0.4}
    assert shares(found, "convert") == {"before": 0.0, "after": 0.0}
    assert found["mean_before"] == {"of": round(-42 / 9, 6), "kept": -2.4}
    assert found["thresholds"]["least_score"] == -5.0
    json.dumps(found, allow_nan=False)


def test_other_thresholds_take_no_model(tmp_path: Path, measured: list[str], models: Pair) -> None:
    target, scores = tmp_path / "proximity.jsonl", tmp_path / "scores"
    filter_pool(pool(), models, Thresholds(), target, scores)
    assert measured == TEXTS
    found = filter_pool(pool(), models, Thresholds(least_quantile=0.5), target, scores)
    assert measured == TEXTS and found["thresholds"]["least_score"] == -5.0
    assert [row["text"] for row in read_jsonl(target)] == [f"text {i}" for i in (0, 1, 2, 4, 5)]


def test_a_killed_job_goes_on_with_the_block_that_is_missing(
    tmp_path: Path, measured: list[str], models: Pair
) -> None:
    target, scores = tmp_path / "proximity.jsonl", tmp_path / "scores"
    whole = filter_pool(pool(), models, Thresholds(), target, scores)
    text = target.read_bytes()
    target.unlink()
    (scores / "000001.npy").unlink()  # and so nothing after it is taken
    del measured[:]
    assert filter_pool(pool(), models, Thresholds(), target, scores) == whole
    assert measured == TEXTS[4:] and target.read_bytes() == text


def test_scores_of_something_else_are_refused(
    tmp_path: Path, measured: list[str], models: Pair
) -> None:
    target, scores = tmp_path / "proximity.jsonl", tmp_path / "scores"
    filter_pool(pool(), models, Thresholds(), target, scores)
    text = target.read_bytes()
    with pytest.raises(OtherScores, match="differ in: texts"):
        filter_pool(pool(digest="e"), models, Thresholds(), target, scores)
    (models.after / "model.safetensors").write_bytes(b"another")
    with pytest.raises(OtherScores, match="differ in: after"):
        filter_pool(pool(), models, Thresholds(), target, scores)
    assert target.read_bytes() == text and measured == TEXTS


def test_models_that_cannot_be_compared_leave_the_folder_free(
    tmp_path: Path, models: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **options: Any) -> Any:
        raise ValueError("different tokenizers")

    monkeypatch.setattr(proximity, "score_texts", refused)
    with pytest.raises(ValueError, match="different tokenizers"):
        filter_pool(pool(), models, Thresholds(), tmp_path / "kept", tmp_path / "scores")
    assert not (tmp_path / "scores").exists() and not (tmp_path / "kept").exists()


def test_no_text_of_the_pool_is_near(tmp_path: Path, measured: list[str], models: Pair) -> None:
    target = tmp_path / "proximity.jsonl"
    found = filter_pool(pool(), models, Thresholds(least_score=0.0), target, tmp_path / "scores")
    assert read_jsonl(target)[0]["text"] == "text 0" and found["kept"] == 1
    empty = filter_pool(pool(["text 9"]), models, Thresholds(), target, tmp_path / "others")
    assert target.read_bytes() == b"" and empty["mean_after"] == {"of": -8.5, "kept": None}
