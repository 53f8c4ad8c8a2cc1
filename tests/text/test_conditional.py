"""Conditional generators: completions against a plain loop, losses against sums by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.text.conditional import ConditionalLM, Seq2SeqLM, open_conditional
from privsyn_flower.text.conditions import Pair, condition, encode_pairs, prompt
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.decoding import choose_tokens
from privsyn_flower.text.models.pretrained import ModelUnavailableError
from tests.rigs.conditional import (
    bart_folder,  # noqa: F401
    torch,
)

from .conftest import SENTENCES

CONDITIONS = [
    condition(["river", "fox", "dog"], "story"),
    "",
    condition(["mean"]),
    condition(["array", "axis", "values", "mean", "missing"], "numpy", "function"),
]
PAIRS = [Pair(one, text) for one, text in zip(CONDITIONS, SENTENCES, strict=False)]


@pytest.fixture(scope="module", params=["causal", "encoder-decoder"])
def generator(
    request: pytest.FixtureRequest, causal_folder: Path, bart_folder: Path
) -> ConditionalLM:
    folder = causal_folder if request.param == "causal" else bart_folder
    found = open_conditional(
        folder, top_p=0.95, repetition_penalty=1.5, max_tokens=18, device="cpu", progress=False
    )
    assert isinstance(found, Seq2SeqLM) == (request.param == "encoder-decoder")
    return found


def next_logits(generator: ConditionalLM, said: str, new: list[int]) -> Any:
    """Without cache, padding or batches."""
    if isinstance(generator, Seq2SeqLM):
        source = torch.tensor([generator.tokenizer(said)["input_ids"]])
        read = torch.tensor([[0, *new]])
        return generator.model(input_ids=source, decoder_input_ids=read, use_cache=False).logits
    ids = generator.tokenizer(prompt(said))["input_ids"]
    return generator.model(input_ids=torch.tensor([ids + new])).logits


def plain_loop(generator: ConditionalLM, said: str, uniforms: np.ndarray) -> str:
    new: list[int] = []
    for uniform in uniforms:
        logits = next_logits(generator, said, new)[:, -1]
        for token in set(new):
            logits[0, token] *= 1.5 if logits[0, token] < 0 else 1 / 1.5
        token = int(
            choose_tokens(logits, torch.tensor([uniform]), top_p=0.95, banned=generator._banned)
        )
        if token in generator._ends:
            break
        new.append(token)
    return generator.text(np.array(new, dtype=np.int64))


def test_an_encoder_decoder_is_not_cut_to_its_decoder(bart_folder: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"models.generator = .*models.conditional"):
        HuggingFaceGenerator(bart_folder, device="cpu", progress=False)
    with pytest.raises(ModelUnavailableError, match=r"models.downstream = .*causal language model"):
        Downstream(bart_folder, length=8)
    assert open_conditional(bart_folder, max_tokens=9, device="cpu", progress=False).model


def test_equals_the_plain_loop(generator: ConditionalLM) -> None:
    found = generator.complete(CONDITIONS, 2, np.random.default_rng(3))
    draws = np.random.default_rng(3).random((len(CONDITIONS), 2, 18), dtype=np.float32)
    with torch.inference_mode():
        expected = [
            [plain_loop(generator, said, u) for u in rows]
            for said, rows in zip(CONDITIONS, draws, strict=True)
        ]
    assert found == expected
    assert len({text for row in found for text in row}) == 8


def test_neither_batches_nor_global_generators_change_a_text(generator: ConditionalLM) -> None:
    many = CONDITIONS * 4
    torch.manual_seed(1)
    whole = generator.complete(many, 2, np.random.default_rng(5))
    state = torch.get_rng_state()
    width, generator.batch_size = generator.batch_size, 2
    try:
        torch.manual_seed(2)
        assert generator.complete(many, 2, np.random.default_rng(5)) == whole
    finally:
        generator.batch_size = width
    torch.manual_seed(1)
    assert torch.get_rng_state().equal(state)
    assert generator.complete(many, 2, np.random.default_rng(6)) != whole


def test_the_condition_is_read(generator: ConditionalLM) -> None:
    texts = generator.complete([CONDITIONS[0], CONDITIONS[3]], 8, np.random.default_rng(0))
    again = generator.complete([CONDITIONS[0], CONDITIONS[0]], 8, np.random.default_rng(0))
    assert texts[0] == again[0]
    assert texts[1] != again[1]
    one = generator.loss([Pair(CONDITIONS[0], SENTENCES[0])])
    assert one != generator.loss([Pair(CONDITIONS[3], SENTENCES[0])])


def test_loss_is_the_mean_over_texts_of_their_tokens(generator: ConditionalLM) -> None:
    """By hand, pair by pair without padding; a condition's tokens count nothing."""
    means = []
    for pair in PAIRS:
        with torch.inference_mode():
            if isinstance(generator, Seq2SeqLM):
                target = generator.tokenizer(pair.text)["input_ids"]  # <s> text </s>
                logits = next_logits(generator, pair.condition, target[1:-1])[0]
                wanted = target[1:]
            else:
                [(ids, leading)] = encode_pairs(generator.tokenizer, [pair], 512)
                logits = generator.model(input_ids=torch.tensor([ids])).logits[0, leading - 1 : -1]
                wanted = ids[leading:]
            chances = torch.log_softmax(logits, -1)
            means.append(-float(chances[range(len(wanted)), wanted].mean()))
    assert generator.loss(PAIRS) == pytest.approx(np.mean(means), rel=1e-5)
    cut = generator.loss(PAIRS[:1], length=3)
    assert cut != pytest.approx(generator.loss(PAIRS[:1]), rel=1e-3)


def test_long_conditions_lose_their_end(generator: ConditionalLM, causal_folder: Path) -> None:
    long = condition([f"word{i}" for i in range(80)])
    generator.complete([long], 1, np.random.default_rng(0))
    rows = generator._encode([long, CONDITIONS[0]])
    assert len(rows[0]) <= min(128, generator._context)
    told = generator.tokenizer.decode(rows[0])
    assert "word0, word1" in told
    if not isinstance(generator, Seq2SeqLM):
        assert told.endswith("\n\n")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"max_source": 0}, "max-source"),
        ({"repetition_penalty": 0.5}, "repetition-penalty"),
        ({"repetition_penalty": float("nan")}, "repetition-penalty"),
        ({"top_p": 0}, "top-p"),
        ({"max_tokens": 9999}, "max-tokens"),
    ],
)
def test_bad_settings_name_their_key(
    causal_folder: Path, settings: dict[str, float], key: str
) -> None:
    with pytest.raises(ValueError, match=key):
        open_conditional(causal_folder, device="cpu", **{"max_tokens": 8, **settings})  # type: ignore[arg-type]


def test_no_pairs_have_no_loss(generator: ConditionalLM) -> None:
    with pytest.raises(ValueError, match="one pair"):
        generator.loss([])


def test_no_conditions_have_no_texts(generator: ConditionalLM) -> None:
    assert generator.complete([], 3, np.random.default_rng(0)) == []


def test_a_missing_model_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"models\.conditional"):
        open_conditional(tmp_path / "nowhere")


def test_a_training_on_public_pairs_teaches_the_condition(
    generator: ConditionalLM, tmp_path: Path
) -> None:
    """The condition says which of two texts it is; a stopped training goes on and ends the same."""
    from privsyn_flower.text import pair_training
    from privsyn_flower.text.pair_training import PairTraining, train_on_pairs

    said = {"fox": "quick brown fox river", "mean": "array axis mean values"}
    pairs = [Pair(condition([word]), text) for word, text in said.items()] * 12
    how = PairTraining(epochs=8, batch_size=4, together=2, learning_rate=1e-2, held_out=0.2,
                       length=60, max_source=40)  # fmt: skip
    state = torch.get_rng_state()
    about = train_on_pairs(
        generator._name, pairs, tmp_path / "whole", how, device="cpu", progress=False
    )
    assert torch.get_rng_state().equal(state)
    assert about["steps"] == 40 and about["held_out"]["pairs"] == 5
    assert about["held_out"]["loss_after"] < about["held_out"]["loss_before"] - 1
    made = open_conditional(tmp_path / "whole", max_tokens=8, device="cpu", progress=False)
    right = [Pair(condition([word]), text) for word, text in said.items()]
    wrong = [Pair(one.condition, other.text) for one, other in zip(right, right[::-1], strict=True)]
    assert made.loss(right) < made.loss(wrong)

    class Killed(RuntimeError):
        pass

    def progress(stage: str, done: float, total: float, note: str = "") -> None:
        if done >= 5:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_training, "SAVE_SECONDS", 0.0)
        with pytest.raises(Killed):
            train_on_pairs(
                generator._name, pairs, tmp_path / "again", how, device="cpu", progress=progress
            )
    assert not (tmp_path / "again").exists()
    again = train_on_pairs(
        generator._name, pairs, tmp_path / "again", how, device="cpu", progress=False
    )
    assert again["steps"] == 40
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "again")]
    assert weights[0] == weights[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "whole"]


def test_a_training_that_cannot_be_is_refused(generator: ConditionalLM, tmp_path: Path) -> None:
    from privsyn_flower.text.pair_training import PairTraining, train_on_pairs

    pairs = [Pair("", "a b c")]
    with pytest.raises(ValueError, match="length = 5000"):
        long = PairTraining(length=5000, held_out=0)
        train_on_pairs(generator._name, pairs, tmp_path / "out", long, device="cpu")
    with pytest.raises(ValueError, match="none is left"):
        train_on_pairs(generator._name, pairs, tmp_path / "out", device="cpu")
    with pytest.raises(FileExistsError):
        train_on_pairs(generator._name, pairs, tmp_path, device="cpu")
    for bad in ({"together": 3}, {"epochs": 0}, {"learning_rate": 0.0}, {"held_out": 1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            PairTraining(**bad)
