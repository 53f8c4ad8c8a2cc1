"""The filter by two language models: its three numbers, its three conditions, and streaming."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.app.public import proximity
from privsyn_flower.app.public.proximity import (
    TextScores,
    Thresholds,
    concatenate,
    keep,
    score_texts,
)
from privsyn_flower.text.models.lm_metrics import TOKEN_CHARACTERS, Likelihoods, unknown_rates
from tests.rigs.models import one_thread
from tests.text.conftest import SENTENCES, causal_folder

__all__ = ["causal_folder", "one_thread"]  # pytest finds fixtures by name

torch = pytest.importorskip("torch")
from privsyn_flower.text.models import lstm  # noqa: E402 - it imports torch

TINY: dict[str, Any] = {"words": 60, "hidden": 12, "embedding": 6}
TEXTS = [*SENTENCES, "zebra zebra zebra", "", "Fox", "a zebra near the river"]
LENGTH = 10


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lstm.make_lstm(tmp_path_factory.mktemp("before"), SENTENCES, steps=5, **TINY)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lstm.make_lstm(tmp_path_factory.mktemp("after"), SENTENCES, steps=60, **TINY)


def scores_of(texts: Any, before: Path, after: Path, **options: Any) -> TextScores:
    return concatenate(score_texts(texts, before, after, length=LENGTH, device="cpu", **options))


def by_hand(text: str, folder: Path) -> tuple[float, float]:
    """The unknown rate and the score of one text, word by word, by the model's own softmax."""
    model = Likelihoods(folder, "cpu")
    ids = model.tokenizer(text)["input_ids"][:LENGTH]
    words = ids[1:]
    if not words:
        return float("nan"), float("nan")
    with torch.no_grad():
        logits = model._scorer.model(input_ids=torch.tensor([ids])).logits[0].double()
    told = [float(torch.log_softmax(logits[i], 0)[word]) for i, word in enumerate(words)]
    rate = sum(word == model.tokenizer.unk_token_id for word in words) / len(words)
    return rate, sum(told) / len(told)


def test_the_three_numbers_are_those_of_the_text_by_itself(before: Path, after: Path) -> None:
    found = scores_of(TEXTS, before, after)
    for i, text in enumerate(TEXTS):
        for folder, score in ((before, found.before[i]), (after, found.after[i])):
            rate, mean = by_hand(text, folder)
            np.testing.assert_allclose([found.unknown[i], score], [rate, mean], rtol=1e-5)
    assert found.unknown[TEXTS.index("zebra zebra zebra")] == 1.0
    assert 0 < found.unknown[TEXTS.index("a zebra near the river")] < 1
    assert np.isnan(found.before[TEXTS.index("")])
    # What the second model learned, it finds likelier.
    assert np.nanmean((found.after - found.before)[: len(SENTENCES)]) > 0.05


def test_streaming_is_reading_all_at_once(
    before: Path, after: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = scores_of(TEXTS, before, after)
    monkeypatch.setattr(proximity, "BLOCK", 3)
    told: list[tuple[str, float, float]] = []
    read: list[str] = []

    def source() -> Iterator[str]:
        for text in TEXTS:
            read.append(text)
            yield text

    blocks = score_texts(
        source(), before, after, length=LENGTH, device="cpu",
        progress=lambda stage, done, total, note="": told.append((stage, done, total)),
        total=len(TEXTS),
    )  # fmt: skip
    first = next(blocks)
    assert len(first.unknown) == 3 and read == TEXTS[:3]  # nothing is read ahead
    found = concatenate([first, *blocks])
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert told == [("proximity", done, 10) for done in (3, 6, 9, 10)]
    # A block's scores are its own texts' alone, to the last digit.
    for one, other in zip(scores_of(TEXTS[3:6], before, after), found, strict=True):
        np.testing.assert_array_equal(one, other[3:6])


def test_batches_that_are_cut_tell_the_same(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Likelihoods(before, "cpu")
    rows = model.encode(TEXTS, LENGTH)
    whole = model.means(rows)
    monkeypatch.setattr(model, "_entries", 1)  # one row at a time
    np.testing.assert_allclose(model.means(rows), whole, rtol=1e-5)


def test_a_text_is_cut(before: Path, after: Path) -> None:
    long = " ".join(SENTENCES[1].split() * 400)
    found = scores_of([long, " ".join(long.split()[: LENGTH * 2])], before, after)
    for column in found:
        assert column[0] == pytest.approx(column[1], rel=1e-6)


def test_a_block_of_long_texts_is_held_cut(
    before: Path, after: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, held = proximity._block, list[int]()

    def block(texts: Any, *arguments: Any) -> TextScores:
        held.extend(map(len, texts))
        return measured(texts, *arguments)

    monkeypatch.setattr(proximity, "_block", block)
    found = scores_of(["river " * 200_000, "river"], before, after)
    assert held == [LENGTH * TOKEN_CHARACTERS, 5] and not np.isnan(found.after).any()


def test_each_condition_holds_at_its_bound() -> None:
    step = 1e-9
    scores = TextScores(
        unknown=np.array([0.6, 0.6 + step, 0.0, 0.0, 0.0, 0.0]),
        before=np.array([-5.0, -5.0, -6.0, -6.0, -3.0, -3.0 + step]),
        after=np.array([-5.0, -5.0, -5.0, -5.0 - step, -3.0, -3.0]),
    )
    assert keep(scores, Thresholds()).tolist() == [True, False, True, False, True, False]
    assert keep(scores, Thresholds(gain=False)).tolist() == [True, False, True, False, True, True]
    wide = Thresholds(most_unknown=1.0, least_score=-9.0, gain=False)
    assert keep(scores, wide).all()


def test_a_least_score_as_a_quantile_of_the_first_models_scores() -> None:
    before = np.array([-9.0, -7.0, -5.0, -3.0, -1.0, np.nan])
    scores = TextScores(np.zeros(6), before, np.full(6, -5.0))
    thresholds = Thresholds(least_quantile=0.5, gain=False)
    assert thresholds.least(before) == -5.0
    assert keep(scores, thresholds).all()
    assert not keep(scores, Thresholds(least_quantile=0.51, gain=False)).any()
    assert keep(scores, Thresholds(least_quantile=0.5)).tolist() == [True] * 3 + [False] * 3


def test_the_same_model_twice_makes_no_text_less_likely(before: Path) -> None:
    scores = scores_of(TEXTS, before, before)
    some = ~np.isnan(scores.before)
    np.testing.assert_array_equal(scores.before, scores.after)
    kept = keep(scores, Thresholds(most_unknown=1.0, least_score=-100.0))
    assert kept.tolist() == some.tolist() and some.sum() == len(TEXTS) - 1


def test_texts_of_unknown_words_alone_go(before: Path, after: Path) -> None:
    texts = ["zebra yak xylophone", "mean array"]
    scores = scores_of(texts, before, after)
    thresholds = Thresholds(least_score=-100.0, gain=False)
    assert keep(scores, thresholds).tolist() == [False, True]


def test_no_text_no_score(before: Path, after: Path) -> None:
    scores = scores_of([], before, after)
    assert [column.shape for column in scores] == [(0,)] * 3
    assert keep(scores, Thresholds(least_quantile=0.5)).shape == (0,)


def test_a_vocabulary_that_spells_everything_knows_every_word(causal_folder: Path) -> None:
    model = Likelihoods(causal_folder, "cpu")
    rows = model.encode(["zebra xylophone", ""], 8)
    rates = unknown_rates(model.tokenizer, rows)
    assert rates[0] == 0.0 and np.isnan(rates[1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"most_unknown": 1.1}, "most-unknown = 1.1"),
        ({"least_score": 5.0}, "the paper's 5 is -5"),
        ({"least_score": float("nan")}, "least-score = nan"),
        ({"least_quantile": 1.0}, "least-quantile = 1.0"),
    ],
)
def test_thresholds_out_of_bounds(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Thresholds(**values)  # type: ignore[arg-type]


def test_what_cannot_be_compared_is_said_before_a_text_is_read(
    before: Path, causal_folder: Path, tmp_path: Path
) -> None:
    texts = iter(["a text"])
    with pytest.raises(ValueError, match="different tokenizers"):
        score_texts(texts, before, causal_folder, length=8, device="cpu")
    with pytest.raises(ValueError, match="length = 1"):
        score_texts(texts, before, before, length=1, device="cpu")
    with pytest.raises(RuntimeError, match=r"holds no \*\.safetensors"):
        score_texts(texts, before, tmp_path, length=8, device="cpu")
    assert list(texts) == ["a text"]
