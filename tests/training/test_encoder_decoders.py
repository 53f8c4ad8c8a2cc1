"""Local training of an encoder-decoder model: the bits of a plain loop, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import updates
from privsyn_flower.client_apps.updates import check_update
from privsyn_flower.common.randomness import seeded
from privsyn_flower.evaluation.public import export_model
from privsyn_flower.privacy.clipping import clip_l2
from privsyn_flower.protocol.wire import WireError
from privsyn_flower.text.models.lm_metrics import Scorer
from privsyn_flower.training import Layout, LocalTraining
from privsyn_flower.training.low_rank import initial_parameters, linear_weights, trained_patterns
from privsyn_flower.training.models import load_model
from tests.rigs.conditional import bart_folder  # noqa: F401
from tests.rigs.conditional_updates import SOURCE, by_hand, conditions
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.rigs.updates import CLIP, USERS, answer, decoded, node, noise, question

OPTIONS = LocalTraining(
    "sgd", 1.0, 0.0, 0.0, epochs=1, batch_size=8, max_steps=4, sequence_length=12
)
TEXTS = ["a river of stone", "", "theorem lemma proof " * 9]
CONDITIONS = ["Keywords: river, stone", "Keywords: tea", ""]


@pytest.fixture(scope="module")
def folder(bart_folder: Path) -> Path:
    return bart_folder


def factors(folder: Path) -> tuple[dict[str, Any], str]:
    """Low-rank factors whose product is not zero, and which of them are trained."""
    start, draw = initial_parameters(folder, "lora", rank=2, factors="up"), seeded(4)
    moved = {
        name: array if array.any() else 0.1 * draw.standard_normal(array.shape).astype(np.float32)
        for name, array in start.items()
    }
    return moved, trained_patterns(folder, "lora", factors="up")


def delta_of(folder: Path, conditions: Any, options: LocalTraining = OPTIONS) -> Any:
    with load_model(folder, "cpu").load(initial_parameters(folder, "full")) as loaded:
        loaded.rehearse(options, 9)
        return loaded.train(TEXTS, options, np.random.default_rng(0), conditions, 9)


def test_one_step_of_rate_one_is_minus_the_gradient_of_the_pair_loss(folder: Path) -> None:
    """The encoder reads the condition, the decoder writes the text after its first token."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses, count = [], 0
    for condition, text in zip(CONDITIONS, TEXTS, strict=True):
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        if not own:
            continue
        own = [*own, tokenizer.eos_token_id][:12]
        source = tokenizer(condition, truncation=True, max_length=9)["input_ids"]
        read = [tokenizer.bos_token_id, *own[:-1]]
        logits = model(torch.tensor([source]), decoder_input_ids=torch.tensor([read])).logits[0]
        losses.append(-logits.log_softmax(-1)[range(len(own)), own].sum())
        count += len(own)
    (sum(losses) / count).backward()
    layout = Layout.of(initial_parameters(folder, "full"))
    want = -layout.flatten({name: p.grad.numpy() for name, p in model.named_parameters()})
    got = delta_of(folder, CONDITIONS)
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
    other = delta_of(folder, ["Keywords: river"] * 3)
    assert np.abs(got - other).max() > 1e-3  # a condition is read


def test_pairs_go_through_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privsyn_flower.training import models

    whole = delta_of(folder, CONDITIONS)
    monkeypatch.setattr(models, "BATCH_TOKENS", 22)
    parts = delta_of(folder, CONDITIONS)
    assert np.abs(parts - whole).max() < 1e-5 * np.abs(whole).max()


def test_both_halves_have_linear_layers_and_the_head_is_none(folder: Path) -> None:
    names = linear_weights(folder)
    assert {name.split(".")[1] for name in names} == {"encoder", "decoder"}
    assert "lm_head.weight" not in names and not any(names.values())


def test_a_trained_model_is_a_folder_that_writes(folder: Path, tmp_path: Path) -> None:
    from privsyn_flower.text.conditional import Seq2SeqLM, open_conditional

    parameters, _ = factors(folder)
    target = export_model(folder, parameters, tmp_path / "model")
    made, before = (
        open_conditional(one, max_tokens=12, device="cpu", progress=False)
        for one in (target, folder)
    )
    assert isinstance(made, Seq2SeqLM)
    asked = ["Keywords: river, stone"] * 3
    said = [one.complete(asked, 2, seeded(1)) for one in (made, before)]
    assert said[0] != said[1]


def pairs(folder: Path, **options: Any) -> Any:
    """An update question about pairs, and the low-rank factors of both halves."""
    parameters, trained = factors(folder)
    local = replace(OPTIONS, **{"trained": trained, **options})
    query, asked = question(folder, parameters, local, indicator=0.0), conditions()
    given = {**query.options, **asked.to_options()}
    return replace(query, options=given, extra={**query.extra, **asked.to_arrays()}), parameters


def test_a_node_answers_with_the_clipped_deltas(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, parameters = pairs(folder)
    check_update(query, node(tmp_path, folder))
    users = {name: USERS[name] for name in ("short", "some", "empty")}
    got = decoded(answer(query, node(tmp_path, folder), users), query)
    monkeypatch.setattr("tests.rigs.conditional_updates.start", lambda _: parameters)
    want = sum(clip_l2(by_hand(folder, query, user), CLIP) for user in ("short", "some"))
    assert np.abs(got - want).max() < 8 / noise(query).scale < 0.05 * np.abs(want).max()


def test_what_an_encoder_decoder_cannot_do_is_refused(tmp_path: Path, folder: Path) -> None:
    """Its encoder and its decoder have the positions to themselves; plain texts it cannot learn."""
    device = node(tmp_path, folder)
    query, _ = pairs(folder, sequence_length=115)  # of 120, and the condition's 10 beside
    assert SOURCE + 115 > 120
    check_update(query, device)
    with pytest.raises(WireError, match="is above the base's 120"):
        check_update(pairs(folder, sequence_length=121)[0], device)
    parameters, trained = factors(folder)
    plain = question(folder, parameters, replace(OPTIONS, trained=trained), indicator=0.0)
    with pytest.raises(WireError, match="reads conditions, and there are none"):
        check_update(plain, device)
    with pytest.raises(ValueError, match="does not measure texts by themselves"):
        Scorer(folder, "cpu").rehearse(12)
    assert updates.update_tokens(query) == 4 * 8 * (115 + SOURCE)
