"""Texts as numbers of their words, and hashes of all runs of words in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privsyn_flower.common.arrays import I64, U64, Bools
from privsyn_flower.common.units import words as words_of

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so multiplication by it loses nothing


@dataclass(frozen=True)
class EncodedTexts:
    """Texts as word numbers: flat (w,), the text of each word (w,), and words per text (n,)."""

    flat: I64
    owner: I64
    lengths: I64

    def of(self, texts: Bools) -> EncodedTexts:
        """Only the chosen texts; the others stay as empty ones."""
        kept = texts[self.owner]
        return EncodedTexts(self.flat[kept], self.owner[kept], np.where(texts, self.lengths, 0))


def encode(texts: Sequence[str], vocabulary: dict[str, int]) -> EncodedTexts:
    """Texts as numbers of their words, of which new ones join the vocabulary."""
    flat: list[int] = []
    lengths = np.zeros(len(texts), dtype=np.int64)
    for i, text in enumerate(texts):
        words = words_of(text)
        lengths[i] = len(words)
        flat += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
    owner = np.repeat(np.arange(len(texts)), lengths)
    return EncodedTexts(np.asarray(flat, dtype=np.int64), owner, lengths)


def word_codes(count: int) -> U64:
    """A random code for each word of a vocabulary, the same in every process."""
    return np.random.default_rng(0).integers(2**64, size=count, dtype=np.uint64)


def grams(words: EncodedTexts, codes: U64, size: int) -> tuple[U64, I64]:
    """Hashes of all runs of `size` words within one text, and the text of each."""
    count = max(0, len(words.flat) - size + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for k in range(size):  # a polynomial of the words' random codes, modulo 2^64
        hashes = hashes * _BASE + codes[words.flat[k : k + count]]
    inside = words.owner[:count] == words.owner[size - 1 :] if count else np.zeros(0, np.bool_)
    return hashes[inside], words.owner[:count][inside]
