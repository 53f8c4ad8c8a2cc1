"""Exact and near duplicates: two texts are near duplicates when they share 13 words in a row.

Thirteen is the length used to look for overlap between training and test text since GPT-3
(Brown et al. 2020, arXiv 2005.14165, appendix C). Words are those of `units.words`: lower-cased
and without punctuation, in every script. A text of fewer than 13 words is a duplicate only of the
same words.

The rule for removals is "first come": texts are offered in the order of their priority (test,
development, private, public) and a text is refused when any of its 13-grams belongs to a text
accepted before it. So text is always removed from the side of lower priority. Whole users are
kept where possible because users are filled after removal: a refused text is replaced by the
next one of the same user (`partition.py`), and only a user left with too few is not enrolled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privsyn_flower.common.arrays import I64, U64
from privsyn_flower.common.units import words as words_of

from .word_grams import encode, grams, word_codes

GRAM = 13


class NearDuplicates:
    """Which texts may still be taken without sharing a 13-gram with one taken before.

    Built once over all texts (any iterable of sides concatenated), so that each `take` is a
    look-up of a few integers: 160,000 samples of 45 words take seconds, not minutes.
    """

    def __init__(self, texts: Sequence[str], gram: int = GRAM) -> None:
        grams, self._start = _gram_hashes(texts, gram)
        unique, self._gram = np.unique(grams, return_inverse=True)
        self._taken = np.zeros(len(unique), dtype=np.bool_)

    def take(self, index: int) -> bool:
        """Take text `index` (of the constructor's order); False, and nothing changes, if a
        13-gram of it is taken already. A text of white space alone is never taken."""
        ids = self._gram[self._start[index] : self._start[index + 1]]
        if not ids.size or self._taken[ids].any():
            return False
        self._taken[ids] = True
        return True

    def release(self, index: int) -> None:
        """Undo a successful `take(index)`."""
        self._taken[self._gram[self._start[index] : self._start[index + 1]]] = False


def keep_first(sides: Sequence[Sequence[str]], gram: int = GRAM) -> list[list[int]]:
    """Indices of the texts to keep on each side; sides in order of priority, first wins."""
    near = NearDuplicates([text for side in sides for text in side], gram)
    kept, offset = [], 0
    for side in sides:
        kept.append([i for i in range(len(side)) if near.take(offset + i)])
        offset += len(side)
    return kept


def keep_own(texts: Sequence[str], gram: int = GRAM) -> list[int]:
    """`keep_first` of one user's few texts, without hashes: exact, and sooner done."""
    kept: list[int] = []
    taken: set[tuple[str, ...]] = set()
    for i, text in enumerate(texts):
        words = tuple(words_of(text))
        if not words:
            continue
        own = {words[k : k + gram] for k in range(max(1, len(words) - gram + 1))}
        if taken.isdisjoint(own):
            taken |= own
            kept.append(i)
    return kept


def _gram_hashes(texts: Sequence[str], gram: int) -> tuple[U64, I64]:
    """64-bit hashes of every text's word n-grams, flat, and where each text's begin (n + 1,).

    A text with fewer words than `gram` has one hash, of all its words. A chance collision
    (about 1e-6 over ten million grams) would at worst remove one text too many.
    """
    vocabulary: dict[str, int] = {}
    words = encode(texts, vocabulary)
    codes = word_codes(len(vocabulary))
    runs = [grams(words, codes, gram)]
    runs += [grams(words.of(words.lengths == size), codes, size) for size in range(1, gram)]
    hashes, owner = map(np.concatenate, zip(*runs, strict=True))
    counts = np.bincount(owner, minlength=len(texts))
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return hashes[np.argsort(owner, kind="stable")], start
