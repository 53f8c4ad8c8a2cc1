"""The filter by two language models: its three numbers, its three conditions, and streaming."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

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

pytest.importorskip("torch")
from safetensors.torch import load_file

from privsyn_flower.text.models import lstm

TINY: dict[str, Any] = {"words": 60, "hidden": 12, "embedding": 6}
TEXTS = [*SENTENCES, "zebra zebra zebra", "", "Fox", "a zebra near the river"]
LENGTH = 10


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lstm.make_lstm(
        tmp_path_factory.mktemp("before"), SENTENCES, lstm.WordTraining(5), **TINY
    )


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lstm.make_lstm(
        tmp_path_factory.mktemp("after"), SENTENCES, lstm.WordTraining(60), **TINY
    )


def scores_of(texts: Any, before: Path, after: Path, **options: Any) -> TextScores:
    return concatenate(score_texts(texts, before, after, length=LENGTH, device="cpu", **options))


def test_known_unknown_and_empty_texts(before: Path, after: Path) -> None:
    found = scores_of(TEXTS, before, after)
    assert found.unknown[TEXTS.index("zebra zebra zebra")] == 1.0
    assert 0 < found.unknown[TEXTS.index("a zebra near the river")] < 1
    assert all(np.isnan(column[TEXTS.index("")]) for column in found)
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


# The paper's formula at 50 digits (Wu et al. 2024, section 5): there is no public code to compare
# with. The word LSTM is computed from its weights by hand.


PUBLIC = ["the river ran near the old house", "a fox and the river", "the house ran and ran"]
SOME = [*PUBLIC, "The RIVER near a zebra", "zebra zebra zebra fox", "fox", "a house zebra"]
RULES = (
    ("0.6", "-2.6", True, 5),
    ("0.3", "-2.6", True, 4),
    ("0.6", "-2.54", True, 4),
    ("0.6", "-2.6", False, 6),
)
SIX = 6  # tokens that are looked at, the start counted

Matrix = list[list[Any]]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def product(weight: Matrix, vector: list[Any]) -> list[Any]:
    return [mp.fdot(row, vector) for row in weight]


def log_likelihood(folder: Path, ids: list[int]) -> Any:
    """Mean over the tokens after the first of log softmax (section 5), coupled gates."""
    weights = {
        name: [[mpf(v) for v in row] for row in np.atleast_2d(value.double().numpy()).tolist()]
        for name, value in load_file(folder / "model.safetensors").items()
    }
    cells = len(weights["projection.weight"][0])
    state, cell = [mpf(0)] * len(weights["projection.weight"]), [mpf(0)] * cells
    total = mpf(0)
    for now, following in pairwise(ids):
        given = product(weights["input_gates.weight"], weights["embedding.weight"][now])
        back = product(weights["recurrent_gates.weight"], state)
        gates = [
            sum(part) for part in zip(given, weights["input_gates.bias"][0], back, strict=True)
        ]
        forget, out, new = (gates[i * cells : (i + 1) * cells] for i in range(3))
        cell = [
            sigmoid(f) * c + (1 - sigmoid(f)) * mp.tanh(n)
            for f, c, n in zip(forget, cell, new, strict=True)
        ]
        opened = [sigmoid(o) * mp.tanh(c) for o, c in zip(out, cell, strict=True)]
        state = product(weights["projection.weight"], opened)
        scores = product(weights["output.weight"], state)
        scores = [a + b for a, b in zip(scores, weights["output.bias"][0], strict=True)]
        total += scores[following] - mp.log(mp.fsum(mp.exp(score) for score in scores))
    return total / (len(ids) - 1)


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    shape: dict[str, Any] = {"words": 20, "hidden": 5, "embedding": 3}
    folders = tmp_path_factory.mktemp("before"), tmp_path_factory.mktemp("after")
    for folder, steps in zip(folders, (2, 40), strict=True):
        lstm.make_lstm(folder, PUBLIC, lstm.WordTraining(steps), **shape)
    return folders


def test_three_numbers_and_three_conditions(small_models: tuple[Path, Path]) -> None:
    found = concatenate(score_texts(SOME, *small_models, length=SIX, device="cpu"))
    counts: dict[str, int] = {}
    for word in " ".join(PUBLIC).split():
        counts[word] = counts.get(word, 0) + 1
    listed = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(["<unk>", "<pad>", "<s>", "</s>", *listed])}
    wanted = []
    with mp.workdps(50):
        for text in SOME:
            words = text.lower().split()[: SIX - 1]
            ids = [number["<s>"], *(number.get(word, number["<unk>"]) for word in words)]
            unknown = mpf(sum(word not in number for word in words)) / len(words)
            wanted.append([unknown, *(log_likelihood(folder, ids) for folder in small_models)])
    table = np.array(wanted, dtype=np.float64).T
    np.testing.assert_allclose(np.stack(found), table, rtol=1e-6)
    # Each condition decides about a text by itself.
    for unknown, least, gain, number_kept in RULES:
        rule = Thresholds(most_unknown=float(unknown), least_score=float(least), gain=gain)
        kept = [
            u <= mpf(unknown) and b >= mpf(least) and (b >= a or not gain) for u, a, b in wanted
        ]
        assert keep(found, rule).tolist() == kept and sum(kept) == number_kept
