"""The keyboard's LSTM: its size, its cell, and that everything which takes a causal LM takes it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.common.files import DataError
from privsyn_flower.config import RunConfig
from privsyn_flower.evaluation.downstream import Downstream
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.text.models.batches import causal_loss, encode, pad_rows
from privsyn_flower.text.models.lm_metrics import Scorer
from privsyn_flower.text.models.parameters import base_shapes
from privsyn_flower.text.models.pretrained import ModelUnavailableError, load_model, load_tokenizer
from privsyn_flower.training.layout import LocalTraining
from privsyn_flower.training.low_rank import initial_parameters
from privsyn_flower.training.models import CausalLM
from tests.text.conftest import SENTENCES

torch = pytest.importorskip("torch")
from privsyn_flower.text.models import lstm  # noqa: E402 - it imports torch

TINY: dict[str, Any] = {"words": 60, "hidden": 12, "embedding": 6}
UNTRAINED, FORTY = lstm.WordTraining(0), lstm.WordTraining(40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lstm.make_lstm(tmp_path_factory.mktemp("lstm"), SENTENCES, FORTY, **TINY)


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


def test_words_of_a_script_without_spaces(tmp_path: Path) -> None:
    """The vocabulary is of units, whoever reads the folder; one of other units is refused."""
    texts = ["今天天气很好，我们去公园散步吧。", "我们今天在公园看书。"]
    folder = lstm.make_lstm(tmp_path / "zh", texts, UNTRAINED, **TINY)
    tokenizer = load_tokenizer(folder, "models.downstream")
    assert {"今天", "公园", "散步"} <= set(tokenizer.get_vocab())
    (row,) = encode(tokenizer, ["今天我们散步。"], 20)
    assert tokenizer.convert_ids_to_tokens(row) == ["<s>", "今天", "我们", "散步", "。"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"units": 99}))
    with pytest.raises(ModelUnavailableError, match="version 99 of the units"):
        load_tokenizer(folder, "models.downstream")


def test_public_training_learns_and_repeats(folder: Path, tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    again = lstm.make_lstm(tmp_path / "again", SENTENCES, FORTY, **TINY)
    raw = lstm.make_lstm(tmp_path / "raw", SENTENCES, UNTRAINED, **TINY)
    assert torch.equal(before, torch.random.get_rng_state())
    weights = "model.safetensors"
    assert (again / weights).read_bytes() == (folder / weights).read_bytes()
    losses = [Downstream(path, length=32) for path in (raw, folder)]
    rows = losses[0].encode(SENTENCES)
    assert losses[1].loss(rows) < losses[0].loss(rows) - 0.05


def test_no_words_no_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no public text has a word"):
        lstm.make_lstm(tmp_path, ["", " "], lstm.WordTraining(1), **TINY)


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
    assert downstream.unknown_rate(rows) == 0.5
    for model in (downstream.model, scorer.model):
        with torch.no_grad():
            model.output.bias[unknown] = 1e6
    assert downstream.sums(rows)[0, 1:].tolist() == [0, 4]
    assert scorer.sums(rows, 100.0)[0] == 0


def test_words_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    loss = causal_loss

    def seen(model: Any, ids: Any, mask: Any) -> Any:
        sizes.append(ids.numel())
        return loss(model, ids, mask)

    monkeypatch.setattr(lstm, "causal_loss", seen)
    lstm.make_lstm(tmp_path, SENTENCES, lstm.WordTraining(3, batch_words=30), **TINY)
    assert len(sizes) == 3 and max(sizes) <= 30


def test_parts_of_a_step_are_one_large_batch(tmp_path: Path) -> None:
    """Five texts a step: through the model in parts of thirty words, or all together."""
    whole, cut = (
        lstm.make_lstm(tmp_path / str(words), SENTENCES, lstm.WordTraining(4, 5, words), **TINY)
        for words in (10_000, 30)
    )
    one, other = (Downstream(path, length=32).parameters() for path in (whole, cut))
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=2e-5)
    assert json.loads((cut / "config.json").read_text())["trained_steps"] == 4


def test_a_step_reads_so_many_texts_each_once_before_one_comes_again() -> None:
    training = lstm.WordTraining(steps=9, batch_texts=3, batch_words=20)
    rows = [[2, *[5] * length] for length in (1, 2, 12, 4, 5, 6, 7)]
    draws = (np.random.default_rng(seed) for seed in (0, 1))
    steps = lstm._steps(rows, training, *draws)
    taken = [next(steps) for _ in range(7)]
    for parts in taken:
        assert sum(map(len, parts)) == 3
        for part in parts:
            assert max(len(rows[i]) for i in part) * len(part) <= 20
    seen = np.concatenate([np.concatenate(parts) for parts in taken])
    assert sorted(seen[:7]) != list(seen[:7])  # drawn
    assert np.bincount(seen, minlength=7).tolist() == [3] * 7
    # The gradient of a step in parts is that of its mean loss over all words.
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = lstm.LstmForCausalLM(
            lstm.LstmConfig(vocab_size=9, hidden_size=5, embedding_size=4, pad_token_id=1)
        )
    ids, mask = pad_rows(rows, 1)
    causal_loss(model, ids, mask).backward()  # type: ignore[no-untyped-call]
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    parts = [np.array([0, 2]), np.array([6]), np.array([1, 3, 4, 5])]
    lstm.add_gradients(model, rows, parts, "cpu")
    for grad, parameter in zip(whole, model.parameters(), strict=True):
        assert torch.allclose(grad, parameter.grad, atol=1e-6)


def test_a_given_word_list_keeps_its_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "words.txt"
    path.write_text("zebra\n\nThe\nmean\nthe\ndon't\nfox\n", "utf-8")
    words = lstm.read_word_list(path)
    tokenizer = lstm.word_tokenizer(["fox fox fox"], 9, words)
    vocabulary = tokenizer.get_vocab()
    ordered = sorted(vocabulary, key=lambda word: vocabulary[word])
    assert ordered == ["<unk>", "<pad>", "<s>", "</s>", "zebra", "the", "mean", "don't", "fox"]
    assert "1 of 6 entries" in caplog.text  # three words here, never one
    assert "fox" not in lstm.word_tokenizer([], 8, words).get_vocab()
    path.write_text(" \n")
    with pytest.raises(DataError, match=r"lstm-word-list = .*has no word"):
        lstm.read_word_list(path)
    with pytest.raises(DataError, match=r"lstm-word-list = .*cannot be read"):
        lstm.read_word_list(tmp_path / "absent")


def test_another_training_with_the_same_words(folder: Path, tmp_path: Path) -> None:
    """What a benchmark compares: other texts, the same vocabulary, shape and first weights."""
    known = lstm.LstmConfig.from_pretrained(folder)
    tokenizer = load_tokenizer(folder, "models.downstream")
    again = lstm.train_lstm(tmp_path / "again", known, tokenizer, SENTENCES, FORTY)
    other = lstm.train_lstm(tmp_path / "other", known, tokenizer, ["the the fox"], FORTY)
    weights = "model.safetensors"
    assert (again / weights).read_bytes() == (folder / weights).read_bytes()
    assert (other / weights).read_bytes() != (folder / weights).read_bytes()
    assert load_tokenizer(other, "models.downstream").get_vocab() == tokenizer.get_vocab()


def test_an_unknown_device_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"models\.device = 'tpu'"):
        lstm.make_lstm(tmp_path, SENTENCES, lstm.WordTraining(1, device="tpu"), **TINY)


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


def test_made_once_of_the_public_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make(folder: Path, texts: Any, training: Any, **sizes: Any) -> None:
        made.append((list(texts), training, sizes))
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(lstm, "make_lstm", make)
    (tmp_path / "words.txt").write_text("b\na\n")
    keys: dict[str, Any] = {
        "cache": str(tmp_path),
        "models.train-steps": 7,
        "models.lstm-words": 50,
        "models.lstm-hidden": 12,
        "models.lstm-embedding": 6,
        "models.lstm-batch-texts": 20_000,
    }

    def ensured(texts: Any, **changed: Any) -> Path:
        federation: Any = SimpleNamespace(public=lambda: texts)
        return lstm.ensure_lstm(federation, RunConfig.from_flat(keys | changed))

    first = ensured(SENTENCES)
    assert (ensured(SENTENCES), len(made)) == (first, 1)
    texts, training, sizes = made[0]
    assert (texts, training.steps, training.batch_texts) == (SENTENCES, 7, 20_000)
    assert [sizes[name] for name in ("words", "hidden", "embedding")] == [50, 12, 6]
    others = [
        ensured(SENTENCES[1:]),
        ensured(SENTENCES, **{"models.lstm-words": 51}),
        ensured(SENTENCES, **{"models.train-seconds": 3.0}),
        ensured(SENTENCES, **{"models.lstm-word-list": str(tmp_path / "words.txt")}),
    ]
    assert len({first, *others}) == 5
    assert made[-1][2]["word_list"] == ["b", "a"]
