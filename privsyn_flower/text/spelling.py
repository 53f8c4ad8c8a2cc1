"""How a model's tokenizer spells text: in words, or in letters, bytes and unknowns where it has
learnt another language.

Measured on English chats and docstrings against lines in 18 other languages, letters alone: in
English 1.0 to 1.8 tokens a word, in what a model has not learnt 2.1 to 11, and 5 to 98 % of the
tokens are parts of characters. SmolLM2 spells Dutch, Spanish and French with 1.6 to 2.0 tokens a
word: a language that shares its letters and many of its words is not told apart.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.common.units import words

MOST_TOKENS = 2.0  # a word, of a language that the tokenizer was made for
MOST_UNREADABLE = 0.05  # share of tokens
LEAST_WORDS = 50  # fewer say nothing
TEXTS, CHARACTERS = 200, 500  # that are looked at, evenly over the texts, and of each
FILE = "tokenizer.json"
CUT = "\ufffd"  # what part of a character decodes to


@dataclass(frozen=True, slots=True)
class Spelling:
    """Of a sample's words, without punctuation, digits and emoji. unreadable: tokens that are
    unknown, or no whole characters."""

    words: int
    tokens: int
    unreadable: int

    @property
    def tokens_per_word(self) -> float:
        """1 where every word is a token."""
        return self.tokens / self.words

    @property
    def unreadable_share(self) -> float:
        """Of the tokens."""
        return self.unreadable / self.tokens

    @property
    def foreign(self) -> bool:
        """Whether the tokenizer was made for another language."""
        return self.tokens_per_word > MOST_TOKENS or self.unreadable_share > MOST_UNREADABLE


def spelling(folder: Path, texts: Sequence[str]) -> Spelling | None:
    """How the tokenizer of the model in `folder` spells texts; None where it has no tokenizer.json,
    the texts have too few words, or the tokenizers package is not here."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    shown = texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    sample = [found for text in shown if (found := letters(text[:CHARACTERS]))]
    count = sum(len(words(text)) for text in sample)
    path = folder / FILE
    if count < LEAST_WORDS or not path.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    unknown = _unknown(path)

    @functools.cache
    def unreadable(token: int) -> bool:
        return tokenizer.id_to_token(token) == unknown or CUT in tokenizer.decode([token])

    encoded = tokenizer.encode_batch(sample, add_special_tokens=False)
    tokens = [token for one in encoded for token in one.ids]
    return Spelling(count, len(tokens), sum(map(unreadable, tokens))) if tokens else None


def letters(text: str) -> str:
    """Words alone: runs of letters with their marks and apostrophes."""
    found = [" "]
    for character in text:
        kind = unicodedata.category(character)
        joined = found[-1] != " " and (kind in ("Mn", "Mc") or character in "'\u2019\u200c\u200d")
        found.append(character if kind[0] == "L" or joined else " ")
    return " ".join("".join(found).split())


def _unknown(path: Path) -> str | None:
    """The token for what a tokenizer cannot spell; None of one that can spell everything."""
    model: dict[str, Any] = json.loads(path.read_text("utf-8"))["model"]
    if model.get("unk_id") is not None:  # Unigram's vocabulary is a list of [token, score]
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")
