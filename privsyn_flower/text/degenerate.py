"""Which generated texts are degenerate: loops, noise, no words at all.

Source: the filter of CTCL's published code (Tan et al. 2025), which the paper does not describe.
It tells words from punctuation as a tokenizer of English does; in languages without spaces every
clause is one long word, so there it is to be switched off (`ctcl.filter`).
"""

from __future__ import annotations

import re
from collections import Counter

LONGEST_WORD = 25  # characters; a longer one is a run of letters, or a path
MOST_REPEATS = 20  # of one word in one text
FREQUENT = frozenset(("the", "a", ",", "."))  # repeat in any long text
# A word may go on after one of '-./ and a mark by itself is a word: "3.5", "well-known", "(".
_WORDS = re.compile(r"\w+(?:['’\-./]\w+)*|[^\w\s]")


def degenerate(text: str) -> bool:
    """Whether a text has no word of letters, a word of more than 25 characters, or a word other
    than "the", "a", "," and "." that occurs more than 20 times, upper and lower case alike."""
    counts = Counter(_WORDS.findall(text.lower()))
    if not any(re.sub("['’-]", "", word).isalpha() for word in counts):
        return True
    if any(len(word) > LONGEST_WORD for word in counts):
        return True
    return any(n > MOST_REPEATS for word, n in counts.items() if word not in FREQUENT)
