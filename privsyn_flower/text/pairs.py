"""Public texts -> (condition, text) pairs that a conditional generator learns from.

CTCL describes every public document by an instruction LLM (Tan et al. 2025, section 3.1;
`described.py`). These pairs need none: the keywords are the text's own most telling words, or
those of the texts around it, as after the private fine-tuning the condition is that of a topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from privsyn_flower.randomness import seeded
from privsyn_flower.text.conditions import Pair, condition
from privsyn_flower.text.keywords import class_words, text_words, word_frequencies

WORDS = (5, 10)  # fewest and most keywords of a condition
UNTOLD = 0.1  # share of the pairs that say nothing of the text
OWN = 0.5  # of the others: the words are the text's own; else half the group's, half the area's
TYPED = 0.5  # of those in a group with a name: it is told as the type of document
AREA = 16  # neighbouring groups whose words are taken together

Whose = Literal["own", "group", "area"]


class PairSource:
    """Pairs of groups of public texts (a group: texts of one module or author, near its like).

    names: of each group, told as its type of document; "" or no names: not told. words: fewest
    and most keywords of a condition. Raises ValueError for other bounds or lengths.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[str]],
        names: Sequence[str] | None = None,
        words: tuple[int, int] = WORDS,
    ) -> None:
        if not 1 <= words[0] <= words[1]:
            raise ValueError(f"words = {words}: at least 1, and the second not below the first")
        if names is not None and len(names) != len(groups):
            raise ValueError(f"{len(names)} names for {len(groups)} groups")
        self._groups, self._words = groups, words
        self._names = names if names is not None else [""] * len(groups)
        self._frequencies = word_frequencies([text] for group in groups for text in group)
        areas = [
            [text for group in groups[first : first + AREA] for text in group]
            for first in range(0, len(groups), AREA)
        ]
        self._group_words = class_words(groups, words[1])
        self._area_words = class_words(areas, words[1])

    def keywords(self, group: int, text: str, whose: Whose, count: int = WORDS[1]) -> list[str]:
        """At most `count` words of a text of this group, of its group, or of its area."""
        if whose == "own":
            return list(text_words(text, self._frequencies, count))
        found = self._group_words[group] if whose == "group" else self._area_words[group // AREA]
        return list(found[:count])

    def draw(self, seed: int, groups: Sequence[int] | None = None) -> list[Pair]:
        """A pair of every text of these groups (None: of all), in order.

        Another seed draws other conditions.
        """
        rng = seeded(seed, "pairs")
        chosen = range(len(self._groups)) if groups is None else groups
        return [
            Pair(self._condition(group, text, rng), text)
            for group in chosen
            for text in self._groups[group]
        ]

    def _condition(self, group: int, text: str, rng: np.random.Generator) -> str:
        told, who, typed = rng.random(3)
        count = int(rng.integers(self._words[0], self._words[1], endpoint=True))
        if told < UNTOLD:
            return ""
        whose: Whose = "own" if who < OWN else "group" if who < (1 + OWN) / 2 else "area"
        name = self._names[group] if typed < TYPED else ""
        return condition(self.keywords(group, text, whose, count), name)


def public_pairs(
    groups: Sequence[Sequence[str]],
    names: Sequence[str] | None = None,
    *,
    seed: int = 0,
    words: tuple[int, int] = WORDS,
) -> list[Pair]:
    """One pair of every public text, in order. See `PairSource`."""
    return PairSource(groups, names, words).draw(seed)
