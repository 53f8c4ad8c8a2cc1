"""Sizes of a data set as quantiles: POPri's Figure 9 and Table 4, LargeFedBench's tables.

Of the text that is read they are exact, so they are as PRIVATE as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from privsyn_flower.common.units import units

from .text_files import read_place
from .values import Columns

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)

Counter = Callable[[Sequence[str]], list[int]]  # texts -> the size of each


def words_of(texts: Sequence[str]) -> list[int]:
    """Words of each text, as everything here counts them."""
    return [len(units(text)) for text in texts]


def statistics(place: str, columns: Columns, tokens: Counter | None = None) -> dict[str, Any]:
    """Users, texts and labels of a file or a `hub:` data set, and quantiles of their sizes.

    tokens: counts them, where they are wanted. Raises DataError for what cannot be read.
    """
    users = read_place(place, columns)
    texts = [[sample.text for sample in own] for own in users.values()]
    sizes = {"texts_per_user": quantiles(map(len, texts))}
    for name, count in (("words", words_of), ("tokens", tokens)):
        if count is not None:
            each = [count(own) if own else [] for own in texts]
            sizes[f"{name}_per_text"] = quantiles(chain.from_iterable(each))
            sizes[f"{name}_per_user"] = quantiles(map(sum, each))
    labels = sorted({sample.label for own in users.values() for sample in own} - {""})
    return {"users": len(users), "texts": sum(map(len, texts)), "labels": len(labels), **sizes}


def quantiles(counts: Iterable[int]) -> dict[str, float]:
    """Mean, standard deviation and QUANTILES of some counts; {} of none."""
    found = np.fromiter(counts, dtype=np.float64)
    if not len(found):
        return {}
    each = zip(QUANTILES, np.quantile(found, QUANTILES).tolist(), strict=True)
    told = {"mean": float(found.mean()), "std": float(found.std())}
    return told | {f"{100 * share:g}%": value for share, value in each}
