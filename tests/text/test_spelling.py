"""A tokenizer tells by its spelling whether it has learnt a language."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.text.tiny.assets import shipped_model
from privsyn_flower.text.words import LEAST_WORDS, Spelling, letters, spelling
from tests.rigs.languages import ENGLISH, FOREIGN


@pytest.mark.parametrize("kind", ["generator", "small-generator", "infiller"])
def test_english_chats_and_docstrings_are_known(kind: str) -> None:
    found = spelling(shipped_model(kind), ENGLISH * 3)
    assert found is not None and not found.foreign
    assert found.tokens_per_word < 1.8 and found.unreadable == 0


@pytest.mark.parametrize("language", FOREIGN)
def test_other_languages_are_not(language: str) -> None:
    found = spelling(shipped_model("generator"), FOREIGN[language] * 12)
    assert found is not None and found.foreign and found.tokens_per_word > 2.3
    assert (found.unreadable_share > 0.85) == (language in ("Chinese", "Russian", "Arabic"))


def test_either_sign_is_enough() -> None:
    assert Spelling(100, 201, 0).foreign and Spelling(100, 100, 6).foreign
    assert not Spelling(100, 200, 10).foreign


def test_unknown_tokens_count_where_nothing_is_spelt_by_bytes(tmp_path: Path) -> None:
    words = {"[UNK]": 0, "the": 1}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    text = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(text))
    found = spelling(tmp_path, ["the other"] * LEAST_WORDS)
    assert found == Spelling(100, 100, 50)


def test_of_unigrams_the_vocabulary_names_the_unknown(tmp_path: Path) -> None:
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["the", -1.0]], "unk_id": 0}
    text = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(text))
    found = spelling(tmp_path, ["the b"] * LEAST_WORDS)
    assert found is not None and found.unreadable_share == 0.5


def test_digits_emoji_and_punctuation_say_nothing() -> None:
    assert letters("don't! \U0001f602\ufe0f see 8 x2, na\u0131ve") == "don't see x na\u0131ve"
    assert letters("\u0915\u094d\u092f\u093e?") == "\u0915\u094d\u092f\u093e"
    assert letters("123 :)") == ""
    assert spelling(shipped_model("generator"), ["\U0001f602 8:30"] * 900) is None


def test_too_little_text_and_no_tokenizer_say_nothing(tmp_path: Path) -> None:
    assert spelling(tmp_path, ENGLISH * 9) is None
    assert spelling(shipped_model("generator"), ["only these few words"]) is None
