"""Local training of a causal LM: the bits of a plain loop, and a base that forgets every user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.text.models import lm_metrics
from privsyn_flower.text.models.lm_metrics import Scorer
from privsyn_flower.training import Layout, LocalTraining
from privsyn_flower.training.layout import Optimizer
from privsyn_flower.training.low_rank import initial_parameters, trained_patterns
from privsyn_flower.training.models import TOKEN_CHARACTERS, CausalLM, load_model
from tests.conftest import sentences
from tests.rigs.models import (  # noqa: F401
    factors,
    folder,
    gpt2,
    moved,
    one_thread,
)
from tests.text.conftest import causal_folder, make_tokenizer  # noqa: F401 - fixtures

TEXTS = ["a river of stone", *sentences(4, 1), "x" * 300, ""]
OPTIONS = LocalTraining(
    "sgd", 0.5, 0.0, 0.0, epochs=2, batch_size=3, max_steps=100, sequence_length=12
)
PROJECTIONS = 2 * 7  # linear layers of the tiny Llama


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def by_hand(
    folder: Path, parameters: dict[str, Any], trained: list[str], options: LocalTraining, seed: int
) -> dict[str, Any]:
    """The change that a plain PyTorch loop makes to `trained`, with transformers alone."""
    import torch
    from torch.func import functional_call
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [tokenizer(text)["input_ids"][: options.sequence_length] for text in TEXTS]
    rows = [row for row in rows if len(row) > 1]
    start = {name: torch.tensor(array).float() for name, array in parameters.items()}
    leaves = {
        name: tensor.clone().requires_grad_(name in trained) for name, tensor in start.items()
    }
    base = {name: value.detach() for name, value in model.named_parameters()}

    def effective() -> dict[str, Any]:
        whole = {name: leaf for name, leaf in leaves.items() if name in base}
        ups = [name for name in leaves if name.endswith(".up")]
        pairs = {name[:-3]: leaves[name] @ leaves[name[:-3] + ".down"] for name in ups}
        return whole | {name: base[name] + product for name, product in pairs.items()}

    to_train = [leaves[name] for name in trained]
    if options.optimizer == "adamw":
        optimizer: Any = torch.optim.AdamW(
            to_train, lr=options.learning_rate, weight_decay=options.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(
            to_train,
            lr=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
    order, steps = np.random.default_rng(seed), 0
    for _ in range(options.epochs):
        shuffled = order.permutation(len(rows))
        for first in range(0, len(rows), options.batch_size):
            if steps == options.max_steps:
                break
            steps += 1
            batch = [rows[i] for i in shuffled[first : first + options.batch_size]]
            width = max(len(row) for row in batch)
            ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
            inputs = {"input_ids": ids, "attention_mask": mask}
            logits = functional_call(model, effective(), (), inputs).logits
            labels = ids.masked_fill(mask == 0, -100)[:, 1:]
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: (leaves[name].double() - start[name]).detach().numpy() for name in trained}


def delta_of(
    model: CausalLM,
    parameters: dict[str, Any],
    options: LocalTraining = OPTIONS,
    texts: Any = TEXTS,
    seed: int = 0,
) -> Any:
    with model.load(parameters, options.trained) as loaded:
        return loaded.train(texts, options, rng(seed))


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.01}),
        ("sgd", {"max_steps": 3}),
        ("adamw", {"learning_rate": 1e-2, "weight_decay": 0.1}),
    ],
)
def test_the_delta_is_that_of_a_plain_loop_bit_for_bit(
    folder: Path, optimizer: Optimizer, changes: dict[str, Any]
) -> None:
    options, parameters = replace(OPTIONS, optimizer=optimizer, **changes), moved(folder)
    delta = delta_of(load_model(folder, "cpu"), parameters, options, seed=5)
    layout = Layout.of(parameters)
    want = by_hand(folder, parameters, sorted(parameters), options, 5)
    assert delta.dtype == np.float64 and np.abs(delta).max() > 1e-3
    assert np.array_equal(delta, layout.flatten(want))


def test_how_much_of_a_user_is_read_is_bounded_by_the_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of three texts, and of each no more than a token's characters times its tokens."""
    read: list[list[str]] = []
    encode = Scorer.encode

    def recorded(self: Scorer, texts: Any, **bounds: int) -> Any:
        read.append(list(texts))
        return encode(self, texts, **bounds)

    monkeypatch.setattr(Scorer, "encode", recorded)
    many = [f"{number} " + "river of stone " * 1000 for number in range(200)]
    options, model = replace(OPTIONS, max_steps=2, epochs=50), load_model(folder, "cpu")
    parameters = moved(folder)
    delta = delta_of(model, parameters, options, many, seed=1)
    assert len(read[0]) == 6 and {len(text) for text in read[0]} == {12 * TOKEN_CHARACTERS}
    numbers = [int(text.split()[0]) for text in read[0]]
    assert len(set(numbers)) == 6 and max(numbers) > 5
    again = delta_of(model, parameters, options, [text[:200] for text in many], seed=1)
    assert np.array_equal(delta, again)  # what is cut off had no part in it
    delta_of(model, parameters, options, many, seed=2)
    assert read[2] != read[0]
    delta_of(model, parameters, replace(options, max_steps=100), many, seed=1)
    assert len(read[3]) == 200


def test_texts_between_bos_and_eos_are_the_servers_own(folder: Path) -> None:
    """Training on the nodes reads a text as the fine-tunings of the benchmark do."""
    model, options = load_model(folder, "cpu"), replace(OPTIONS, special_tokens="bos-eos")
    with model.load(moved(folder)) as loaded:
        rows = [row for row, _ in loaded.rows(TEXTS, options, rng())]
        plain = [row for row, _ in loaded.rows(TEXTS, OPTIONS, rng())]
    server = Downstream(folder, length=12, special_tokens="bos-eos")
    assert rows == server.encode(TEXTS) != plain
    bos, eos = server.tokenizer.bos_token_id, server.tokenizer.eos_token_id
    assert rows[0][0] == bos and rows[0][-1] == eos and max(map(len, rows)) == 12


def test_chosen_layers_alone_are_trained(folder: Path) -> None:
    patterns = "model.layers.1.mlp.*,*norm.weight"
    start = initial_parameters(folder, "layers", patterns=patterns)
    names = sorted(start)
    assert len(names) == 3 + 5 and "model.norm.weight" in names
    options = replace(OPTIONS, trained=trained_patterns(folder, "layers", patterns=patterns))
    delta = delta_of(load_model(folder, "cpu"), start, options)
    layout = Layout.of(start)
    assert np.array_equal(delta, layout.flatten(by_hand(folder, start, names, options, 0)))
    assert all(part.any() for part in layout.unflatten(delta).values())


@pytest.mark.parametrize("which", ["both", "up"])
@pytest.mark.parametrize("base", ["folder", "gpt2"])
def test_a_low_rank_delta_changes_the_factors_alone(
    base: str, which: Any, request: pytest.FixtureRequest
) -> None:
    """The same as adding the product to the weight, up to the order of sums in float32."""
    folder: Path = request.getfixturevalue(base)
    start = factors(folder, which)
    trained = trained_patterns(folder, "lora", factors=which)
    options = replace(OPTIONS, learning_rate=0.1, trained=trained)
    layout = Layout.of(start, trained)
    linear = PROJECTIONS if base == "folder" else 4
    assert len(start) == 2 * linear and len(layout.names) == len(start) // (1 + (which == "up"))
    model = load_model(folder, "cpu")
    before = {name: value.clone() for name, value in model._named.items()}
    with model.load(start, trained) as loaded:
        delta = loaded.train(TEXTS, options, rng())
        assert all(bool((model._named[name] == value).all()) for name, value in before.items())
        again = loaded.train(TEXTS, options, rng())
    assert delta is not None and again is not None and np.array_equal(delta, again)
    want = layout.flatten(by_hand(folder, start, list(layout.names), options, 0))
    assert np.abs(delta - want).max() < 1e-5 < 1e-2 < np.abs(want).max()


def test_fixed_factors_are_on_the_inputs_side(folder: Path, gpt2: Path) -> None:
    """FFA-LoRA: the random factor meets the inputs and stays; the other starts from zero."""
    assert trained_patterns(folder, "lora", factors="up") == "*.up"
    assert trained_patterns(gpt2, "lora", factors="up") == "*.down"
    for base, zeros in ((folder, ".up"), (gpt2, ".down")):
        start = initial_parameters(base, "lora", rank=2, factors="up", seed=1)
        for name, array in start.items():
            assert array.any() != name.endswith(zeros)
            assert array.dtype == (np.float32 if name.endswith(zeros) else np.float16)
    both = initial_parameters(folder, "lora", rank=2, factors="both", seed=1)
    assert {array.dtype for array in both.values()} == {np.dtype(np.float32)}
    name = "model.layers.0.mlp.down_proj.weight.down"
    assert both[name].shape == (2, 64) and 0.08 < both[name].std() < 0.17  # 1 / sqrt(64) = 0.125
    other = initial_parameters(folder, "lora", rank=2, factors="both", seed=2)
    assert not np.array_equal(both[name], other[name])


def test_initial_parameters_are_the_bases_own(folder: Path) -> None:
    from safetensors.numpy import load_file

    start = initial_parameters(folder, "full")
    saved = load_file(folder / "model.safetensors")
    assert all(np.array_equal(start[name], saved[name]) for name in saved)
    attention = initial_parameters(folder, "lora", rank=2, patterns="*self_attn*")
    assert len(attention) == 2 * 2 * 4
    with pytest.raises(ValueError, match=r"training\.layers = 'transformer\.\*' matches no"):
        initial_parameters(folder, "layers", patterns="transformer.*")
    with pytest.raises(ValueError, match=r"training\.lora-rank = 17 must be from 1 to 16"):
        initial_parameters(folder, "lora", rank=17)


def test_the_base_is_exactly_what_it_was(folder: Path) -> None:
    import torch

    model = load_model(folder, "cpu")
    before = {name: value.clone() for name, value in model._named.items()}
    state = torch.get_rng_state()
    for parameters, trained in ((moved(folder), "*"), (factors(folder), "*.up")):
        with pytest.raises(RuntimeError, match="stop"), model.load(parameters, trained) as loaded:
            loaded.train(TEXTS, replace(OPTIONS, trained=trained), rng())
            raise RuntimeError("stop")
        for name, value in model._named.items():
            assert torch.equal(value, before[name])
            assert not value.requires_grad and value.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    hooks = sum(len(module._forward_hooks) for module in model._model.modules())
    assert hooks == 0


def test_dropout_draws_nothing(gpt2: Path) -> None:
    import torch

    model, parameters, state = load_model(gpt2, "cpu"), moved(gpt2), torch.get_rng_state()
    first = delta_of(model, parameters)
    torch.manual_seed(99)
    assert np.array_equal(first, delta_of(model, parameters))
    torch.set_rng_state(state)


def test_nobody_sees_who_was_trained_before(folder: Path) -> None:
    """The same bits alone, after others, and after one whose training failed half-way."""
    model, parameters = load_model(folder, "cpu"), moved(folder)
    alone = delta_of(model, parameters)
    for options in (OPTIONS, replace(OPTIONS, optimizer="adamw", learning_rate=1e-3)):
        alone = delta_of(model, parameters, options)
        with model.load(parameters) as loaded:
            loaded.train(sentences(30, 8), replace(options, learning_rate=1e3), rng(3))
            with pytest.raises(IndexError):
                loaded._fit(
                    [([1, 2, 3], 1), ([10**6, 5], 1)], replace(options, batch_size=1), rng(1)
                )
            after = loaded.train(TEXTS, options, rng())
        assert np.array_equal(alone, after)


def test_the_order_comes_from_the_generator(folder: Path) -> None:
    model, parameters = load_model(folder, "cpu"), moved(folder)
    first, same, other = (delta_of(model, parameters, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, same) and not np.array_equal(first, other)


def test_large_batches_go_through_in_parts(folder: Path, monkeypatch: Any) -> None:
    """Memory is bounded; the step is the same but for the order of sums."""
    from privsyn_flower.training import models

    model, parameters = load_model(folder, "cpu"), moved(folder)
    options = replace(OPTIONS, epochs=1, batch_size=100)
    whole = delta_of(model, parameters, options)
    calls = []
    real = lm_metrics.causal_loss
    monkeypatch.setattr(models, "BATCH_TOKENS", 24)
    monkeypatch.setattr(
        lm_metrics,
        "causal_loss",
        lambda m, ids, *more: calls.append(ids.shape) or real(m, ids, *more),
    )
    parts = delta_of(model, parameters, options)
    assert len(calls) == 3 and max(rows * width for rows, width in calls) <= 24
    assert np.abs(parts - whole).max() < 1e-6 < 1e-3 < np.abs(whole).max()


def test_without_text_there_is_no_delta(folder: Path) -> None:
    model, parameters = load_model(folder, "cpu"), moved(folder)
    assert delta_of(model, parameters, texts=[]) is None
    assert delta_of(model, parameters, texts=["", ""]) is None


def test_one_copy_of_the_weights_serves_training_and_evaluation(folder: Path) -> None:
    model = load_model(folder, "cpu")
    assert load_model(folder, "cpu") is model
    assert lm_metrics.load_scorer(folder, "cpu").model is model._model


def test_a_rehearsal_is_one_step_on_made_up_tokens_once(folder: Path, monkeypatch: Any) -> None:

    model, parameters, seen = CausalLM(lm_metrics.load_scorer(folder, "cpu")), moved(folder), []
    real = lm_metrics.causal_loss

    def watched(lm: Any, ids: Any, *more: Any) -> Any:
        seen.append(ids)
        return real(lm, ids, *more)

    monkeypatch.setattr(lm_metrics, "causal_loss", watched)
    options = replace(OPTIONS, batch_size=1000, epochs=50, sequence_length=64)
    alone = delta_of(model, parameters)
    seen.clear()
    for _ in range(2):
        with model.load(parameters) as loaded:
            loaded.rehearse(options)
            after = loaded.train(TEXTS, OPTIONS, rng())
            rehearsed, *_ = seen
    assert rehearsed.shape == (lm_metrics.BATCH_TOKENS // 64, 64) and not rehearsed.any()
    assert len([ids for ids in seen if ids.shape == rehearsed.shape]) == 1
    assert np.array_equal(after, alone)


def test_factors_of_what_is_no_linear_layer_are_refused(folder: Path) -> None:
    name = "model.embed_tokens.weight"
    rows = initial_parameters(folder, "full")[name].shape[0]
    pair = {f"{name}.up": np.ones((rows, 1), np.float32), f"{name}.down": np.ones((1, 32))}
    with pytest.raises(ValueError, match="takes no factors"), load_model(folder, "cpu").load(pair):
        pytest.fail("never inside")


# Pairs -------------------------------------------------------------------------------------------

CONDITIONS = ["Keywords: river, stone", "", *(f"Keywords: {i}, lemma" for i in range(5))]


def pair_options(batch_size: int = len(TEXTS), **values: Any) -> LocalTraining:
    return replace(OPTIONS, epochs=1, batch_size=batch_size, learning_rate=1.0, **values)


def conditioned(model: CausalLM, parameters: dict[str, Any], conditions: Any, **values: Any) -> Any:
    options = pair_options(**values)
    with model.load(parameters) as loaded:
        return loaded.train(TEXTS, options, rng(), conditions, 9)


def test_one_step_of_rate_one_is_minus_the_gradient_of_the_pair_loss(folder: Path) -> None:
    """As a loop by hand has it: prompt, text and its end, with a loss on the last two alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parameters = moved(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lm.load_state_dict({name: torch.tensor(a) for name, a in parameters.items()}, strict=False)
    losses, count = [], 0
    for text, condition in zip(TEXTS, CONDITIONS, strict=True):
        blank = tokenizer("\n\n", add_special_tokens=False)["input_ids"]
        before = tokenizer((condition or "Document:") + "\n\n")["input_ids"]
        if len(before) > 9:
            before = before[: 9 - len(blank)] + blank
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        if not own:
            continue
        own = [*own, tokenizer.eos_token_id][: OPTIONS.sequence_length]
        logits = lm(torch.tensor([before + own])).logits[0]
        said = logits[len(before) - 1 : -1].log_softmax(-1)
        losses.append(-said[range(len(own)), own].sum())
        count += len(own)
    (sum(losses) / count).backward()
    layout = Layout.of(parameters)
    want = -layout.flatten({name: p.grad.numpy() for name, p in lm.named_parameters()})
    got = conditioned(load_model(folder, "cpu"), parameters, CONDITIONS)
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def test_a_condition_is_read_and_has_no_loss(folder: Path, monkeypatch: Any) -> None:
    """Other words in it change what is predicted after them, and are themselves not predicted."""

    model, parameters, seen = load_model(folder, "cpu"), moved(folder), []
    real = lm_metrics.causal_loss

    def watched(lm: Any, ids: Any, mask: Any, leading: Any) -> Any:
        seen.append((ids, mask, leading))
        return real(lm, ids, mask, leading)

    monkeypatch.setattr(lm_metrics, "causal_loss", watched)
    first = conditioned(model, parameters, CONDITIONS)
    other = conditioned(model, parameters, [f"Keywords: tea {i}" for i in range(len(TEXTS))])
    assert np.abs(first - other).max() > 1e-3
    (ids, mask, leading), *_ = seen
    changed = ids.clone()
    for row, count in enumerate(leading):  # labels alone: the model reads the same ids
        changed[row, 1:count] = 7
    from privsyn_flower.text.models.batches import causal_labels

    assert (causal_labels(ids, mask, leading) == causal_labels(changed, mask, leading)).all()
    assert not (causal_labels(ids, mask) == causal_labels(changed, mask)).all()


def test_pairs_go_through_in_parts_and_are_bounded(folder: Path, monkeypatch: Any) -> None:
    from privsyn_flower.training import models

    model, parameters = load_model(folder, "cpu"), moved(folder)
    whole = conditioned(model, parameters, CONDITIONS)
    monkeypatch.setattr(models, "BATCH_TOKENS", 24)
    parts = conditioned(model, parameters, CONDITIONS)
    assert np.abs(parts - whole).max() < 1e-5 < 1e-3 < np.abs(whole).max()
    widths = []
    real = lm_metrics.pad_rows
    monkeypatch.setattr(
        lm_metrics,
        "pad_rows",
        lambda rows, *more: widths.extend(map(len, rows)) or real(rows, *more),
    )
    long = ["Keywords: " + "lemma, " * 10_000] * len(TEXTS)
    assert conditioned(model, parameters, long, max_steps=1, batch_size=3) is not None
    assert len(widths) <= 3 and max(widths) == 9 + OPTIONS.sequence_length
    with model.load(parameters) as loaded:
        assert loaded.train(["", ""], OPTIONS, rng(), ["Keywords: a", ""], 9) is None


@pytest.mark.parametrize("batch", [1, 3])
def test_the_length_of_a_condition_costs_no_time(
    folder: Path, monkeypatch: Any, batch: int
) -> None:
    """A server chooses the words of every topic: what goes through the model is as wide for all."""
    shapes: list[Any] = []
    values: list[Any] = []
    real = lm_metrics.pad_rows

    def watched(*args: Any) -> Any:
        ids, mask = real(*args)
        shapes.append((ids.shape, int(mask.sum())))
        return ids, mask

    monkeypatch.setattr(lm_metrics, "pad_rows", watched)
    with load_model(folder, "cpu").load(initial_parameters(folder, "full")) as loaded:
        for told in ("a", "river stone theorem lemma proof"):
            shapes.append(told)
            options = pair_options(batch, max_steps=2, optimizer="adamw")
            values.append(loaded.train(TEXTS[:4], options, rng(), [told] * 4, 16))
    at = shapes.index("river stone theorem lemma proof")
    short, long = shapes[1:at], shapes[at + 1 :]
    assert [shape for shape, _ in short] == [shape for shape, _ in long]
    assert sum(tokens for _, tokens in short) < sum(tokens for _, tokens in long)
    assert (values[0] != values[1]).any()
