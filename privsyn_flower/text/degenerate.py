"""Which generated texts are degenerate: loops, noise, no words at all.

Source: the filter of CTCL's published code (Tan et al. 2025), which the paper does not describe.
It tells words from punctuation as a tokenizer of English does, within the units of `units`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter

from privsyn_flower.units import marks, spaced

LONGEST_WORD = 25  # characters; a longer one is a run of letters, or a path
MOST_REPEATS = 20  # of one word in one text
# They repeat in any long text.
FREQUENT = frozenset(("the", "a", ",", ".", "的", "の", "、", "，", "。"))


def degenerate(text: str) -> bool:
    """Whether a text has no word of letters, a word of more than 25 characters, or a word that is
    not in FREQUENT and occurs more than 20 times, upper and lower case alike."""
    counts = Counter(_words().findall(spaced(text.lower())))
    if not any(_bare().sub("", word).isalpha() for word in counts):
        return True
    if any(len(word) > LONGEST_WORD for word in counts):
        return True
    return any(n > MOST_REPEATS for word, n in counts.items() if word not in FREQUENT)


@functools.cache
def _words() -> re.Pattern[str]:
    """A word may go on after one of '-./ and a mark by itself is a word: "3.5", "well-known"."""
    letter = rf"[\w{marks()}]"
    return re.compile(rf"{letter}+(?:['’\-./]{letter}+)*|[^\w\s]")


@functools.cache
def _bare() -> re.Pattern[str]:
    """What may stand in a word of letters beside them."""
    return re.compile(rf"[{marks()}'’\-]")
