"""Whether what a run has made is of any use: an empty or unreadable result is no success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.units import words

UNKNOWN = 0.5  # share of words that public text does not have, above which a text is unreadable


def unreadable(texts: Sequence[str], public: Sequence[str]) -> str:
    """Why texts are no texts of the language of public ones, which nobody reads; "" where they may
    be. What public text lacks of its own other half is no fault."""
    share = _unknown(texts, public)
    natural = _unknown(public[1::2], public[::2])
    if share <= max(UNKNOWN, natural):
        return ""
    return (
        f"{share:.0%} of the written words are in no public text: models.generator does not write "
        "this language, or not with these settings"
    )


def _unknown(texts: Sequence[str], known: Sequence[str]) -> float:
    """Share of the texts' words that the known ones do not have; 0 where there are none."""
    vocabulary = {word for text in known for word in words(text)}
    found = [word in vocabulary for text in texts for word in words(text)]
    return 1 - sum(found) / len(found) if found and vocabulary else 0.0


def nothing_predicted(benchmark: Mapping[str, Any]) -> str:
    """Why a benchmark tells nothing; "" where it does."""
    accuracies = benchmark.get("accuracy", {})
    if not accuracies or any(accuracies.values()):
        return ""
    return (
        f"the benchmark's accuracy is 0 for all {len(accuracies)} models, before and after: "
        "models.downstream learns nothing of this text"
    )
