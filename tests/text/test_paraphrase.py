"""Paraphrases under clipped logits: the price of a token holds for the model's real draws."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text.models.pretrained import decode
from privsyn_flower.text.paraphrase import (
    Paraphraser,
    Seq2SeqParaphraser,
    load_paraphraser,
    paraphrase_prompt,
)
from tests.text.conftest import make_tokenizer, save_random

TEXTS = ["Return the mean of the array.", "A senior engineer who enjoys teams.", "Tea."]


OPTIONS: dict[str, Any] = {"max_tokens": 6, "batch_size": 2, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small T5 with random weights: an encoder and a decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("whole")
    tokenizer = make_tokenizer(folder, masked=True)
    config = T5Config(
        vocab_size=len(tokenizer) + 8, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
        pad_token_id=1, eos_token_id=2, decoder_start_token_id=1, initializer_factor=4.0,
    )  # fmt: skip
    return save_random(T5ForConditionalGeneration, config, folder)


@pytest.fixture(scope="module", params=["causal", "encoder-decoder"])
def folder(request: pytest.FixtureRequest, causal_folder: Path, whole_folder: Path) -> Path:
    return causal_folder if request.param == "causal" else whole_folder


@pytest.fixture(scope="module")
def paraphraser(folder: Path) -> Paraphraser:
    return load_paraphraser(folder, **OPTIONS)


def test_how_many_texts_are_long_is_told_nobody(
    paraphraser: Paraphraser, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    if not isinstance(paraphraser, Seq2SeqParaphraser):
        monkeypatch.setattr(paraphraser.tokenizer, "model_max_length", 100)
    with caplog.at_level("INFO"):
        drawn = paraphraser.paraphrase(
            ["word " * 3000, "Tea."], low=-1.0, high=1.0, temperature=1.0,
            rng=np.random.default_rng(0),
        )  # fmt: skip
    assert len(drawn) == 2 and not caplog.records


def test_the_kind_of_model_is_its_own(causal_folder: Path, whole_folder: Path) -> None:
    assert type(load_paraphraser(causal_folder, **OPTIONS)) is Paraphraser
    assert isinstance(load_paraphraser(whole_folder, **OPTIONS), Seq2SeqParaphraser)


def test_a_decoder_without_a_first_token_is_refused_before_work(
    whole_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "headless"
    shutil.copytree(whole_folder, folder)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text("utf-8"))
        settings.pop("decoder_start_token_id", None)
        (folder / name).write_text(json.dumps(settings), "utf-8")
    with pytest.raises(ValueError, match="headless names no decoder_start_token_id in its config"):
        load_paraphraser(folder, **OPTIONS)


def test_the_prompt_is_the_papers_on_two_lines() -> None:
    assert paraphrase_prompt("one\n two") == "Document: one two\nParaphrase of the document:"


def test_each_text_gets_one_paraphrase_whatever_the_batch(
    paraphraser: Paraphraser, folder: Path
) -> None:
    options = {"low": -2.0, "high": 2.0, "temperature": 0.7}
    found = paraphraser.paraphrase(TEXTS, rng=np.random.default_rng(1), **options)
    assert len(found) == 3 and len(set(found)) == 3
    alone = load_paraphraser(folder, **{**OPTIONS, "batch_size": 9})
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
    for name, value in (("_banned", banned), ("clip", (low, high)), ("temperature", temperature)):
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
    low, high = paraphraser.logit_range(TEXTS)
    said = paraphraser.tokenizer(f" {TEXTS[0]}", add_special_tokens=False)["input_ids"]
    after = paraphraser.after(paraphrase_prompt(TEXTS[0]), said[:3])
    assert len(after) == 4  # after nothing, and after each of three tokens
    first = paraphraser.after(paraphrase_prompt(TEXTS[0]), [])
    assert np.allclose(first[0].detach(), after[0].detach(), atol=1e-5)
    allowed = after[:, ~paraphraser._banned]
    assert low <= float(allowed.min()) < float(allowed.max()) <= high
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


def test_an_encoder_decoder_writes_what_the_library_would(whole_folder: Path) -> None:
    """At hardly any temperature: the likeliest token each time, as `generate` without sampling."""
    own = Seq2SeqParaphraser(whole_folder, **OPTIONS)
    options = {"low": -1e3, "high": 1e3, "temperature": 1e-4}
    found = own.paraphrase(TEXTS, rng=np.random.default_rng(0), **options)
    for text, drawn in zip(TEXTS, found, strict=True):
        read = own.tokenizer(paraphrase_prompt(text), return_tensors="pt")
        banned = [[i] for i, out in enumerate(own._banned.tolist()) if out]
        wanted = own.model.generate(
            input_ids=read["input_ids"], attention_mask=read["attention_mask"],
            max_new_tokens=6, do_sample=False, bad_words_ids=banned,
        )  # fmt: skip
        assert decode(own.tokenizer, wanted[0].tolist()) == drawn
    assert len(set(found)) == 3  # the encoder's reading counts
    own.close()
    assert own.model is None
