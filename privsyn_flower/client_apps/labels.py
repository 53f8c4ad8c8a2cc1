"""Class-conditional questions: the public list of classes, and the class of each private text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from privsyn_flower.arrays import I32, I64
from privsyn_flower.protocol.question import MOST_CLASSES, Query


def labels_of(query: Query) -> list[str]:
    """The public class list; empty for a question without classes. Raises ValueError."""
    if "labels" not in query.options:
        return []
    try:
        labels = json.loads(str(query.options["labels"]))
    except (ValueError, RecursionError):
        raise ValueError("the labels are not a list") from None
    names = isinstance(labels, list) and all(isinstance(name, str) and name for name in labels)
    if not names or not 1 <= len(labels) <= MOST_CLASSES or len(set(labels)) != len(labels):
        raise ValueError("the labels are not distinct names")
    return list(labels)


def classes_of(texts: Iterable[Sequence[str]], owner: I32, users: int, labels: list[str]) -> I64:
    """The class of each row, PRIVATE: its label's place in the public list, -1 outside it.

    texts: of each of so many users, in order. owner: (n,) the user of each row, counted from 0. A
    user has a row for each text, or none at all where its texts could not be embedded.
    """
    from privsyn_flower.data import label_of  # loaded where texts are, not by every stage

    place = {name: number for number, name in enumerate(labels)}
    rows = np.bincount(owner, minlength=users)
    found = [
        [place.get(label_of(text), -1) for text in own] if count else []
        for count, own in zip(rows, texts, strict=True)
    ]
    return np.array([number for own in found for number in own], dtype=np.int64)
