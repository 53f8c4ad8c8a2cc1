"""Preference training with the real TRL and PEFT, checked against log-probabilities of our own."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.adapters import CONFIG, WEIGHTS, AdapterError
from privsyn_flower.text.preference.trainer import CHECKPOINTS, FINISHED, TASK, PreferenceTrainer
from privsyn_flower.text.preference.tuning import EXPAND_ENDING, encode_pairs
from privsyn_flower.text.prompts import HEADING
from privsyn_flower.text.protocols import Trained, Trainer
from tests.rigs.preference import (
    PAIRS,
    generator,  # noqa: F401
    killed_in_step,
    token_logps,
    trainer,
)

from .conftest import SENTENCES, make_tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

GOLDEN = Path(__file__).parent.parent / "golden" / "popri_preference_dataset.json"
Pairs = Sequence[dict[str, str]]


@pytest.fixture(scope="module")
def first(causal_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One step of DPO from the base, to look at and to go on from."""
    work = tmp_path_factory.mktemp("first")
    (epoch,) = trainer(causal_folder).train(PAIRS, start=None, work=work, seed=0)
    return epoch


def logps(
    generator: HuggingFaceGenerator, adapter: Path | None, name: str, pairs: Pairs = PAIRS
) -> np.ndarray:
    """(n,) log-probability of each response with the next heading."""
    responses = ((pair["prompt"], pair[name]) for pair in pairs)
    return np.array([found.sum() for found in token_logps(generator, adapter, responses)])


def log_ratios(generator: HuggingFaceGenerator, adapter: Path) -> tuple[np.ndarray, np.ndarray]:
    """(n,) and (n,): log policy/reference of the chosen and of the rejected responses."""
    chosen, rejected = (
        logps(generator, adapter, name) - logps(generator, None, name)
        for name in ("chosen", "rejected")
    )
    return chosen, rejected


def test_one_step_raises_the_margin_of_its_pairs(
    generator: HuggingFaceGenerator, first: Trained
) -> None:
    chosen, rejected = log_ratios(generator, first.adapter)
    assert (chosen - rejected > 0.01).all()
    config = json.loads((first.adapter / CONFIG).read_text("utf-8"))
    kinds = {name.rpartition(".")[2] for name in config["target_modules"]}
    assert kinds == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    assert first.metrics["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert first.metrics["reward_margin"] == pytest.approx(0, abs=1e-5), "before the first update"


def test_metrics_and_reference_of_a_later_round(
    causal_folder: Path, generator: HuggingFaceGenerator, first: Trained, tmp_path: Path
) -> None:
    """From an adapter, with a rate too small to move: equation 7 of DPO against the base."""
    assert isinstance(trainer(causal_folder), Trainer)
    still = trainer(causal_folder, learning_rate=1e-12, beta=0.7)
    (found,) = still.train(PAIRS, start=first.adapter, work=tmp_path / "dpo", seed=1)
    chosen, rejected = log_ratios(generator, first.adapter)
    x = 0.7 * (chosen - rejected)
    expected = {
        "loss": np.log1p(np.exp(-x)).mean(),
        "reward_accuracy": 1.0,
        "reward_margin": x.mean(),
        "kl": (chosen + rejected).mean() / 2,
    }
    for name, value in expected.items():
        for key in (name, f"{name}_first", f"{name}_last"):
            assert found.metrics[key] == pytest.approx(value, abs=2e-5), key
    assert len(found.metrics) == 12
    smooth = trainer(causal_folder, learning_rate=1e-12, beta=0.7, label_smoothing=0.2)
    (found,) = smooth.train(PAIRS, start=first.adapter, work=tmp_path / "cdpo", seed=1)
    conservative = (0.8 * np.log1p(np.exp(-x)) + 0.2 * np.log1p(np.exp(x))).mean()
    assert found.metrics["loss"] == pytest.approx(conservative, abs=2e-5)
    assert abs(conservative - expected["loss"]) > 1e-3, "the case cannot tell them apart"


def test_the_reference_is_the_base_to_the_last_bit(
    causal_folder: Path, generator: HuggingFaceGenerator, first: Trained, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Computed once, whatever adapter the round starts from and however wide the batches."""
    from privsyn_flower.text.preference import fit as preference_fit

    seen: list[np.ndarray] = []
    real = preference_fit._with_reference

    def spy(*arguments: Any) -> Any:
        dataset = real(*arguments)
        seen.append(np.array([dataset["ref_chosen_logps"], dataset["ref_rejected_logps"]]))
        return dataset

    monkeypatch.setattr(preference_fit, "_with_reference", spy)
    for number, start in enumerate([None, first.adapter]):
        trainer(causal_folder).train(PAIRS, start=start, work=tmp_path / str(number), seed=number)
    assert np.array_equal(seen[0], seen[1])
    own = np.array([logps(generator, None, name) for name in ("chosen", "rejected")])
    assert np.allclose(seen[0], own, atol=1e-4)


def test_accumulated_steps_are_the_steps(
    causal_folder: Path, first: Trained, generator: HuggingFaceGenerator, tmp_path: Path
) -> None:
    """Six pairs in threes, fours (of which only threes divide six) and at once: one step."""
    small = trainer(causal_folder, micro_batch_size=4)
    assert small.tuning.pairs_at_once == 3
    (found,) = small.train(PAIRS, start=None, work=tmp_path, seed=0)
    for ours, theirs in zip(
        log_ratios(generator, found.adapter), log_ratios(generator, first.adapter), strict=True
    ):
        assert np.allclose(ours, theirs, atol=1e-3) and np.abs(ours).max() > 0.01


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({}, [1.0, 0.75, 0.25]),
        ({"schedule": "constant"}, [1.0, 1.0, 1.0]),
        ({"schedule": "constant", "warmup_steps": 2}, [0.0, 0.5, 1.0]),
    ],
)
def test_the_rate_of_every_step(
    causal_folder: Path, first: Trained, tmp_path: Path, changes: Any, rates: list[float]
) -> None:
    """Of a first training; one that goes on from an adapter has no warm-up."""
    from privsyn_flower.text.preference.fit import epoch_metrics

    told: list[list[float]] = []

    def recorded(history: Any, *others: Any) -> Any:
        told.append([entry["learning_rate"] for entry in history if "learning_rate" in entry])
        return epoch_metrics(history, *others)

    training = trainer(causal_folder, batch_size=2, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privsyn_flower.text.preference.fit.epoch_metrics", recorded)
        training.train(PAIRS, start=None, work=tmp_path / "first", seed=0)
        training.train(PAIRS, start=first.adapter, work=tmp_path / "later", seed=0)
    assert told[0] == pytest.approx([1e-2 * rate for rate in rates])
    assert told[1][0] == 1e-2
    assert (told[1] == told[0]) == ("warmup_steps" not in changes)


def test_sft_raises_the_likelihood_of_the_chosen(
    causal_folder: Path, generator: HuggingFaceGenerator, tmp_path: Path
) -> None:
    pairs = [{"prompt": pair["prompt"], "chosen": pair["chosen"]} for pair in PAIRS]
    found = trainer(causal_folder, method="sft", epochs=2).train(
        pairs, start=None, work=tmp_path, seed=0
    )
    before = logps(generator, None, "chosen")
    after = [logps(generator, epoch.adapter, "chosen") for epoch in found]
    assert (after[0] > before).all() and (after[1] > after[0]).all()
    texts = [pair["chosen"] + "\n" + HEADING for pair in pairs]
    tokens = sum(map(len, generator.tokenizer(texts, add_special_tokens=False)["input_ids"]))
    # The loss is on the response alone: prompts would add ten times as many tokens.
    assert found[0].metrics["loss_first"] == pytest.approx(-before.sum() / tokens, abs=2e-5)
    assert set(found[0].metrics) >= {"loss", "token_accuracy"}


def test_nothing_is_touched_told_or_left(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Global generators, output, network, files: only the adapter, a marker and its name."""
    import trl.trainer.base_trainer as base_trainer

    told: list[Any] = []
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda **k: told.append(k))
    monkeypatch.delenv("CI", raising=False)
    steps: list[tuple[str, float, float]] = []
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    capfd.readouterr()
    tuner = trainer(causal_folder, batch_size=2, progress=lambda *event: steps.append(event))
    tuner.train(PAIRS, start=None, work=tmp_path, seed=11)  # no other test leaves this seed's state
    out, err = capfd.readouterr()
    assert out == "" and err == ""
    assert told == []
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1]) and random.getstate() == before[2]
    assert steps == [("preference training", done, 3) for done in (1, 2, 3)]
    files = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert files == sorted([f"epoch-1/{CONFIG}", f"epoch-1/{WEIGHTS}", FINISHED, TASK])


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_bits(
    causal_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in step 5 of 6, in the middle of the second epoch."""
    settings = {"device": "cpu", "learning_rate": 1e-2, "epochs": 2, "batch_size": 2,
                "beta": 0.1, "save_seconds": 0.0}  # fmt: skip
    work = tmp_path / "killed"
    killed_in_step(5, causal_folder, settings, PAIRS, None, work)
    assert [path.name for path in (work / CHECKPOINTS).iterdir()] == ["checkpoint-4"]
    half = work / CHECKPOINTS / "checkpoint-5"  # as a kill in the middle of writing leaves it
    half.mkdir()
    (half / "trainer_state.json").write_text("{}", "utf-8")
    assert not (work / "epoch-2").exists()

    steps: list[float] = []
    tuner = PreferenceTrainer(
        causal_folder, progress=lambda stage, done, total: steps.append(done), **settings
    )
    resumed = tuner.train(PAIRS, start=None, work=work, seed=7)
    assert steps == [5, 6], "it began anew"
    whole = tuner.train(PAIRS, start=None, work=tmp_path / "whole", seed=7)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours.metrics == theirs.metrics
        for name in (CONFIG, WEIGHTS):
            assert (ours.adapter / name).read_bytes() == (theirs.adapter / name).read_bytes()
    assert (whole[0].adapter / WEIGHTS).read_bytes() != (whole[1].adapter / WEIGHTS).read_bytes()
    assert not (work / CHECKPOINTS).exists()

    from privsyn_flower.text.preference import fit as preference_fit

    monkeypatch.setattr(preference_fit, "fit", None)  # a finished training is not repeated
    assert tuner.train(PAIRS, start=None, work=work, seed=7) == resumed
    with pytest.raises(ValueError, match="killed holds a training of other pairs"):
        tuner.train(PAIRS, start=None, work=work, seed=8)
    with pytest.raises(ValueError, match="killed holds a training of other pairs"):
        tuner.train(PAIRS[1:], start=None, work=work, seed=7)


def test_a_start_that_does_not_fit(causal_folder: Path, first: Trained, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"rank 4 and alpha 8.0, but popri.lora-rank = 2"):
        trainer(causal_folder, lora_rank=2).train(
            PAIRS, start=first.adapter, work=tmp_path / "a", seed=0
        )
    with pytest.raises(AdapterError, match="nowhere is no adapter"):
        trainer(causal_folder).train(PAIRS, start=tmp_path / "nowhere", work=tmp_path / "b", seed=0)


@pytest.mark.parametrize(("method", "section"), [("dpo", "popri"), ("sft", "sft")])
def test_a_loss_that_is_not_finite_is_an_error(
    causal_folder: Path, tmp_path: Path, method: str, section: str
) -> None:
    settings = {"learning_rate": 1e30, "batch_size": 2, "method": method, "section": section}
    with pytest.raises(RuntimeError, match=rf"not finite; lower {section}\.learning-rate = 1e\+30"):
        trainer(causal_folder, **settings).train(PAIRS, start=None, work=tmp_path, seed=0)
    assert not (tmp_path / FINISHED).exists()


def test_wrong_settings_and_pairs(causal_folder: Path, tmp_path: Path) -> None:
    for settings, message in [
        ({"method": "ppo"}, "popri.training = 'ppo'"),
        ({"beta": 0}, "popri.beta = 0"),
        ({"label_smoothing": 0.5}, r"popri.label-smoothing = 0.5: must lie in \[0, 0.5\)"),
        ({"epochs": 0}, "popri.epochs = 0"),
        ({"lora_rank": 0}, "popri.lora-rank = 0"),
        ({"schedule": "linear"}, "popri.schedule = 'linear'"),
        ({"warmup_steps": -1}, "popri.warmup-steps = -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            trainer(causal_folder, **settings)
    same = {"prompt": "a", "chosen": "b", "rejected": "b"}
    for pairs, message in [
        ([], "no preference pairs"),
        ([PAIRS[0], same], "pair 1: chosen and rejected are the same text"),
        ([{"prompt": "a", "chosen": "b"}], "pair 0: 'rejected' is missing"),
        ([PAIRS[0] | {"chosen": " "}], "pair 0: 'chosen' is missing or empty"),
    ]:
        with pytest.raises(ValueError, match=message):
            trainer(causal_folder).train(pairs, start=None, work=tmp_path, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_rows_hold_what_the_generator_sees(generator: HuggingFaceGenerator) -> None:
    """The golden pairs of the papers' code: prompts as `complete` has them, texts unchanged."""
    pairs = json.loads(GOLDEN.read_text("utf-8"))["preference_dataset"] + PAIRS
    assert len(pairs) == 10
    tokenizer = generator.tokenizer
    rows = encode_pairs(pairs, tokenizer, context=4096, ending=EXPAND_ENDING)
    for pair, row in zip(pairs, rows, strict=True):
        assert row["prompt_ids"] == tokenizer(pair["prompt"])["input_ids"]
        for name in ("chosen", "rejected"):
            assert tokenizer.decode(row[f"{name}_ids"]) == pair[name] + "\n" + HEADING
            whole = tokenizer(pair["prompt"] + pair[name] + "\n" + HEADING)["input_ids"]
            assert row["prompt_ids"] + row[f"{name}_ids"] == whole


def test_endings(generator: HuggingFaceGenerator) -> None:
    tokenizer = generator.tokenizer
    (bare,) = encode_pairs(PAIRS[:1], tokenizer, context=200, ending="", names=("chosen",))
    assert tokenizer.decode(bare["chosen_ids"]) == PAIRS[0]["chosen"]
    assert set(bare) == {"prompt_ids", "chosen_ids"}
    (ended,) = encode_pairs(PAIRS[:1], tokenizer, context=200, ending=None)
    assert ended["chosen_ids"] == [*bare["chosen_ids"], tokenizer.eos_token_id]
    assert ended["rejected_ids"][-1] == tokenizer.eos_token_id
    literal = [PAIRS[0] | {"chosen": "a </s> b"}]
    (row,) = encode_pairs(literal, tokenizer, context=200, ending="")
    assert tokenizer.eos_token_id not in row["chosen_ids"], "text that spells a special token"


def test_a_chat_is_learned_as_it_is_generated(tmp_path: Path) -> None:
    """Prompts within a user's turn as the generator has them; a response ends the model's turn."""
    pytest.importorskip("gguf")
    from privsyn_flower.text.generators import chat_turn
    from privsyn_flower.text.models.gguf import import_model
    from tests.rigs.gguf_files import write_gguf

    write_gguf(tmp_path / "own.gguf")
    folder = import_model(tmp_path / "own.gguf", tmp_path / "cache", "models.generator")
    chat = HuggingFaceGenerator(folder, max_tokens=8, chat=True, device="cpu", stop=())
    pairs = [{"prompt": "the " * long, "chosen": "a the", "rejected": "a"} for long in (3, 90)]
    turn = chat_turn(chat.tokenizer, folder)
    rows = encode_pairs(pairs, chat.tokenizer, context=64, ending=None, turn=turn)
    assert rows[0]["prompt_ids"] == chat._encode([pairs[0]["prompt"]])[0]
    before, after = turn
    for row in rows:
        assert row["prompt_ids"][: len(before)] == before
        assert row["prompt_ids"][-len(after) :] == after
        assert row["chosen_ids"][-1] == row["rejected_ids"][-1] == chat.tokenizer.eos_token_id
    assert (
        len(rows[1]["prompt_ids"]) + max(len(rows[1][f"{n}_ids"]) for n in ("chosen", "rejected"))
        == 64
    )
    own = PreferenceTrainer(
        folder, ending=None, chat=True, epochs=1, batch_size=2, device="cpu", progress=False
    )
    (found,) = own.train(pairs, start=None, work=tmp_path / "work", seed=0)
    chat.use_adapter(found.adapter)
    assert chat.complete(["the"], 1, np.random.default_rng(0))


def test_a_token_across_the_border_is_not_learnt(generator: HuggingFaceGenerator) -> None:
    """'The' + ' quick' tokenise alike apart; 'Th' + 'e quick' become other tokens in one piece."""
    tokenizer = generator.tokenizer
    pair = {"prompt": "Th", "chosen": "e quick", "rejected": "is"}
    joint = tokenizer("The quick")["input_ids"]
    prompt = tokenizer("Th")["input_ids"]
    assert joint[: len(prompt)] != prompt, "the case needs a merge"
    (row,) = encode_pairs([pair], tokenizer, context=200, ending="")
    assert row["prompt_ids"] == prompt
    assert row["chosen_ids"] == tokenizer("e quick", add_special_tokens=False)["input_ids"]


def test_too_long_pairs_lose_the_beginning(
    generator: HuggingFaceGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = generator.tokenizer
    pair = {"prompt": " ".join(SENTENCES), "chosen": "tea", "rejected": "tea for two"}
    with caplog.at_level("WARNING"):
        (row,) = encode_pairs([pair], tokenizer, context=30, ending="")
    assert "1 of 1 pairs exceed the model's 30 tokens" in caplog.text
    assert len(row["prompt_ids"]) + len(row["rejected_ids"]) == 30
    assert row["prompt_ids"] == tokenizer(pair["prompt"])["input_ids"][-len(row["prompt_ids"]) :]
    long = {"prompt": "tea", "chosen": " ".join(SENTENCES), "rejected": "tea"}
    (row,) = encode_pairs([long], tokenizer, context=30, ending="")
    assert len(row["prompt_ids"]) == 1 and len(row["chosen_ids"]) == 29


def test_a_tokenizer_without_end_of_text(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, masked=False)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="has no end-of-text token"):
        encode_pairs(PAIRS, tokenizer, context=200, ending=None)
