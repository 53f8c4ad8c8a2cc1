"""Copies: the longest run of tokens that a synthetic text shares with some text of a set.

A token is a word, and in a script written without spaces a character. Spans are found exactly, by a
suffix array of all texts (Manber and Myers 1993, by prefix doubling): the longest common prefix of
a suffix with a set's suffixes is that with one of its two neighbours among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from privsyn_flower.app.inspect.texts import Texts
from privsyn_flower.common.arrays import I64, Bools
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.terminal import one_line
from privsyn_flower.common.units import unspaced, words

QUANTILES = (0.5, 0.9, 0.99, 1.0)
BINS = (0, 1, 4, 8, 12, 16, 24, 32)  # tokens: the least of each bin of the histogram
SHOWN = 5  # longest spans that are quoted


def tokens(text: str) -> list[str]:
    """Words as they are compared (`units.words`), those of a script without spaces by character."""
    found = words(text)
    if not unspaced(text):
        return found
    return [part for word in found for part in (word if unspaced(word) else [word])]


class SpanIndex:
    """All texts of both sides in one suffix array. ours, theirs: texts as tokens.

    Memory: about 8 bytes a token for each doubling of the longest text's length.
    """

    def __init__(self, ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> None:
        self.count = len(ours)
        flat, self.owner = _flat([*ours, *theirs])
        starts = np.searchsorted(self.owner, np.arange(len(ours) + 1))
        self.starts, self.theirs = starts, self.owner >= self.count
        longest = int(np.bincount(self.owner).max(initial=1)) if len(flat) else 1
        self.levels = [_ranked(flat)]
        while 1 << (len(self.levels) - 1) < longest:  # then no two suffixes are alike
            reach, last = 1 << (len(self.levels) - 1), self.levels[-1]
            after = np.full(len(last), -1, dtype=np.int64)
            after[:-reach] = last[reach:]
            self.levels.append(_ranked(last * (len(flat) + 1) + after + 1))
        self.order: I64 = np.argsort(self.levels[-1], kind="stable")

    def longest(self, chosen: Bools) -> tuple[I64, I64]:
        """Of each of our texts the longest run of tokens that a chosen one of theirs has, too, and
        the place in the text where it begins: both (m,). chosen: (n,), which of theirs."""
        return self._best(self._spans(chosen))

    def excess(self, chosen: Bools) -> I64:
        """Of each of our texts by how many tokens a run that a chosen one of theirs has is longer
        than that which begins at the same place in one not chosen, at the best place: (m,)."""
        return self._best(self._spans(chosen) - self._spans(~chosen))[0]

    def _spans(self, chosen: Bools) -> I64:
        """Of each of our tokens the longest run from there that a chosen one of theirs has."""
        wanted = np.concatenate([np.zeros(self.count, np.bool_), chosen])[self.owner]
        spans: I64 = np.maximum(*(self._common(each) for each in self._neighbours(wanted)))
        return spans

    def _best(self, spans: I64) -> tuple[I64, I64]:
        lengths, places = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        for text in range(self.count):
            own = spans[self.starts[text] : self.starts[text + 1]]
            places[text] = own.argmax()
            lengths[text] = own[places[text]]
        return lengths, places

    def _neighbours(self, wanted: Bools) -> tuple[I64, I64]:
        """Of each of our tokens' suffixes the nearest wanted one before and after it in order; -1:
        none."""
        size = len(self.order)
        at, here = np.arange(size), wanted[self.order]
        before = np.maximum.accumulate(np.where(here, at, -1))
        after = np.minimum.accumulate(np.where(here, at, size)[::-1])[::-1]
        padded = np.append(self.order, -1)  # -1 and size both lead there
        rank = self.levels[-1][: self.starts[-1]]
        return padded[before[rank]], padded[after[rank]]

    def _common(self, others: I64) -> I64:
        """Length of the longest common prefix of each of our suffixes with another's suffix."""
        found, size = np.zeros(len(others), np.int64), len(self.order)
        for level in range(len(self.levels) - 1, -1, -1):
            mine, other = np.arange(len(others)) + found, others + found
            inside = (others >= 0) & (mine < size) & (other < size)
            ranks = self.levels[level]
            same = ranks[np.where(inside, mine, 0)] == ranks[np.where(inside, other, 0)]
            found += np.where(inside & same, 1 << level, 0)
        return found


def _flat(texts: Sequence[Sequence[str]]) -> tuple[I64, I64]:
    """Texts as numbers, a number of its own behind each so that no run goes on in the next; and the
    text of each number."""
    vocabulary: dict[str, int] = {}
    flat: list[int] = []
    for place, text in enumerate(texts):
        flat += [vocabulary.setdefault(token, len(vocabulary)) for token in text]
        flat.append(-1 - place)
    sizes = [len(text) + 1 for text in texts]
    return np.array(flat, dtype=np.int64), np.repeat(np.arange(len(texts)), sizes)


def _ranked(values: I64) -> I64:
    """The place of each among the distinct ones."""
    ranks: I64 = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return ranks


def measure(texts: Texts, progress: Progress = silent) -> dict[str, Any]:
    """Distributions over synthetic texts of the longest span in common, and the longest. PRIVATE.

    "private": with all private users' texts. With held-out users, "equal" and "held_out" are with
    as many private and held-out users, drawn once where one side has more: what more text shares by
    chance is then no difference.
    """
    groups = [*texts.private.values(), *texts.held_out.values()]
    owners = np.repeat(np.arange(len(groups)), [len(own) for own in groups])
    ours = [tokens(text) for text in texts.synthetic]
    theirs = [text for own in groups for text in own]
    index = SpanIndex(ours, [tokens(text) for text in theirs])
    mine = len(texts.private)
    lengths, places = index.longest(owners < mine)
    figures: dict[str, Any] = {
        "unspaced_texts": sum(map(unspaced, texts.synthetic)),
        "private": _distribution(lengths, mine),
    }
    if texts.held_out:
        size, rng = min(mine, len(texts.held_out)), seeded(0, "inspect copies")
        for name, first, count in (("equal", 0, mine), ("held_out", mine, len(texts.held_out))):
            drawn = first + rng.choice(count, size, replace=False)
            figures[name] = _distribution(index.longest(np.isin(owners, drawn))[0], size)
    best = np.argsort(-lengths, kind="stable")[:SHOWN]
    figures["longest"] = [
        {"row": int(row), "tokens": int(lengths[row]),
         "span": " ".join(ours[row][places[row] : places[row] + lengths[row]])}
        for row in best if lengths[row]
    ]  # fmt: skip
    return figures


def _distribution(lengths: I64, users: int) -> dict[str, Any]:
    """users: whose texts the spans are in common with."""
    quantiles = np.quantile(lengths, QUANTILES, method="higher")
    bins = np.histogram(lengths, [*BINS, np.inf])[0]
    return {
        "users": users,
        "quantiles": {f"{q:g}": int(v) for q, v in zip(QUANTILES, quantiles, strict=True)},
        "texts_by_least_tokens": {str(least): int(n) for least, n in zip(BINS, bins, strict=True)},
    }


def described(figures: dict[str, Any]) -> list[str]:
    """Lines for the terminal; PRIVATE."""
    lines = ["longest span of a synthetic text in common, in tokens:"]
    names = {
        "private": "all private users",
        "equal": "private, in equal numbers",
        "held_out": "held-out, in equal numbers",
    }
    for name in (one for one in names if one in figures):
        own = figures[name]
        shares = ", ".join(f"{float(q):.0%}: {n}" for q, n in own["quantiles"].items())
        lines.append(f"  {names[name]} ({own['users']:,}): quantiles {shares}")
    bins = " ".join(f"{least:>6}+" for least in BINS)
    lines.append(f"  {'synthetic texts by that length':<32}{bins}")
    for name in (one for one in names if one in figures):
        counts = " ".join(f"{n:>7}" for n in figures[name]["texts_by_least_tokens"].values())
        lines.append(f"  {names[name]:<32}{counts}")
    lines += [
        f"  text {one['row'] + 1}: {one['tokens']} tokens: {one_line(one['span'])}"
        for one in figures["longest"]
    ]
    if figures["unspaced_texts"]:
        lines.append(
            f"  of a script without spaces, a character is a token ({figures['unspaced_texts']:,} "
            "synthetic texts have some)"
        )
    return lines
