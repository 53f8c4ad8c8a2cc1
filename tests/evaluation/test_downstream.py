"""Fine-tuning at equal cost, measured per user, with a small random Llama."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from privsyn_flower.evaluation.downstream import Downstream, choose_learning_rate
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.text.tiny.assets import RECIPES
from privsyn_flower.text.tiny.models import train
from tests.text.conftest import make_tokenizer

WORDS = "alpha beta gamma delta river stone cloud forest matrix vector tensor kernel".split()


def texts(step, seed, count=60):
    """Sentences in which each word is `step` words after the one before."""
    starts = np.random.default_rng(seed).integers(12, size=count)
    return [" ".join(WORDS[(s + step * i) % 12] for i in range(10)) for s in starts]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        small = replace(RECIPES["downstream"], width=32, layers=1, heads=2, vocabulary=512)
        patch.setitem(RECIPES, "downstream", small)
        folder = train(
            {"downstream": [texts(1, 0)]}, "downstream", tmp_path_factory.mktemp("m"), steps=5
        )
    yield Downstream(folder, length=24)
    torch.set_num_threads(before)


@pytest.mark.slow
def test_fine_tuning_starts_from_the_same_weights_every_time(model):
    held_out = {"u": model.encode(texts(5, 9, 6)), "v": model.encode(texts(5, 8, 2))}
    tuning = Tuning(steps=12, batch_size=8, length=24, learning_rate=3e-3)
    own, other = model.encode(texts(5, 1)), model.encode(texts(1, 2))
    model.reset()
    start = model.user_sums(held_out)
    model.fine_tune(own, tuning)
    first = model.user_sums(held_out)
    model.fine_tune(other, tuning)
    model.fine_tune(own, tuning)
    np.testing.assert_array_equal(model.user_sums(held_out), first)
    assert first[:, 0].sum() < 0.9 * start[:, 0].sum()
    model.reset()
    np.testing.assert_array_equal(model.user_sums(held_out), start)


def test_sums_follow_users_not_batches(model):
    users = {"a": model.encode(texts(1, 3, 3)), "b": [], "c": model.encode(["alpha beta"])}
    model.reset()
    table = model.user_sums(users)
    assert table.shape == (3, 3)
    assert table[1].tolist() == [0, 0, 0]
    np.testing.assert_allclose(table[2], model.sums(users["c"])[0], rtol=1e-5)
    assert table[0, 2] == sum(len(row) - 1 for row in users["a"])


@pytest.mark.slow
def test_learning_rate_is_chosen_by_public_validation(model):
    tuning = Tuning(steps=8, batch_size=8, length=24, learning_rate=0.0)
    train_rows, validation = model.encode(texts(5, 1)), model.encode(texts(5, 4, 10))
    rate, losses = choose_learning_rate(model, [1e-6, 3e-3], train_rows, validation, tuning)
    assert rate == 3e-3 and losses["0.003"] < losses["1e-06"]
    assert choose_learning_rate(model, [0.5], [], [], tuning) == (0.5, {})
    with pytest.raises(ValueError, match=r"evaluation\.learning-rates"):
        choose_learning_rate(model, [], train_rows, validation, tuning)


def test_an_encoder_does_not_read_the_token_it_is_to_predict(tmp_path):
    """POPri's downstream model for PubMed is BERT-small."""
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = make_tokenizer(tmp_path, masked=True)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(tmp_path)
    bert = Downstream(tmp_path, length=24).model
    one, other = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[5, 6, 7, 8, 10]])
    mask = torch.ones_like(one)
    with torch.inference_mode():
        logits = [bert(input_ids=ids, attention_mask=mask).logits for ids in (one, other)]
    torch.testing.assert_close(logits[0][:, :4], logits[1][:, :4], rtol=0, atol=0)
    assert not torch.equal(logits[0][:, 4], logits[1][:, 4])
