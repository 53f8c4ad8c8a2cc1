"""Paraphrases under clipped logits: the price of a token holds for the model's real draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.text.paraphrase import Paraphraser, paraphrase_prompt

TEXTS = ["Return the mean of the array.", "A senior engineer who enjoys teams.", "Tea."]


@pytest.fixture(scope="module")
def paraphraser(causal_folder: Path) -> Paraphraser:
    return Paraphraser(causal_folder, max_tokens=6, batch_size=2, device="cpu", progress=False)


def test_the_prompt_is_the_papers_on_two_lines() -> None:
    assert paraphrase_prompt("one\n two") == "Document: one two\nParaphrase of the document:"


def test_each_text_gets_one_paraphrase_whatever_the_batch(
    paraphraser: Paraphraser, causal_folder: Path
) -> None:
    options = {"low": -2.0, "high": 2.0, "temperature": 0.7}
    found = paraphraser.paraphrase(TEXTS, rng=np.random.default_rng(1), **options)
    assert len(found) == 3 and len(set(found)) == 3
    alone = Paraphraser(causal_folder, max_tokens=6, batch_size=9, device="cpu", progress=False)
    assert alone.paraphrase(TEXTS, rng=np.random.default_rng(1), **options) == found
    other = alone.paraphrase(TEXTS, rng=np.random.default_rng(2), **options)
    assert other != found


def next_tokens(paraphraser: Paraphraser, logits: list[float], draws: int) -> np.ndarray:
    """How often each token is drawn after these logits, exactly: at evenly spread uniforms."""
    import torch

    uniforms = ((np.arange(draws) + 0.5) / draws).astype(np.float32)
    rows = torch.tensor([logits]).repeat(draws, 1)
    return np.bincount(paraphraser.choose(rows, uniforms), minlength=len(logits)) / draws


def test_no_two_texts_change_a_tokens_odds_by_more_than_its_price(
    paraphraser: Paraphraser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst pair of texts: logits at opposite ends, far outside of the range."""
    banned = paraphraser._banned.clone()
    allowed = [i for i, out in enumerate(banned.tolist()) if not out][:50]
    banned[:] = True
    banned[allowed] = False
    low, high, temperature = -1.0, 1.0, 2.0
    for name, value in (("_banned", banned), ("_range", (low, high)), ("temperature", temperature)):
        monkeypatch.setattr(paraphraser, name, value)
    price, step = 2 * (high - low) / temperature, math.exp((high - low) / temperature)
    worst = math.log(step * (1 + 49 * step) / (step + 49))  # of 50 tokens: below the price of many
    for extreme in (1e6, math.inf):
        one, two = [-extreme] * len(banned), [extreme] * len(banned)
        one[allowed[0]], two[allowed[0]] = extreme, -extreme
        odds = [next_tokens(paraphraser, row, 4000)[allowed[0]] for row in (one, two)]
        assert math.log(odds[0] / odds[1]) == pytest.approx(worst, abs=0.03) and worst < price
    assert next_tokens(paraphraser, [math.nan] * len(banned), 4000).max() < 0.021  # all alike


def test_the_range_is_that_of_the_public_texts(paraphraser: Paraphraser) -> None:
    import torch

    low, high = paraphraser.logit_range(TEXTS)
    ids = paraphraser.tokenizer(paraphrase_prompt(TEXTS[0]))["input_ids"]
    after = paraphraser.model(torch.tensor([ids])).logits[0, -1][~paraphraser._banned]
    assert low <= float(after.min()) < float(after.max()) <= high
    alone = paraphraser.logit_range(TEXTS[:1])
    assert low <= alone[0] < alone[1] <= high
    with pytest.raises(ValueError, match="0 public texts"):
        paraphraser.logit_range([])


@pytest.mark.parametrize("wrong", [{"high": -2.0}, {"temperature": 0.0}])
def test_a_range_or_temperature_that_prices_nothing_is_refused(
    paraphraser: Paraphraser, wrong: dict[str, float]
) -> None:
    options = {"low": -2.0, "high": 2.0, "temperature": 1.0, **wrong}
    with pytest.raises(ValueError, match=r"low=-2\.0 must be below"):
        paraphraser.paraphrase(TEXTS, rng=np.random.default_rng(0), **options)
