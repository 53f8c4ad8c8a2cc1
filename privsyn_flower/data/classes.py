"""The class of each private text, of a public list of classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from privsyn_flower.arrays import I32, I64
from privsyn_flower.data.findings import NODE_LOG
from privsyn_flower.data.values import label_of


def classes_of(
    texts: Iterable[Sequence[str]], owner: I32, users: int, labels: Sequence[str]
) -> I64:
    """The class of each row, PRIVATE: its label's place in the public list, -1 outside it.

    texts: of each of so many users, in order. owner: (n,) the user of each row, counted from 0. A
    user has a row for each text, or none at all where its texts could not be embedded.
    """
    place = {name: number for number, name in enumerate(labels)}
    rows = np.bincount(owner, minlength=users)
    found = [
        [place.get(label_of(text), -1) for text in own] if count else []
        for count, own in zip(rows, texts, strict=True)
    ]
    classes = np.array([number for own in found for number in own], dtype=np.int64)
    if outside := int((classes < 0).sum()):
        NODE_LOG.warning("%d texts are of no class that is asked about", outside)
    return classes
