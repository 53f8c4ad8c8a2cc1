"""Conditions and their pairs: the released code's string, tokens without loss, cuts, keywords."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.text.conditions import (
    AREA,
    Pair,
    PairSource,
    condition,
    encode_pairs,
    encode_prompts,
    encode_texts,
    prompt,
    public_pairs,
)
from privsyn_flower.text.models.batches import IGNORED, causal_labels, causal_loss, pad_rows

from .conftest import SENTENCES, make_tokenizer

torch = pytest.importorskip("torch")

GOLDEN = Path(__file__).parent.parent / "golden"
GROUPS = [[f"{name} ducks swim in {name} ponds", f"{name} geese fly over {name} ponds"]
          for name in ("alpha", "beta", "gamma")]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"), masked=False)


def test_the_string_of_the_released_code() -> None:
    golden = json.loads((GOLDEN / "ctcl_generation.json").read_text("utf-8"))["src"]
    assert condition(["alpha", "beta"], "medical paper abstract") == golden


def test_lines_are_left_out_without_words() -> None:
    assert condition([]) == condition([" ", "\n"], " ", "") == ""
    assert condition(["a\nb", "", "c"], label=" good  one") == "Label: good one\nKeywords: a b, c"
    assert prompt(condition(["a"])) == "Keywords: a\n\n"
    assert prompt("").endswith("\n\n") and prompt("").strip()


def test_a_text_has_the_same_tokens_under_every_condition(tokenizer: Any) -> None:
    bare = tokenizer(SENTENCES[0], add_special_tokens=False)["input_ids"]
    for said in ("", condition(["fox"], "story"), condition(["river", "lazy"])):
        [(ids, leading)] = encode_pairs(tokenizer, [Pair(said, SENTENCES[0])], 512)
        assert ids[leading:] == [*bare, tokenizer.eos_token_id]
        assert ids[:leading] == tokenizer(prompt(said))["input_ids"]
    pairs = [Pair(condition(["fox"]), text) for text in SENTENCES]
    assert encode_pairs(tokenizer, pairs, 512) == [
        row for pair in pairs for row in encode_pairs(tokenizer, [pair], 512)
    ]


def test_cuts(tokenizer: Any) -> None:
    """A prompt keeps its beginning and the blank line; a text that is cut has no end."""
    long = condition([f"word{i}" for i in range(60)])
    (cut,) = encode_prompts(tokenizer, [prompt(long)], 20)
    assert len(cut) == 20
    told = tokenizer.decode(cut)
    assert told.startswith("<s>Keywords: word0") and told.endswith("\n\n")
    (text,) = encode_texts(tokenizer, [SENTENCES[0]], 5)
    assert text == tokenizer(SENTENCES[0], add_special_tokens=False)["input_ids"][:5]
    [(ids, leading)] = encode_pairs(tokenizer, [Pair(long, SENTENCES[0])], 5, max_source=20)
    assert (len(ids), leading) == (25, 20)


def test_a_tokenizer_that_ends_its_texts_does_not_end_a_prompt(tmp_path: Path) -> None:
    framed = make_tokenizer(tmp_path, masked=True)  # <s> $A </s>
    [(ids, leading)] = encode_pairs(framed, [Pair(condition(["fox"]), SENTENCES[0])], 512)
    assert ids.count(framed.eos_token_id) == 1
    assert ids[-1] == framed.eos_token_id and leading > 1


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    endless = make_tokenizer(tmp_path, masked=False)
    endless.eos_token = None
    with pytest.raises(ValueError, match=r"models\.conditional"):
        encode_texts(endless, ["a"], 8)


def test_a_condition_has_no_loss(causal_folder: Path, tokenizer: Any) -> None:
    """Labels are the text's; a condition's token moves the loss only through what is read."""
    import transformers

    pair = Pair(condition(["fox", "river"]), SENTENCES[0])
    rows = encode_pairs(tokenizer, [pair, Pair("", SENTENCES[1])], 512)
    leading = [count for _, count in rows]
    ids, mask = pad_rows([row for row, _ in rows], 0)
    labels = causal_labels(ids, mask, leading)
    for row, (own, first) in zip(labels.tolist(), rows, strict=True):
        assert row == [IGNORED] * (first - 1) + own[first:] + [IGNORED] * (len(row) + 1 - len(own))
    changed = ids.clone()
    changed[0, 3] += 1
    assert causal_labels(changed, mask, leading).equal(labels)
    # A condition's own tokens are not even scored: nothing teaches the model to write it.
    model = transformers.AutoModelForCausalLM.from_pretrained(causal_folder, dtype=torch.float32)
    kept: list[Any] = []
    hook = model.lm_head.register_forward_hook(lambda _m, _i, logits: kept.append(logits))
    loss = causal_loss(model, ids, mask, leading)
    hook.remove()
    assert kept[0].shape[:-1] == (sum(len(own) - first for own, first in rows),)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]  # all of them, hook gone
    assert logits.shape[:-1] == labels.shape
    whole = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)


def test_public_pairs_say_words_of_text_group_or_area() -> None:
    groups = [[f"{text} in part {i}" for text in group] for i in range(60) for group in GROUPS]
    names = [f"book{i}" for i in range(len(groups))]
    source = PairSource(groups, names)
    pairs = source.draw(0)
    assert [pair.text for pair in pairs] == [text for group in groups for text in group]
    flat = [g for g, group in enumerate(groups) for _ in group]
    kinds = {"": 0, "own": 0, "group": 0, "area": 0}
    typed = 0
    for group, pair in zip(flat, pairs, strict=True):
        lines = dict(line.split(": ", 1) for line in pair.condition.splitlines())
        typed += "Document Type" in lines
        assert lines.get("Document Type", names[group]) == names[group]
        said = lines["Keywords"].split(", ") if lines else []
        possible = {
            whose: source.keywords(group, pair.text, whose)[: len(said)]
            for whose in ("area", "group", "own")
        }
        found = [whose for whose, words in possible.items() if words == said]
        assert found or not said
        kinds[found[-1] if said else ""] += 1
        assert len(said) <= 10
    assert all(count > 20 for count in kinds.values()), kinds
    assert 0.3 < typed / len(pairs) < 0.6
    assert source.draw(0) == pairs == public_pairs(groups, names)
    assert source.draw(1) != pairs
    assert source.draw(0, [2])[0].text == groups[2][0]


def test_words_of_a_text_a_group_and_an_area() -> None:
    source = PairSource(GROUPS * AREA)
    assert source.keywords(0, GROUPS[0][0], "own", 1) == ["alpha"]
    assert set(source.keywords(1, GROUPS[1][0], "group", 2)) >= {"beta"}
    assert "alpha" in source.keywords(1, GROUPS[1][0], "area")
    assert all("Document Type" not in pair.condition for pair in source.draw(0))


def test_bad_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="words"):
        PairSource(GROUPS, words=(0, 3))
    with pytest.raises(ValueError, match="2 names for 3"):
        PairSource(GROUPS, ["a", "b"])
