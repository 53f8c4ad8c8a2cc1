"""The benchmark's new LSTMs: what each is trained on, and that nothing else differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.common.progress import silent
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.proximity import (
    ALL,
    FILTERED,
    NOISE,
    RANDOM,
    filtered_rows,
    is_lstm,
    subsets,
    text_counts,
    train_anew,
)
from tests.text.conftest import SENTENCES

torch = pytest.importorskip("torch")
from privsyn_flower.text.models import lstm  # noqa: E402 - it imports torch

KINDS = {"m": "minority", "g": "general"}
POOL = [
    {"text": text, "source": KINDS[kind]} for text, kind in zip("abcdef", "mgmggm", strict=True)
]


def test_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    kept, by_noise = POOL[:3], POOL[3:4]
    chosen = subsets(POOL, kept, by_noise, seed=3)
    assert chosen[FILTERED] == kept and chosen[NOISE] == by_noise
    drawn = {"".join(str(row["text"]) for row in subsets(POOL, kept, None, seed=seed)[RANDOM])
             for seed in range(30)}  # fmt: skip
    assert len(drawn) > 5 and {len(set(texts)) for texts in drawn} == {3}
    assert caplog.text == ""
    assert set(subsets(POOL, kept, [], seed=3)) == {FILTERED, RANDOM}, "no empty row"
    assert "scratch_noise: no text was kept" in caplog.text
    assert subsets(POOL, [], None, seed=3) == {}


def test_the_minoritys_share() -> None:
    assert text_counts({ALL: POOL, FILTERED: POOL[:3], NOISE: POOL[1:]}) == {
        "texts": {ALL: 6, FILTERED: 3, NOISE: 5},
        "minority_share": {ALL: 0.5, FILTERED: 0.66667, NOISE: 0.4},
    }
    assert text_counts({ALL: [{"text": "a"}]}) == {"texts": {ALL: 1}}, "nobody is a minority"


def test_what_the_filter_left(tmp_path: Path) -> None:
    rows = [{"text": "a\u2028b", "after": -1.0}, {"text": "c"}]
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    (tmp_path / "proximity.jsonl").write_text(lines, "utf-8")
    assert filtered_rows(tmp_path) == rows


def test_rows_differ_in_their_text_alone(tmp_path: Path) -> None:
    start = lstm.make_lstm(
        tmp_path / "start", SENTENCES, words=60, hidden=12, embedding=6, steps=9, batch_words=64
    )
    assert is_lstm(start)
    config = RunConfig.from_flat(
        {"models.device": "cpu", "models.lstm-batch-words": 64, "models.train-steps": 2}
    )
    rows = [{"text": text} for text in SENTENCES]
    every = train_anew(config, start, rows, tmp_path / "anew" / "all", silent)
    few = train_anew(config, start, rows[:3], tmp_path / "anew" / "few", silent)
    weights = "model.safetensors"
    # All text again is the start again: the same words, first weights, order and nine steps.
    assert (every / weights).read_bytes() == (start / weights).read_bytes()
    assert (few / weights).read_bytes() != (start / weights).read_bytes()
    before = (few / weights).stat().st_mtime_ns
    assert train_anew(config, start, [], few, silent) == few
    assert (few / weights).stat().st_mtime_ns == before, "found, not made again"


def test_another_model_is_none(causal_folder: Path) -> None:
    assert not is_lstm(causal_folder)
