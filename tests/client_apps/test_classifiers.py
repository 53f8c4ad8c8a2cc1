"""A classifier that nodes train: one user's texts move its own vector, odd labels nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps import updates
from privsyn_flower.client_apps.updates import check_update
from privsyn_flower.data import LabelledText
from privsyn_flower.evaluation.public import export_model, save_classifier
from privsyn_flower.privacy.encoding.dense import rotate
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.text.models.pretrained import auto_class, classes_in
from privsyn_flower.training.conditions import Conditions
from privsyn_flower.training.low_rank import head_names, initial_parameters, trained_patterns
from privsyn_flower.training.models import load_model
from tests.rigs.updates import OPTIONS, answer, node, noise, question
from tests.text.conftest import causal_folder, masked_folder  # noqa: F401 - fixtures

LABELS = ("nature", "maths, pure", "neither")
RIVER = LabelledText("a river of stone", "nature")
USERS = {
    "one": [RIVER],
    "many": [LabelledText(f"theorem {k} and its proof", "maths, pure") for k in range(9)],
    "mixed": [LabelledText("the wind", "nature"), LabelledText("unknown", "elsewhere"), "no label"],
    "odd": ["no label", LabelledText("empty", ""), LabelledText("", "nature")],
    "none": [],
}
HOSTILE = ["", "elsewhere", "Nature", "nature ", "0", "LABEL_0", "\x00", "nature" * 9999, "\ud800"]


@pytest.fixture(scope="module")
def base(masked_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    save_classifier(masked_folder, LABELS, folder)
    return folder


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deterministic rounding, so that sums can be compared digit by digit."""
    monkeypatch.setattr(
        updates,
        "encode_dense",
        lambda vector, plan, seed: np.trunc(rotate(vector, seed) * plan.scale).astype(np.int64),
    )


def asked(base: Path, **options: Any) -> Any:
    return question(base, initial_parameters(base, "full"), replace(OPTIONS, **options))


def test_the_list_is_in_the_folder_and_the_head_is_one_for_all(
    base: Path,
    masked_folder: Path,
    tmp_path: Path,
) -> None:
    assert classes_in(base) == LABELS and classes_in(masked_folder) == ()
    assert auto_class(base) == "AutoModelForSequenceClassification"
    again = tmp_path / "again"
    save_classifier(masked_folder, LABELS, again)
    assert (again / "model.safetensors").read_bytes() == (base / "model.safetensors").read_bytes()
    trained = {
        n: a + 1 for n, a in initial_parameters(base, "layers", patterns="*out_proj*").items()
    }
    export_model(base, trained, tmp_path / "model")
    assert classes_in(tmp_path / "model") == LABELS


def test_a_step_is_that_of_transformers_own_loss(base: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    user, rate = USERS["many"][:2], 0.3
    options = replace(OPTIONS, learning_rate=rate, batch_size=2)
    parameters = initial_parameters(base, "full")
    with load_model(base, "cpu").load(parameters) as model:
        delta = model.train(user, options, np.random.default_rng(0))
        found = model.layout.unflatten(delta)
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForSequenceClassification.from_pretrained(base).eval()
    cut = {"truncation": True, "max_length": OPTIONS.sequence_length}
    given = tokenizer([str(text) for text in user], padding=True, return_tensors="pt", **cut)
    plain(**given, labels=torch.tensor([LABELS.index(text.label) for text in user])).loss.backward()
    for name, weight in plain.named_parameters():
        want = np.zeros(weight.shape) if weight.grad is None else -rate * weight.grad.numpy()
        assert np.allclose(found[name], want, atol=1e-5), name


def test_a_user_moves_its_own_vector_by_the_clip_at_most(base: Path, tmp_path: Path) -> None:
    query, device = asked(base), node(tmp_path, base)
    whole = answer(query, device, USERS)
    for name in USERS:
        rest = answer(query, device, {n: own for n, own in USERS.items() if n != name})
        alone = answer(query, device, {name: USERS[name]})
        assert np.array_equal(whole - rest, alone)
        assert int(alone @ alone) <= noise(query).sensitivity ** 2
        assert alone.any() == (name not in ("odd", "none"))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=30), st.sampled_from(HOSTILE) | st.text(max_size=9))))
def test_texts_of_no_class_count_nothing_whatever_they_say(
    base: Path, tmp_path_factory: pytest.TempPathFactory, odd: list[tuple[str, str]]
) -> None:
    extra = [LabelledText(text, label) for text, label in odd if label not in LABELS]
    device = node(tmp_path_factory.mktemp("node"), base)
    query = asked(base, max_steps=1)  # two texts of a user are read: odd ones take no place
    without = answer(query, device, {"one": [RIVER]})
    assert np.array_equal(answer(query, device, {"one": [*extra, RIVER]}), without)


def test_the_head_is_trained_beside_low_rank_factors(base: Path) -> None:
    for factors in ("both", "up"):
        arrays = initial_parameters(base, "lora", rank=4, factors=factors)  # type: ignore[arg-type]
        patterns = trained_patterns(base, "lora", factors=factors)  # type: ignore[arg-type]
        head = head_names(base)
        assert head and all(name.startswith("classifier.") for name in head)
        assert set(head) < set(arrays)
        with load_model(base, "cpu").load(arrays, patterns) as model:
            assert set(head) < set(model.layout.names)
            assert np.any(model.train(USERS["one"], OPTIONS, np.random.default_rng(0)))
            assert model.group(replace(OPTIONS, max_steps=1)) is None


def test_a_decoder_classifies_too(causal_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "decoder"
    save_classifier(causal_folder, LABELS, folder)
    whole = answer(asked(folder), node(tmp_path, folder), USERS)
    assert classes_in(folder) == LABELS and whole.any()


def test_what_is_for_next_tokens_is_refused(base: Path, tmp_path: Path) -> None:
    query = asked(base)
    query = replace(query, options={**query.options, **Conditions(document_type="x").to_options()})
    ends = asked(base, special_tokens="bos-eos")
    for odd, told in ((query, "reads no conditions"), (ends, "for next tokens alone")):
        with pytest.raises(WireError, match=told) as error:
            check_update(odd, node(tmp_path, base))
        assert error.value.code is Refusal.MALFORMED


@pytest.mark.parametrize("labels", [("one",), (), ("one", "one")])
def test_fewer_than_two_classes_are_none(
    masked_folder: Path,
    tmp_path: Path,
    labels: tuple[str, ...],
) -> None:
    with pytest.raises(ValueError, match="at least 2 distinct"):
        save_classifier(masked_folder, labels, tmp_path / "x")
