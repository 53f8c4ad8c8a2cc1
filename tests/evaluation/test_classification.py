"""Fine-tuning a small random RoBERTa on classes: equal cost, seeds, users, accuracy and F1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privsyn_flower.evaluation.classification import (
    Classifier,
    macro_f1,
    scores,
)
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.text.models.pretrained import ModelUnavailableError
from tests.text.conftest import causal_folder, masked_folder

__all__ = ["causal_folder", "masked_folder"]  # pytest finds fixtures by name

LABELS = ["tea", "rivers", "teams"]
TOPICS = {
    "tea": "A short text about tea.",
    "rivers": "jumps over the lazy dog near the river bank.",
    "teams": "a senior engineer who enjoys working with small teams.",
}
TUNING = Tuning(steps=60, batch_size=8, length=24, learning_rate=3e-3, seed=1)


def labelled(seed: int, count: int) -> tuple[list[str], list[str]]:
    """Texts whose class shows in their words, in a random order."""
    labels = np.random.default_rng(seed).choice(LABELS, size=count).tolist()
    return [f"{i} {TOPICS[label]}" for i, label in enumerate(labels)], labels


@pytest.fixture(scope="module")
def model(masked_folder: Path) -> Iterator[Classifier]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Classifier(masked_folder, LABELS, length=24, seed=3)
    torch.set_num_threads(before)


@pytest.mark.slow
def test_it_learns_what_the_words_say(model: Classifier) -> None:
    users = {f"u{u}": model.encode(*labelled(10 + u, 5)) for u in range(6)} | {"empty": []}
    model.reset()
    start = model.user_sums(users)
    model.fine_tune(model.encode(*labelled(0, 60)), replace(TUNING, steps=120))
    end = model.user_sums(users)
    assert end.shape == (7, 3, 3)
    assert end.sum(axis=(1, 2)).tolist() == [5.0] * 6 + [0.0]
    assert np.trace(start.sum(axis=0)) < 0.7 * 30 < 0.95 * 30 <= np.trace(end.sum(axis=0))
    # rows are the true classes
    truth = [example.label for own in users.values() for example in own]
    for table in (start, end):
        assert table.sum(axis=(0, 2)).tolist() == np.bincount(truth, minlength=3).tolist()


@pytest.mark.slow
def test_every_fine_tuning_starts_anew_and_follows_its_seed(model: Classifier) -> None:
    own, other = model.encode(*labelled(0, 30)), model.encode(*labelled(5, 20))
    short = Tuning(3, 4, 24, 1e-3, seed=2)
    first = model.fine_tune(own, short)
    weights = {name: value.clone() for name, value in model.model.state_dict().items()}
    model.fine_tune(other, short)
    assert model.fine_tune(own, short) == first
    assert all(torch.equal(value, weights[n]) for n, value in model.model.state_dict().items())
    assert model.fine_tune(own, Tuning(3, 4, 24, 1e-3, seed=3)) != first
    assert model.model.training is False


@pytest.mark.slow
def test_the_global_generator_is_left_as_it_was(masked_folder: Path) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    one = Classifier(masked_folder, LABELS, length=24, seed=3)
    one.fine_tune(one.encode(*labelled(0, 8)), Tuning(1, 4, 24, 1e-3))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_head_follows_the_seed(masked_folder: Path, model: Classifier) -> None:
    def head(classifier: Classifier) -> torch.Tensor:
        classifier.reset()
        weight: torch.Tensor = classifier.model.classifier.out_proj.weight.detach()
        return weight

    again = Classifier(masked_folder, LABELS, length=24, seed=3)
    other = Classifier(masked_folder, LABELS, length=24, seed=4)
    assert torch.equal(head(again), head(model))
    assert not torch.equal(head(other), head(model))
    assert head(other).shape[0] == len(LABELS)


def test_a_decoder_can_be_the_classifier(causal_folder: Path) -> None:
    """Its last real token is read: padding must not change a prediction."""
    model = Classifier(causal_folder, LABELS, length=24)
    examples = model.encode(*labelled(3, 6))
    alone = np.concatenate([model.user_sums({"u": [one]}) for one in examples])
    together = model.user_sums({str(i): [one] for i, one in enumerate(examples)})
    np.testing.assert_array_equal(alone, together)


def test_texts_of_no_class_and_empty_texts_are_left_out(model: Classifier) -> None:
    found = model.encode(["one", "two", " ", "four"], ["tea", "milk", "tea", "teams"])
    assert [example.label for example in found] == [0, 2]
    assert len(model.encode(["tea " * 200], ["tea"])[0].ids) == 24
    with pytest.raises(ValueError, match="2 texts with 1 labels"):
        model.encode(["one", "two"], ["tea"])


@pytest.mark.parametrize("labels", [[], ["one"], ["one", "two", "one"]])
def test_too_few_classes(masked_folder: Path, labels: list[str]) -> None:
    with pytest.raises(ValueError, match="at least 2 distinct"):
        Classifier(masked_folder, labels, length=8)


def test_a_model_that_is_no_classifier(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such"}')
    with pytest.raises(ModelUnavailableError, match=r"models\.downstream"):
        Classifier(tmp_path, LABELS, length=8)


def test_macro_f1_by_hand() -> None:
    confusion = np.array([[3.0, 1.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    # precision 3/5 and recall 3/4; precision 4/5 and recall 4/6; the third never occurs
    first, second = 2 * 0.6 * 0.75 / 1.35, 2 * 0.8 * (2 / 3) / (0.8 + 2 / 3)
    assert macro_f1(confusion) == pytest.approx((first + second) / 2)
    confusion[0, 2] = 1.0  # a class that is only predicted counts as 0
    lower = 2 * 0.6 * 0.6 / 1.2
    assert macro_f1(confusion) == pytest.approx((lower + second) / 3)
    assert macro_f1(np.zeros((3, 3))) == 0.0
    assert macro_f1(np.stack([confusion, np.eye(3)])).shape == (2,)


def test_macro_f1_as_scikit_learn_has_it() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    truth, guess = rng.integers(4, size=200), rng.integers(4, size=200)
    confusion = np.zeros((4, 4))
    np.add.at(confusion, (truth, guess), 1)
    expected = metrics.f1_score(truth, guess, average="macro")
    assert macro_f1(confusion) == pytest.approx(expected)


def users(right: float, seed: int, count: int = 40) -> np.ndarray:
    """Confusion counts of users with 10 texts of two classes, a share `right` of them right."""
    rng = np.random.default_rng(seed)
    hits = rng.binomial(5, right, size=(count, 2)).astype(float)
    table = np.zeros((count, 2, 2))
    table[:, [0, 1], [0, 1]] = hits
    table[:, [0, 1], [1, 0]] = 5 - hits
    return table


def test_intervals_over_users() -> None:
    methods = {"good": users(0.8, 0), "poor": users(0.55, 1)}
    result = scores(methods, [("good", "poor")], seed=4, resamples=400)
    for measure in ("accuracy", "macro_f1"):
        values, gap = result[measure]["value"], result[measure]["difference"]["good-poor"]
        for name, own in methods.items():
            total = own.sum(axis=0)
            accuracy = np.trace(total) / total.sum()
            assert values[name].value == pytest.approx(accuracy, abs=0.01)
            assert values[name].low < values[name].value < values[name].high
            # 400 answers: the half width of a binomial share is about 2 sqrt(p (1 - p) / 400)
            assert 0.05 < values[name].high - values[name].low < 0.13
        assert 0 < gap.low < gap.value < gap.high
    again = scores(methods, [("good", "poor")], seed=4, resamples=400)
    assert again == result
    with pytest.raises(ValueError, match="every method needs"):
        scores({"a": users(0.5, 0), "b": users(0.5, 0, 3)}, [], seed=0)
