"""Variations of a text: mask-fill's counts, specials and determinism; public neighbours; and what a
language model is asked and made to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from privsyn_flower.config import PeConfig, split_list
from privsyn_flower.text import Variation
from privsyn_flower.text.embedders import NgramEmbedder
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.models.pretrained import decode
from privsyn_flower.text.prompts import HEADING, expand_prompt
from privsyn_flower.text.variation import (
    Continue,
    MaskFill,
    Mixed,
    Retrieval,
    Rewrite,
    logits_at,
    mask_ranks,
)

from .conftest import SENTENCES

torch = pytest.importorskip("torch")

TEXTS = [*SENTENCES, "tea", "", "Literal <mask> and </s> stay text, as in <s> documentation."]


@pytest.fixture(scope="module")
def variation(masked_folder: Path) -> MaskFill:
    return MaskFill(masked_folder, device="cpu", progress=False)


@pytest.mark.parametrize(
    ("tokens", "fraction", "masks"),
    [(14, 0.3, 4), (6, 0.3, 2), (10, 0.5, 5), (3, 0.15, 1), (1, 0.3, 1), (0, 0.3, 0), (5, 0.5, 3)],
)
def test_mask_count_is_per_sequence(tokens: int, fraction: float, masks: int) -> None:
    """Beside a 14-token neighbour each sequence keeps its own count (the authors' code takes the
    batch minimum, and fails on 3 tokens at 0.15)."""
    content = np.zeros((2, 20), dtype=bool)
    content[0, 1 : 1 + tokens] = True
    content[1, 1:15] = True
    ranks = mask_ranks(content, np.random.default_rng(0).random((2, 20)), fraction)
    assert (ranks[0] >= 0).sum() == masks
    assert sorted(ranks[0][ranks[0] >= 0]) == list(range(masks))
    assert not (ranks >= 0)[~content].any()


def test_mask_positions_are_uniform() -> None:
    content = np.ones((4000, 10), dtype=bool)
    content[:, 0] = False
    ranks = mask_ranks(content, np.random.default_rng(1).random(content.shape), 1 / 3)
    share = (ranks >= 0).mean(axis=0)
    assert share[0] == 0
    np.testing.assert_allclose(share[1:], 1 / 3, atol=0.04)


def small_models(vocabulary: int) -> list[Any]:
    import transformers as t

    sizes = {"vocab_size": vocabulary, "max_position_embeddings": 40}
    common = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
              "intermediate_size": 64} | sizes  # fmt: skip
    return [
        t.RobertaForMaskedLM(t.RobertaConfig(**common)),
        t.BertForMaskedLM(t.BertConfig(**common)),
        t.DistilBertForMaskedLM(t.DistilBertConfig(dim=32, n_layers=2, n_heads=2, **sizes)),
        t.ModernBertForMaskedLM(t.ModernBertConfig(pad_token_id=0, **common)),
    ]


@pytest.mark.parametrize("place", range(4), ids=["roberta", "bert", "distilbert", "modernbert"])
def test_head_on_masked_positions_equals_the_full_forward(place: int) -> None:
    model = small_models(50)[place].eval()
    ids = torch.randint(5, 50, (3, 12), generator=torch.Generator().manual_seed(0))
    attention = torch.ones_like(ids)
    attention[1, 8:] = 0
    rows, columns = np.array([0, 0, 1, 2]), np.array([2, 5, 7, 11])
    seen: list[tuple[int, ...]] = []
    head = model.get_output_embeddings()
    handle = head.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].shape))
    some = logits_at(model, ids, attention, rows, columns)
    handle.remove()
    with torch.no_grad():
        full = model(input_ids=ids, attention_mask=attention).logits
    assert seen == [(1, 4, 32)]
    torch.testing.assert_close(some, full[rows, columns], atol=1e-6, rtol=1e-5)
    assert full.shape == (3, 12, 50), "the hook must be gone after the call"


@pytest.mark.parametrize("passes", [1, 3, 0])
def test_only_masked_tokens_change_and_specials_never_do(
    variation: MaskFill, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    monkeypatch.setattr(variation, "passes", passes)
    ids, own = variation._encode(TEXTS)
    special = set(variation.tokenizer.all_special_ids)
    for row, content in zip(ids, own, strict=True):
        assert set(row[~content]) <= special
        assert not set(row[content]) & special, "literal <mask> must be ordinary text"
    draws = np.random.default_rng(0).random((len(ids), 1, 2, 64))
    monkeypatch.setattr(variation, "steps", 1)
    filled = variation._vary_batch(ids, own, draws)
    changed = 0
    for row, content, new in zip(ids, own, filled, strict=True):
        new = new[: len(row)]
        np.testing.assert_array_equal(new[~content], row[~content])
        assert not set(new[content]) & special, "a special token was sampled"
        assert (new < len(variation.tokenizer)).all(), "a padded vocabulary row was sampled"
        differ = int((new != row).sum())
        assert differ <= max(1, int(0.3 * content.sum() + 0.5))
        changed += differ
    assert changed > 20


def test_special_tokens_are_not_sampled_even_when_most_likely(
    variation: MaskFill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a head that all but insists on special tokens the fill still avoids them."""
    bias = variation.model.lm_head.bias
    before = bias.clone()
    with torch.no_grad():
        bias[variation.tokenizer.all_special_ids] += 50.0
    try:
        ids, own = variation._encode(SENTENCES)
        draws = np.random.default_rng(0).random((len(ids), variation.steps, 2, 64))
        filled = variation._vary_batch(ids, own, draws)
    finally:
        with torch.no_grad():
            bias.copy_(before)
    for content, new in zip(own, filled, strict=True):
        own_new = new[: len(content)][content]
        assert not np.isin(own_new, variation.tokenizer.all_special_ids).any()


def test_sequential_fills_see_earlier_fills(
    variation: MaskFill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """passes = 0: one more mask is gone at every forward pass, in the order of the ranks."""
    monkeypatch.setattr(variation, "passes", 0)
    left: list[int] = []
    mask = variation.tokenizer.mask_token_id
    handle = variation.model.base_model.register_forward_pre_hook(
        lambda _m, inputs: left.append(int((inputs[0] == mask).sum()))
    )
    try:
        ids, own = variation._encode(SENTENCES[:1])
        monkeypatch.setattr(variation, "steps", 1)
        variation._vary_batch(ids, own, np.random.default_rng(0).random((1, 1, 2, 64)))
    finally:
        handle.remove()
    count = max(1, int(0.3 * own[0].sum() + 0.5))
    assert left == list(range(count, 0, -1))


def test_deterministic_in_rng_and_independent_of_batches(
    variation: MaskFill, masked_folder: Path
) -> None:
    first = variation.vary(TEXTS, np.random.default_rng(7))
    assert first == variation.vary(TEXTS, np.random.default_rng(7))
    assert first != variation.vary(TEXTS, np.random.default_rng(8))
    small = MaskFill(masked_folder, batch_size=2, device="cpu", progress=False)
    assert first == small.vary(TEXTS, np.random.default_rng(7))
    # The draws of a text depend on its place alone, not on its neighbours.
    others = [t if i == 1 else "something else" for i, t in enumerate(TEXTS)]
    assert variation.vary(others, np.random.default_rng(7))[1] == first[1]


def test_texts_are_varied_and_empty_ones_kept(variation: MaskFill) -> None:
    varied = variation.vary(TEXTS, np.random.default_rng(0))
    assert len(varied) == len(TEXTS)
    assert varied[TEXTS.index("")] == ""
    assert all(new != old for new, old in zip(varied[:6], TEXTS[:6], strict=True))
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in varied)
    assert variation.vary([], np.random.default_rng(0)) == []


def test_untouched_text_survives_the_round_trip(variation: MaskFill) -> None:
    """Decoding must not tidy: spaces before punctuation belong to the text."""
    text = "A space , here ; don 't touch  it . <mask> stays"
    ids, own = variation._encode([text])
    assert decode(variation.tokenizer, ids[0][own[0]].tolist()) == text


def test_long_texts_are_cut(masked_folder: Path) -> None:
    variation = MaskFill(masked_folder, max_tokens=8, device="cpu", progress=False)
    ids, own = variation._encode([" ".join(SENTENCES)])
    assert len(ids[0]) == 8 and own[0].sum() == 6
    assert ids[0][-1] == variation.tokenizer.eos_token_id
    assert variation.vary([" ".join(SENTENCES)], np.random.default_rng(0))[0]


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("mask_fraction", 0.0, "mask-fraction"),
        ("temperature", 0.0, "temperature"),
        ("top_p", 1.5, "top-p"),
        ("max_tokens", 99, "max-tokens = 99.*98"),
        ("device", "tpu", "models.device"),
        ("steps", 0, "steps=0"),
    ],
)
def test_wrong_arguments(masked_folder: Path, key: str, value: Any, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        MaskFill(masked_folder, **{key: value})


def test_a_causal_model_is_refused(causal_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"models\.infiller.*no mask token"):
        MaskFill(causal_folder, device="cpu")


def test_workers_side_by_side_fill_as_one_does(
    variation: MaskFill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with hooks of its own on the model that they share."""
    monkeypatch.setattr(variation, "batch_size", 2)
    texts, found = TEXTS * 6, []
    for workers in (1, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(workers))
        found.append(variation.vary(texts, np.random.default_rng(4)))
    assert found[0] == found[1] != texts


POOL = [
    f"public text {i} about {'tea' if i % 2 else 'arrays'} and {i * 37 % 101}" for i in range(60)
]
EMBEDDER = NgramEmbedder(64)
ROWS = EMBEDDER.embed(POOL)


def nearest(text: str, k: int) -> list[str]:
    """The k nearest pool texts other than `text`, one by one."""
    query = EMBEDDER.embed([text])[0]
    ranked = sorted(range(len(POOL)), key=lambda i: (-float(query @ ROWS[i]), i))
    return [POOL[i] for i in ranked if POOL[i] != text][:k]


def test_draws_every_neighbour_and_never_the_text_itself() -> None:
    variation = Retrieval(POOL, ROWS, EMBEDDER, neighbors=5)
    for text in (POOL[3], POOL[10], "a stranger about tea and 42"):
        varied = variation.vary([text] * 400, np.random.default_rng(0))
        assert text not in varied
        assert set(varied) == set(nearest(text, 5))
        counts = [varied.count(t) for t in set(varied)]
        assert min(counts) > 50, "neighbours are drawn uniformly"


def test_repeated_pool_texts_count_once() -> None:
    pool = [*POOL, POOL[3], POOL[3]]
    variation = Retrieval(pool, EMBEDDER.embed(pool), EMBEDDER, neighbors=2)
    varied = variation.vary([POOL[3]] * 50, np.random.default_rng(0))
    assert set(varied) == set(nearest(POOL[3], 2))


def test_one_neighbour_is_the_nearest() -> None:
    variation = Retrieval(POOL, ROWS, EMBEDDER, neighbors=1)
    varied = variation.vary(POOL, np.random.default_rng(0))
    assert varied == [nearest(text, 1)[0] for text in POOL]


def test_blocks_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    variation = Retrieval(POOL, ROWS, EMBEDDER, neighbors=8)
    texts = [*POOL[:20], "a stranger", "another stranger", "a stranger"]
    whole = variation.vary(texts, np.random.default_rng(4))
    monkeypatch.setattr("privsyn_flower.text.variation.BLOCK_VALUES", 150)
    assert variation.vary(texts, np.random.default_rng(4)) == whole
    assert variation.vary(texts, np.random.default_rng(5)) != whole
    assert variation.vary([], np.random.default_rng(4)) == []


def test_pool_texts_are_not_embedded_again() -> None:
    class Counting(NgramEmbedder):
        seen: ClassVar[list[str]] = []

        def embed(self, texts: Sequence[str]) -> np.ndarray:
            self.seen += texts
            return super().embed(texts)

    embedder = Counting(64)
    variation = Retrieval(POOL, ROWS, embedder, neighbors=3)
    variation.vary([POOL[0], "new", "new", POOL[1]], np.random.default_rng(0))
    assert embedder.seen == ["new"]


@pytest.mark.parametrize("neighbors", [0, 60, 100])
def test_neighbour_bounds(neighbors: int) -> None:
    with pytest.raises(ValueError, match=rf"retrieval-neighbors = {neighbors}.*\[1, 59\]"):
        Retrieval(POOL, ROWS, EMBEDDER, neighbors)
    for few in (0, 1):
        with pytest.raises(ValueError, match=r"nothing to retrieve .*data\.public-path"):
            Retrieval(POOL[:few], ROWS[:few], EMBEDDER, neighbors)


def test_wrong_embeddings() -> None:
    with pytest.raises(ValueError, match=r"\(59, 64\), expected \(60, 64\)"):
        Retrieval(POOL, ROWS[:-1], EMBEDDER, 3)
    broken = ROWS.copy()
    broken[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        Retrieval(POOL, broken, EMBEDDER, 3)


class Tag:
    """An infiller that signs its texts."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def vary(self, texts: Sequence[str], rng: np.random.Generator) -> list[str]:
        return [f"{self.tag}:{text}" for text in texts]


def test_mixed_picks_per_text_and_keeps_the_order() -> None:
    texts = [str(i) for i in range(2000)]
    varied = Mixed(Tag("a"), Tag("b"), share=0.3).vary(texts, np.random.default_rng(0))
    assert [text.partition(":")[2] for text in varied] == texts
    assert sum(text.startswith("a:") for text in varied) == pytest.approx(600, abs=80)
    assert varied == Mixed(Tag("a"), Tag("b"), 0.3).vary(texts, np.random.default_rng(0))
    for share, tag in ((0.0, "b"), (1.0, "a")):
        only = Mixed(Tag("a"), Tag("b"), share).vary(texts, np.random.default_rng(0))
        assert {text[0] for text in only} == {tag}
    with pytest.raises(ValueError, match=r"retrieval-share = 1\.5"):
        Mixed(Tag("a"), Tag("b"), 1.5)


class Answering:
    """A generator that answers by a function of the prompt, and notes what it was told."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer, self.asked = answer, list[str]()
        self.adapter: Path | None = Path("an adapter of before")

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        assert n == 1 and self.adapter is None
        self.asked += prompts
        return [[self.answer(prompt)] for prompt in prompts]

    def use_adapter(self, folder: Path | None) -> None:
        self.adapter = folder

    def rest(self) -> None: ...

    def close(self) -> None: ...


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_a_rewrite_is_asked_for_in_a_drawn_style() -> None:
    generator = Answering(lambda prompt: f" New:\n\n{prompt} ")
    method = Rewrite(generator, "Say {style}: {text}", ["aloud", "softly"], min_words=1)
    assert isinstance(method, Variation)
    texts = ["one  two\nthree", "a {style} of {text}"] * 20
    found = method.vary(texts, rng())
    styles = [("aloud", "softly")[i] for i in rng().integers(2, size=40)]
    lines = [" ".join(text.split()) for text in texts]
    assert generator.asked == [f"Say {s}: {line}" for s, line in zip(styles, lines, strict=True)]
    assert found == [f"New: {prompt}" for prompt in generator.asked]
    assert set(styles) == {"aloud", "softly"}


def test_a_short_answer_leaves_the_text_and_a_long_one_is_cut() -> None:
    generator = Answering(lambda prompt: "no" if "first" in prompt else "one two three four five")
    method = Rewrite(generator, "{text}", min_words=2, max_words=4)
    assert method.vary(["the first", "the second"], rng()) == ["the first", "one two three four"]
    assert method.vary([], rng()) == []


def test_a_continuation_is_the_next_of_a_list() -> None:
    generator = Answering(lambda _: f"Words that follow\nit.\n{HEADING} 3\nMore")
    found = Continue(generator, min_words=2).vary(["a text"], rng())
    assert generator.asked == [expand_prompt(["a text"])]
    assert found == ["Words that follow it."]
    assert Continue(generator, min_words=9).vary(["a text"], rng()) == ["a text"]


def test_the_shipped_instruction_is_one() -> None:
    config = PeConfig(variation="rewrite")
    generator = Answering(lambda prompt: prompt)
    [found] = Rewrite(generator, config.rewrite, split_list(config.styles)).vary(["My text"], rng())
    assert found.endswith(": My text") and "{" not in found
    with pytest.raises(ValueError, match=r"must hold \{text\}"):
        Rewrite(generator, "Again")


def test_a_local_model_varies_and_repeats_itself(causal_folder: Path) -> None:
    generator = HuggingFaceGenerator(causal_folder, max_tokens=8, device="cpu", progress=False)
    method = Rewrite(generator, "Again: {text}", min_words=1, max_words=5)
    texts = ["A short text about tea.", "Another one."]
    one, two = method.vary(texts, rng()), method.vary(texts, rng())
    assert one == two != texts
    assert all(1 <= len(text.split()) <= 5 for text in one)
