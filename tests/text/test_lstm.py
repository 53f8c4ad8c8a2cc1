"""The keyboard's LSTM: its size, its cell, and that everything which takes a causal LM takes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import RunConfig
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.text.models.lm_metrics import Scorer
from privsyn_flower.text.models.parameters import base_shapes
from privsyn_flower.text.models.pretrained import load_model, load_tokenizer
from privsyn_flower.training.initial import initial_parameters
from privsyn_flower.training.models import CausalLM
from privsyn_flower.training.options import LocalTraining
from tests.text.conftest import SENTENCES

torch = pytest.importorskip("torch")
from privsyn_flower.text.models import lstm  # noqa: E402 - it imports torch

TINY: dict[str, Any] = {"words": 60, "hidden": 12, "embedding": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lstm.make_lstm(tmp_path_factory.mktemp("lstm"), SENTENCES, steps=40, **TINY)


def size(words: int, **options: Any) -> int:
    with torch.device("meta"):
        model = lstm.LstmForCausalLM(lstm.LstmConfig(vocab_size=words, **options))
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_papers_sizes() -> None:
    # Hard et al. 2018, section 3: 1.4 million with 10,000 words and one matrix, most of it in it.
    one = size(10_000, tie_word_embeddings=True)
    assert round(one / 1e6, 1) == 1.4
    assert 10_000 * 96 / one > 2 / 3
    # Gboard paper, section 4: about 6 million with 30,000 words.
    assert round(size(30_000) / 1e6) == 6
    assert size(30_000) == 2 * 30_000 * 96 + 30_000 + 3 * 670 * (2 * 96 + 1) + 670 * 96


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_the_cell_is_the_textbooks(coupled: bool) -> None:
    """Against torch's LSTM with a projection, whose input gate is set to one minus the other."""
    config = lstm.LstmConfig(vocab_size=9, hidden_size=5, embedding_size=4, coupled=coupled)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        ours = lstm.LstmForCausalLM(config)
        ids = torch.randint(0, 9, (2, 7))
    theirs = torch.nn.LSTM(4, 5, proj_size=4, batch_first=True)

    def in_order(rows: Any) -> Any:
        keep, out, new, *let_in = rows.split(5)
        # sigmoid(-x) = 1 - sigmoid(x)
        return torch.cat([let_in[0] if let_in else -keep, keep, new, out])

    with torch.no_grad():
        theirs.weight_ih_l0.copy_(in_order(ours.input_gates.weight))
        theirs.weight_hh_l0.copy_(in_order(ours.recurrent_gates.weight))
        theirs.bias_ih_l0.copy_(in_order(ours.input_gates.bias))
        theirs.bias_hh_l0.zero_()
        theirs.weight_hr_l0.copy_(ours.projection.weight)
        hidden, _ = theirs(ours.embedding(ids))
        expected = ours.output(hidden)
        assert torch.allclose(ours(input_ids=ids).logits, expected, atol=1e-6)


def test_the_past_alone_counts(folder: Path) -> None:
    model = load_model("AutoModelForCausalLM", folder, "models.downstream", "cpu", "float32")
    ids = torch.tensor([[2, 5, 9, 7, 1, 1]])
    changed = torch.tensor([[2, 5, 9, 8, 3, 1]])
    before, after = model(input_ids=ids).logits, model(input_ids=changed).logits
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


def test_words_and_what_is_no_word(folder: Path) -> None:
    tokenizer = load_tokenizer(folder, "models.downstream")
    first, mean, fox = tokenizer("The mean fox!")["input_ids"][:3], "mean", "fox"
    assert first[0] == tokenizer.bos_token_id
    vocabulary = tokenizer.get_vocab()
    assert tokenizer(f"{mean} ZEBRA {fox.upper()}")["input_ids"] == [
        tokenizer.bos_token_id,
        vocabulary["mean"],
        tokenizer.unk_token_id,
        vocabulary["fox"],
    ]
    spelled = tokenizer("</s>")["input_ids"]  # text that spells a special token stays text
    assert tokenizer.eos_token_id not in spelled


def test_the_most_frequent_words_are_taken() -> None:
    tokenizer = lstm.word_tokenizer(["b b c a", "B a d"], words=6)
    assert set(tokenizer.get_vocab()) == {"<unk>", "<pad>", "<s>", "</s>", "b", "a"}
    with pytest.raises(ValueError, match="words = 4"):
        lstm.word_tokenizer(["a"], words=4)


def test_public_training_learns_and_repeats(folder: Path, tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    again = lstm.make_lstm(tmp_path / "again", SENTENCES, steps=40, **TINY)
    raw = lstm.make_lstm(tmp_path / "raw", SENTENCES, **TINY)
    assert torch.equal(before, torch.random.get_rng_state())
    weights = "model.safetensors"
    assert (again / weights).read_bytes() == (folder / weights).read_bytes()
    losses = [Downstream(path, length=32) for path in (raw, folder)]
    rows = losses[0].encode(SENTENCES)
    assert losses[1].loss(rows) < losses[0].loss(rows) - 0.05


def test_no_words_no_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no public text has a word"):
        lstm.make_lstm(tmp_path, ["", " "], steps=1, **TINY)


def test_it_is_scored_and_fine_tuned(folder: Path) -> None:
    downstream = Downstream(folder, length=16)
    rows = downstream.encode(SENTENCES)
    start = downstream.loss(rows)
    downstream.fine_tune(rows, Tuning(30, 4, 16, 1e-2))
    assert downstream.loss(rows) < start - 0.2
    scorer = Scorer(folder, "cpu")
    (correct, nats), tokens = scorer.sums(rows, 100.0), sum(len(row) - 1 for row in rows)
    downstream.reset()
    assert nats / tokens == pytest.approx(start, rel=1e-5)
    assert correct == downstream.sums(rows)[:, 1].sum()


def test_nobody_is_right_about_a_word_outside_of_the_vocabulary(folder: Path) -> None:
    """Of a model that only says <unk>, over text of which half the words are unknown."""
    downstream, scorer = Downstream(folder, length=16), Scorer(folder, "cpu")
    unknown = downstream.tokenizer.unk_token_id
    rows = downstream.encode(["mean zebra fox zebra"])
    assert rows[0][1:].count(unknown) == 2
    for model in (downstream.model, scorer.model):
        with torch.no_grad():
            model.output.bias[unknown] = 1e6
    assert downstream.sums(rows)[0, 1:].tolist() == [0, 4]
    assert scorer.sums(rows, 100.0)[0] == 0


def test_words_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    loss = lstm.causal_loss

    def seen(model: Any, ids: Any, mask: Any) -> Any:
        sizes.append(ids.numel())
        return loss(model, ids, mask)

    monkeypatch.setattr(lstm, "causal_loss", seen)
    lstm.make_lstm(tmp_path, SENTENCES, steps=3, batch_words=30, **TINY)
    assert len(sizes) == 3 and max(sizes) <= 30


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_it_is_trained_on_a_node(folder: Path, kind: Any) -> None:
    model = CausalLM(Scorer(folder, "cpu"))
    parameters = initial_parameters(folder, kind, rank=2)
    shapes = base_shapes(folder)
    if kind == "full":
        assert {name: array.shape for name, array in parameters.items()} == shapes
    else:  # the layers from state to state are among the linear ones
        assert "recurrent_gates.weight.up" in parameters
    options = LocalTraining(
        "sgd", 0.5, 0.0, 0.0, epochs=1, batch_size=2, max_steps=100, sequence_length=16
    )
    with model.load(parameters) as loaded:
        first = loaded.train(SENTENCES, options, np.random.default_rng(0))
        again = loaded.train(SENTENCES, options, np.random.default_rng(0))
        nothing = loaded.train([""], options, np.random.default_rng(0))
    assert first is not None and again is not None and nothing is None
    np.testing.assert_array_equal(first, again)
    named = loaded.layout.unflatten(first)
    moved = {name for name, change in named.items() if np.abs(change).max() > 0}
    assert "recurrent_gates.weight" + (".up" if kind == "lora" else "") in moved


def test_made_once_of_the_general_public_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def make(folder: Path, texts: Any, **numbers: Any) -> None:
        made.append((list(texts), numbers["steps"]))
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(lstm, "make_lstm", make)
    config = RunConfig.from_flat({"cache": str(tmp_path), "models.train-steps": 7})
    federation: Any = SimpleNamespace(public_general=lambda: SENTENCES)
    first = lstm.ensure_lstm(federation, config)
    assert (lstm.ensure_lstm(federation, config), len(made)) == (first, 1)
    assert made[0] == (SENTENCES, 7)
    other: Any = SimpleNamespace(public_general=lambda: SENTENCES[1:])
    assert lstm.ensure_lstm(other, config) != first
