"""A few public texts, seeds and written texts beside each other, for a reader's first look."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 6  # texts of each kind
LONGEST = 400  # characters of a text


def side_by_side(**columns: Sequence[str]) -> dict[str, list[str]]:
    """Of each kind of text every n-th, SHOWN at most, so that nobody picks them; longer ones are
    cut. A kind without texts is left out. columns: public texts, or released ones."""
    found = dict[str, list[str]]()
    for name, texts in columns.items():
        count = min(SHOWN, len(texts))
        if count:
            found[name] = [str(texts[n * len(texts) // count])[:LONGEST] for n in range(count)]
    return found
