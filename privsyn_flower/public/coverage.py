"""How much of a vocabulary occurs in a text (Gboard paper, section 3.3, Table 2).

A word that occurs in no text of the pre-training has an embedding that nothing was learned for.
"""

from __future__ import annotations

from collections.abc import Iterable

from privsyn_flower.text.words import Vocabulary


def coverage(texts: Iterable[str], vocabulary: Vocabulary) -> float:
    """The share of the vocabulary's words that occur in the texts, which are read as a stream.

    It stops reading when every word that can occur has done so.
    """
    missing = set(range(len(vocabulary)))
    never = len(vocabulary.unreachable())
    for ids in vocabulary.ids(texts):
        missing.difference_update(ids)
        if len(missing) == never:
            break
    return 1 - len(missing) / len(vocabulary)


def unknown_rate(text: str, vocabulary: Vocabulary) -> float:
    """The share of a text's words that are not in the vocabulary; 1.0 of a text without words."""
    (ids,) = vocabulary.ids([text])
    return ids.count(-1) / len(ids) if ids else 1.0
