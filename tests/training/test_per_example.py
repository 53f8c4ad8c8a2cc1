"""Gradients of several users at once: those of one by one, and nobody's moved by another's text."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.queries.updates import shard_updates
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.low_rank import initial_parameters, trained_patterns
from privsyn_flower.training.models import CausalLM, LoadedLM, load_model
from privsyn_flower.training.per_example import (
    GROUP_NUMBERS,
    GroupGradients,
    one_plain_step,
    users_together,
)
from tests.conftest import sentences
from tests.rigs.models import (
    factors,
    gpt2,  # noqa: F401
    moved,
    one_thread,  # noqa: F401 - a fixture
)
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

STEP = LocalTraining(
    "sgd", 1.0, 0.0, 0.0, epochs=1, batch_size=3, max_steps=1, sequence_length=12
)  # fmt: skip
USERS = [["a river of stone"], [], sentences(3, 1), ["x", *sentences(1, 2)], sentences(2, 3)]
MOST = 16  # of a condition's tokens


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, causal_folder: Path, gpt2: Path) -> CausalLM:
    return load_model({"llama": causal_folder, "gpt2": gpt2}[request.param], "cpu")


@pytest.fixture
def llama(causal_folder: Path) -> CausalLM:
    return load_model(causal_folder, "cpu")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def arrays(model: CausalLM, kind: str) -> tuple[dict[str, Any], str]:
    """A round's parameters of this kind, and which of them are trained."""
    folder = Path(model._scorer.model.name_or_path)
    if kind == "full":
        return moved(folder), "*"
    if kind == "layers":
        own = initial_parameters(folder, "layers", patterns="*.0.*")
        return own, trained_patterns(folder, "layers", patterns="*.0.*")
    which: Any = kind.partition("-")[2]
    return factors(folder, which), trained_patterns(folder, "lora", factors=which)


def at_once(
    loaded: LoadedLM, users: list[list[str]], told: str | None = None
) -> list[np.ndarray[Any, Any] | None]:
    """Every user's delta by groups; told: what each of their texts is learned from."""
    source = MOST if told is not None else 0
    group = loaded.group(STEP, source)
    assert group is not None
    rows = []
    for texts in users:
        conditions = None if told is None else [told] * len(texts)
        rows.append(loaded.rows(texts, STEP, rng(), conditions, source))
    return list(group.deltas(rows))


@pytest.mark.parametrize("told", [None, "Keywords: stone, river"])
@pytest.mark.parametrize("kind", ["full", "layers", "lora-both", "lora-up"])
def test_a_group_has_the_gradients_of_one_by_one(
    model: CausalLM, kind: str, told: str | None
) -> None:
    parameters, trained = arrays(model, kind)
    with model.load(parameters, trained) as loaded:
        found = at_once(loaded, USERS, told)
        for texts, delta in zip(USERS, found, strict=True):
            alone = loaded.train(texts, STEP, rng(), told and [told] * len(texts), MOST)
            assert (delta is None) == (alone is None) == (not texts)
            if delta is not None and alone is not None:
                assert np.linalg.norm(delta - alone) < 1e-6 * np.linalg.norm(alone)
                assert np.linalg.norm(alone) > 0


def test_a_plain_step_is_minus_the_gradient_bit_for_bit(llama: CausalLM) -> None:
    """Of the mean loss over one text's tokens, by PyTorch alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(llama._scorer.model.name_or_path)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(folder)("a river of stone", return_tensors="pt")
    logits = plain(**ids).logits[0, :-1]
    torch.nn.functional.cross_entropy(logits, ids["input_ids"][0, 1:]).backward()  # type: ignore[no-untyped-call]
    gradients = {name: value.grad.numpy() for name, value in plain.named_parameters()}
    with llama.load(initial_parameters(folder, "full")) as loaded:
        delta = loaded.train(["a river of stone"], STEP, rng())
        assert delta is not None
        assert (delta == -loaded.layout.flatten(gradients)).all()


@pytest.mark.parametrize("kind", ["full", "lora-both"])
@pytest.mark.parametrize("other", [["x" * 99], [], sentences(3, 7), ["short"]])
def test_a_users_text_moves_no_bit_of_another(llama: CausalLM, kind: str, other: list[str]) -> None:
    parameters, trained = arrays(llama, kind)
    with llama.load(parameters, trained) as loaded:
        first = at_once(loaded, [["one text"], *USERS, *USERS])
        second = at_once(loaded, [other, *USERS, *USERS])
    for one, two in zip(first[1:], second[1:], strict=True):
        assert (one is None and two is None) or (one == two).all()  # type: ignore[union-attr]
    mine, theirs = first[0], second[0]
    assert mine is not None and (theirs is None or (mine != theirs).any())


def test_a_gradient_without_numbers_is_that_users_alone(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters, trained = arrays(llama, "full")
    with llama.load(parameters, trained) as loaded:
        whole = at_once(loaded, USERS)
        group = loaded.group(STEP)
        assert group is not None
        padded = group._padded

        def broken(users: Any) -> Any:
            ids, weights = padded(users)
            weights[0] = np.nan
            return ids, weights

        monkeypatch.setattr(group, "_padded", broken)
        found = list(group.deltas(loaded.rows(texts, STEP, rng()) for texts in USERS))
    assert found[0] is not None and np.isnan(found[0]).any()
    for before, after in zip(whole[1:4], found[1:4], strict=True):
        assert (before is None and after is None) or (before == after).all()  # type: ignore[union-attr]
    kept = shard_updates(found[:2], length=len(found[0]), clip_norm=1.0, indicator=0.0)
    assert not kept.any()


def test_who_is_computed_together_is_public() -> None:
    assert one_plain_step(STEP) and users_together(STEP, 12, 1000, "cpu") == 512 // 36
    assert users_together(STEP, 28, 1000, "cuda:0") == 4096 // 84
    assert users_together(STEP, 12, GROUP_NUMBERS // 5, "cpu") == 5  # memory
    assert users_together(replace(STEP, batch_size=64), 12, 1000, "cpu") == 0
    others: list[dict[str, Any]] = [
        {"optimizer": "adamw"}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"max_steps": 2},
    ]  # fmt: skip
    for change in others:
        assert users_together(replace(STEP, **change), 12, 1000, "cpu") == 0


def test_more_than_the_shape_holds_is_refused(llama: CausalLM) -> None:
    parameters, trained = arrays(llama, "lora-up")
    with llama.load(parameters, trained) as loaded:
        group = loaded.group(STEP)
        assert group is not None
        for rows in ([([5] * 13, 1)], [([5, 6], 1)] * 4):
            with pytest.raises(ValueError, match="where users have 3 texts of 12 tokens"):
                list(group.deltas([rows]))


def test_memory_does_not_grow_with_the_users(llama: CausalLM) -> None:
    """Of numpy, whose arrays hold the deltas: at most a group is there at any time."""
    parameters, trained = arrays(llama, "full")

    with llama.load(parameters, trained) as loaded:
        group = loaded.group(STEP)
        assert group is not None
        peak(group, 28)
        few, many = peak(group, 28), peak(group, 280)
    assert many < 1.2 * few + 10_000


def peak(group: GroupGradients, users: int) -> int:
    """Bytes, at most, while so many users' deltas are made."""
    tracemalloc.start()
    for _ in group.deltas([([5, 6, 7], 1)] for _ in range(users)):
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most
