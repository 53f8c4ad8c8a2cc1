"""A training in parts is the whole one: micro-batches, interruptions, adapters, the best epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privsyn_flower.evaluation import fitting
from privsyn_flower.evaluation.classification import Classifier
from privsyn_flower.evaluation.downstream import TOGETHER, Adapter, Downstream
from privsyn_flower.evaluation.rows import Work, rows_digest
from privsyn_flower.evaluation.tuning import Plateau, Tuning, batches
from privsyn_flower.text.models.batches import causal_loss, pad_rows
from tests.rigs.fitting import WORDS, texts
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.text.conftest import causal_folder, masked_folder

__all__ = ["causal_folder", "masked_folder"]  # pytest finds fixtures by name

TUNING = Tuning(7, 6, 12, 3e-3, seed=4)
WAYS = {
    "tokens": {},
    "texts": {"texts": True},
    "epochs": {"epochs": 2, "schedule": "constant", "warm_up": 0.0, "clip": 0.0},
    "cosine": {"schedule": "cosine", "weight_decay": 0.1, "clip": 0.1},
}


@pytest.fixture(scope="module")
def model(causal_folder: Path) -> Downstream:
    return Downstream(causal_folder, length=16)


@pytest.fixture(scope="module")
def classifier(masked_folder: Path) -> Classifier:
    return Classifier(masked_folder, ["a", "b"], length=16, seed=3)  # its dropout is 0.1


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.model.named_parameters()}


def agree(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], **close: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **(close or {"rtol": 0, "atol": 0}))


@pytest.mark.slow
def test_the_default_is_a_plain_loop_to_the_last_bit(model: Downstream) -> None:
    """What every figure of docs/results.md rests on, written out."""
    rows, steps = model.encode(texts()), 12
    tuning = Tuning(steps, 6, 12, 3e-3, seed=4)
    found = model.fine_tune(rows, tuning), weights(model)
    model.reset()
    net = model.model.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    rise, told = max(1.0, 0.1 * steps), []
    for step, batch in enumerate(batches(rows.lengths, tuning)):
        factor = min((step + 1) / rise, max(0.0, (steps - step) / max(1.0, steps - rise)))
        optimizer.param_groups[0]["lr"] = 3e-3 * factor
        own = [rows[r][:k] for r, k in zip(batch.rows.tolist(), batch.tokens.tolist(), strict=True)]
        assert len(own) <= TOGETHER  # else it goes in parts
        loss = causal_loss(net, *pad_rows(sorted(own, key=len), model._pad))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told.append(loss.item())
    net.eval().requires_grad_(False)
    assert found[0] == pytest.approx(np.mean(told), rel=1e-14)
    agree(weights(model), found[1])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_micro_batches_add_up_to_the_batch(
    model: Downstream, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, tuning = model.encode(texts()), replace(TUNING, **WAYS[way])
    whole = model.fine_tune(rows, tuning)
    expected = weights(model)
    widths = []
    real = model.model.forward

    def seen(*args: Any, **inputs: Any) -> Any:
        widths.append(len(inputs["input_ids"]))
        return real(*args, **inputs)

    monkeypatch.setattr(model.model, "forward", seen)
    parts = model.fine_tune(rows, replace(tuning, micro_batch=2))
    sizes = [len(batch.rows) for batch in batches(rows.lengths, tuning)]
    assert max(widths) == 2 and len(widths) == sum(-(-size // 2) for size in sizes)
    assert parts == pytest.approx(whole, rel=1e-5)
    # AdamW divides by the gradient's size: what rounds to 1e-9 there may be 1e-5 in a weight.
    agree(weights(model), expected, rtol=1e-5, atol=3e-5)


@pytest.mark.slow
def test_micro_batches_of_classes(classifier: Classifier) -> None:
    examples = classifier.encode(texts(), ["a", "b"] * 10)
    for module in classifier.model.modules():
        if isinstance(module, torch.nn.Dropout):  # drawn anew for every part
            module.p = 0.0
    tuning = Tuning(0, 8, 16, 1e-3, epochs=2)
    whole = classifier.fine_tune(examples, tuning)
    expected = weights(classifier)
    assert classifier.fine_tune(examples, replace(tuning, micro_batch=3)) == pytest.approx(
        whole, rel=1e-5
    )
    agree(weights(classifier), expected, rtol=1e-5, atol=3e-5)
    for module in classifier.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1


class Killed(Exception):
    """As a kill would end a training: between two steps."""


def kill_at(step: int) -> Any:
    def progress(stage: str, done: float, total: float, note: str = "") -> None:
        if done == step:
            raise Killed

    return progress


def interrupted(model: Any, rows: Any, tuning: Tuning, work: Path, **more: Any) -> float:
    """A training that is killed twice; the second goes on from the first's checkpoint."""
    for step in (3, 5):
        with pytest.raises(Killed):
            model.fine_tune(rows, tuning, kill_at(step), work=work, **more)
        (work / "checkpoint-99").mkdir()  # a kill in the middle of the next one
    told: list[float] = []
    loss: float = model.fine_tune(
        rows, tuning, lambda _stage, done, _total, note="": told.append(done), work=work, **more
    )
    assert told[0] > 3 and told[-1] == tuning.steps_of(len(rows))
    return loss


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tokens", "epochs"])
def test_a_resumed_training_is_the_uninterrupted_one(
    model: Downstream, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    rows, tuning = model.encode(texts()), replace(TUNING, **WAYS[way], micro_batch=4)
    expected = model.fine_tune(rows, tuning), weights(model)
    assert interrupted(model, rows, tuning, tmp_path) == pytest.approx(expected[0], rel=1e-12)
    agree(weights(model), expected[1])


@pytest.mark.slow
def test_dropout_goes_on_where_it_was(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    examples = classifier.encode(texts(), ["a", "b"] * 10)
    tuning = Tuning(6, 4, 16, 1e-3)
    expected = classifier.fine_tune(examples, tuning), weights(classifier)
    other = classifier.fine_tune(examples, replace(tuning, seed=1))
    assert other != expected[0]
    assert interrupted(classifier, examples, tuning, tmp_path) == pytest.approx(expected[0], 1e-12)
    agree(weights(classifier), expected[1])


@pytest.mark.slow
def test_the_best_epoch_is_kept_and_outlives_a_kill(
    model: Downstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    rows, choice = model.encode(texts()), model.encode(texts(9, 4))
    tuning = Tuning(0, 10, 16, 3e-3, epochs=5)  # 2 steps each
    ends = []

    def scores(found: list[float]) -> Any:
        given = iter(found)

        def accuracy(_: Any) -> float:
            ends.append(weights(model))
            return next(given)

        return accuracy

    with monkeypatch.context() as patch:
        patch.setattr(model, "accuracy", scores([0.1, 0.4, 0.4, 0.3, 0.2]))
        model.fine_tune(rows, tuning, choice=choice)
    assert len(ends) == 5
    agree(weights(model), ends[1])  # the first of the highest
    with monkeypatch.context() as patch:  # the choice is made before the kill
        patch.setattr(model, "accuracy", scores([0.1, 0.4, 0.4, 0.3, 0.2]))
        interrupted(model, rows, tuning, tmp_path, choice=choice)
    agree(weights(model), ends[1])


@pytest.mark.slow
def test_an_adapter_starts_at_the_base_and_leaves_it(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    model = Downstream(causal_folder, length=16, adapter=Adapter(rank=2, alpha=4.0))
    rows, held_out = model.encode(texts()), {"u": model.encode(texts(5, 4))}
    base, start = weights(model), model.user_sums(held_out)
    tuning = replace(TUNING, learning_rate=2e-2)
    first = model.fine_tune(rows, replace(tuning, steps=1))
    whole = Downstream(causal_folder, length=16)
    assert first == pytest.approx(whole.fine_tune(rows, replace(tuning, steps=1)), rel=1e-6)
    loss = model.fine_tune(rows, tuning)
    assert loss < first
    trained = weights(model)
    shapes = {tuple(value.shape) for name, value in trained.items() if "lora_A" in name}
    assert shapes and {shape[0] for shape in shapes} == {2}
    plain = {name.replace("base_model.model.", "").replace(".base_layer", ""): value
             for name, value in trained.items() if "lora_" not in name}  # fmt: skip
    agree(plain, base)
    ends = model.user_sums(held_out)
    assert not np.array_equal(ends, start)
    assert interrupted(model, rows, tuning, tmp_path) == pytest.approx(loss, rel=1e-12)
    agree(weights(model), trained)
    model.reset()
    np.testing.assert_array_equal(model.user_sums(held_out), start)


@pytest.mark.slow
def test_a_base_in_bfloat16_under_an_adapter(causal_folder: Path) -> None:
    adapter = Adapter(rank=2, alpha=4.0)
    model = Downstream(causal_folder, length=16, adapter=adapter, base_dtype="bfloat16")
    rows = model.encode(texts())
    start = model.loss(rows)
    model.fine_tune(rows, replace(TUNING, learning_rate=2e-2, precision="bfloat16"))
    kinds = {(n.split(".")[-3].startswith("lora"), v.dtype) for n, v in weights(model).items()}
    assert (True, torch.float32) in kinds and (True, torch.bfloat16) not in kinds
    assert (False, torch.bfloat16) in kinds and (False, torch.float32) not in kinds
    assert model.loss(rows) < start


@pytest.mark.slow
def test_bfloat16_is_of_the_products_and_ends_with_the_training(model: Downstream) -> None:
    rows, held_out = model.encode(texts()), {"u": model.encode(texts(5, 4))}
    model.reset()
    start = model.user_sums(held_out)
    exact = model.fine_tune(rows, TUNING)
    rough = model.fine_tune(rows, replace(TUNING, precision="bfloat16"))
    assert rough != exact and rough == pytest.approx(exact, rel=2e-2)
    assert {value.dtype for value in weights(model).values()} == {torch.float32}
    model.reset()
    np.testing.assert_array_equal(model.user_sums(held_out), start)
    assert model.fine_tune(rows, TUNING) == exact


@pytest.mark.slow
def test_the_gradient_is_cut_where_the_key_says(model: Downstream) -> None:
    """AdamW does not see a gradient's scale, but for epsilon and changes between steps."""
    rows = model.encode(texts())
    losses = {clip: model.fine_tune(rows, replace(TUNING, clip=clip)) for clip in (0.0, 1e9, 1e-6)}
    assert losses[0.0] == losses[1e9] != losses[1e-6]


def test_texts_between_bos_and_eos(tmp_path: Path, causal_folder: Path) -> None:
    """As the papers' code: a text that is cut has no end."""
    plain = Downstream(causal_folder, length=8)
    both = Downstream(causal_folder, length=8, special_tokens="bos-eos")
    bos, eos = plain.tokenizer.bos_token_id, plain.tokenizer.eos_token_id
    bare = plain.tokenizer(["tea", WORDS[0] * 30], add_special_tokens=False)["input_ids"]
    short, long = both.encode(["tea", WORDS[0] * 30])
    assert short == [bos, *bare[0], eos] and long == [bos, *bare[1][:7]]
    assert plain.encode(["tea"])[0] == [bos, *bare[0]]
    assert len(both.encode([""])) == 0
    both.tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"evaluation\.special-tokens = 'bos-eos'"):
        both.encode(["tea"])


def test_finished_work_is_not_done_again(tmp_path: Path) -> None:
    done: list[Path | None] = []

    def make(folder: Path | None) -> float:
        done.append(folder)
        return 0.1 + 0.2

    work = Work(tmp_path / "work")
    assert work.once("a", [1], make) == work.once("a", [1], make) == 0.1 + 0.2
    assert len(done) == 1 and done[0] is not None and not done[0].exists()
    work.once("a", [2], make)
    work.once("b", [2], make)
    assert len(done) == 3
    assert Work().once("a", [1], make) == 0.1 + 0.2 and done[-1] is None
    assert (tmp_path / "work").stat().st_mode & 0o777 == 0o700
    work.end()
    assert not (tmp_path / "work").exists()
    assert rows_digest([[1, 2], [3]]) != rows_digest([[1], [2, 3]])


@pytest.mark.slow
def test_two_processes_are_one(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has half of the micro-batches; a last batch of one text leaves one without any."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = Downstream(causal_folder, length=16)
    rows = alone.encode(texts(count=13))
    tuning = Tuning(0, 4, 16, 3e-3, epochs=2, micro_batch=2)
    expected = alone.fine_tune(rows, tuning)
    shared = Downstream(causal_folder, length=16, processes=2)
    told: list[float] = []
    loss = shared.fine_tune(
        rows, tuning, lambda _stage, done, _total, note="": told.append(done), work=tmp_path / "w"
    )
    assert loss == pytest.approx(expected, rel=1e-5)
    agree(weights(shared), weights(alone), rtol=1e-5, atol=3e-5)
    assert told == list(range(1, 9))
    assert (tmp_path / "w" / "rows.npz").stat().st_mode & 0o777 == 0o600


def test_a_training_ends_when_the_loss_on_other_text_no_longer_falls(
    model: Downstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the weights of the lowest loss, resumed or not."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    rows, choice = model.encode(texts()), model.encode(texts(9, 4))
    tuning, seen = Tuning(40, 6, 12, 3e-3, schedule="constant"), []

    def losses() -> Any:
        found = iter([5.0, 4.0, 3.0, 3.5, 3.0, 2.0])

        def loss(_: Any) -> float:
            seen.append(weights(model))
            return next(found)

        return loss

    plateau = Plateau(every=2, patience=4)
    with monkeypatch.context() as patch:
        patch.setattr(model, "loss", losses())
        model.fine_tune(rows, tuning, choice=choice, plateau=plateau)
    assert plateau.losses == {0: 5.0, 2: 4.0, 4: 3.0, 6: 3.5, 8: 3.0}
    agree(weights(model), seen[2])
    resumed = Plateau(every=2, patience=4)
    with monkeypatch.context() as patch:
        patch.setattr(model, "loss", losses())
        with pytest.raises(Killed):
            model.fine_tune(
                rows, tuning, kill_at(6), work=tmp_path, choice=choice, plateau=Plateau(2, 4)
            )
    with monkeypatch.context() as patch:
        patch.setattr(model, "loss", lambda _, given=iter([3.5, 3.0]): next(given))
        model.fine_tune(rows, tuning, work=tmp_path, choice=choice, plateau=resumed)
    assert resumed == plateau
    agree(weights(model), seen[2])
