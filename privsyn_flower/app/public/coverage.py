"""How much of a vocabulary occurs in a text (Gboard paper, section 3.3, Table 2).

A word that occurs in no text of the pre-training has an embedding that nothing was learned for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from privsyn_flower.text.words import Vocabulary
from privsyn_flower.units import spaced

MOST_KNOWN = 2**20  # pieces of text that are known by heart, to read each once


def coverage(texts: Iterable[str], vocabulary: Vocabulary) -> float:
    """The share of the vocabulary's words that occur in the texts, which are read as a stream."""
    return len(occurring(texts, vocabulary)) / len(vocabulary)


def occurring(texts: Iterable[str], vocabulary: Vocabulary) -> set[int]:
    """The places of the vocabulary's words that occur.

    When all that can have done so, no more is read.
    """
    found = set[int]()
    most = len(vocabulary) - len(vocabulary.unreachable())
    for ids in vocabulary.ids(_news(texts)):
        found.update(ids)
        found.discard(-1)
        if len(found) == most:
            break
    return found


def _news(texts: Iterable[str]) -> Iterator[str]:
    """What is between the spaces of each text and was not met lately: no word has a space."""
    known = set[str]()
    for text in texts:
        fresh = set(spaced(text).split(" ")) - known
        if len(known) > MOST_KNOWN:
            known.clear()
        known |= fresh
        if fresh:
            yield " ".join(fresh)


def unknown_rate(text: str, vocabulary: Vocabulary) -> float:
    """The share of a text's words that are not in the vocabulary; 1.0 of a text without words."""
    (ids,) = vocabulary.ids([text])
    return ids.count(-1) / len(ids) if ids else 1.0
