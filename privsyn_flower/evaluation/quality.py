"""What synthetic text is like by itself and beside public text; nothing private is read.

Signals of text that nobody can use, not of its worth: whether it is like the users' text, only
held-out or released figures tell. Words are those of `units.words`: where a script has no spaces
they are cut by ICU's dictionaries. All figures come of post-processing, and cost no privacy.

The word list is English: the whole words of MiniLM's vocabulary (that of BERT, of Wikipedia and
books), which comes with the package. It counts only where public text is English by it; elsewhere
public text alone says which words there are, and a word that it lacks may well be one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import Bools
from privsyn_flower.data.word_grams import EncodedTexts, encode, grams, word_codes
from privsyn_flower.evaluation.duplicates import distinct, same_words
from privsyn_flower.text.embedders import MINILM_INT8, minilm_package, shipped
from privsyn_flower.text.fingerprints import TOKENIZER

WORD_LIST = "English (MiniLM's vocabulary)"
ENGLISH = 0.75  # share of public words in the list from which on it counts; docstrings have .86
RUN = 4  # words of the runs that are compared, as in BLEU
# Share of a text's runs that stood in it before ("seq-rep-4", Welleck et al., arXiv 1908.04319),
# above which it repeats itself: so does one docstring of 300, and one of 600 public chat messages.
REPEATED = 0.2
# Shares above which most of the text is of no use, unless public text has as much of it.
UNKNOWN, REPEATING, COPIED = 0.5, 0.5, 0.5
LENGTHS = (0.05, 0.5, 0.95)
SHOWN = 6  # texts of each kind beside each other, for a reader's first look
LONGEST = 400  # characters of each


def quality(texts: Sequence[str], public: Sequence[str]) -> dict[str, Any]:
    """Figures of synthetic texts, and of public ones beside them; {} without texts.

    texts, public_texts: how many there are. word_list: WORD_LIST where it counts, else "".
    copies: share of the texts with the very words of a public one. synthetic, public: `_figures`
    of each; what depends on the number of texts (`distinct`, `shared_runs`) is of `compared` texts
    of each, spread evenly. unknown_words: of synthetic text that is no copy, the share in neither
    public text nor list; of every second public text, what the others and the list lack. Without
    public texts `public` is {}, and there are no unknown_words.
    """
    if not texts:
        return {}
    vocabulary: dict[str, int] = {}
    ours, theirs = encode(texts, vocabulary), encode(public, vocabulary)
    names, codes = list(vocabulary), word_codes(len(vocabulary))
    spelled = np.array([name[0].isalpha() for name in names], dtype=np.bool_)
    listed = _listed(names)
    public_words = theirs.flat[spelled[theirs.flat]]
    english = len(public_words) > 0 and bool(listed[public_words].mean() >= ENGLISH)
    listed &= english
    copies = same_words(ours, theirs)
    even = np.arange(len(public)) % 2 == 0
    count = min(len(texts), len(public)) or len(texts)
    own = _figures(ours, codes, count)
    beside: dict[str, Any] = {}
    if public:
        own["unknown_words"] = _unknown(ours.of(~copies), theirs, listed, spelled)
        beside = _figures(theirs, codes, count)
        beside["unknown_words"] = _unknown(theirs.of(~even), theirs.of(even), listed, spelled)
    return {
        "texts": len(texts),
        "public_texts": len(public),
        "compared": count,
        "word_list": WORD_LIST if english else "",
        "copies": round(float(copies.mean()), 4),
        "synthetic": own,
        "public": beside,
    }


def faults(figures: Mapping[str, Any]) -> list[str]:
    """Why a run's text is of no use; nothing where it may be. figures: by `quality`."""
    if not figures:
        return []
    own, beside, reasons = figures["synthetic"], figures["public"], list[str]()
    if beside and own["unknown_words"] > max(UNKNOWN, beside["unknown_words"]):
        where = "no public text and no word list" if figures["word_list"] else "no public text"
        reasons.append(
            f"most words are not words: {own['unknown_words']:.0%} of the written words are in "
            f"{where}: models.generator does not write this language, or not with these settings"
        )
    if own["repetitive"] > max(REPEATING, beside.get("repetitive", 0.0)):
        reasons.append(
            f"most texts repeat themselves: in {own['repetitive']:.0%} of them more than "
            f"{REPEATED:.0%} of the runs of {RUN} words stood there before"
        )
    return reasons


def sentences(figures: Mapping[str, Any]) -> list[str]:
    """The faults, and what to know of texts that are mostly public ones: no fault, as votes may
    pick public texts, and a baseline is nothing else."""
    told, share = faults(figures), figures.get("copies", 0.0)
    if share > COPIED:
        told.append(
            f"most texts are copies of public text: {share:.0%} have the very words of one, and "
            "were chosen, not written"
        )
    return told


def _figures(words: EncodedTexts, codes: Any, count: int) -> dict[str, Any]:
    """repetitive: share of texts that repeat themselves. words: of a text, 5 %, median and 95 %.
    distinct: distinct runs of one, two and three words over all of them (Li et al. 2016), and
    shared_runs: share of the texts' runs of RUN words that are in another one, too; of `count`
    texts."""
    texts = len(words.lengths)
    _, owner = grams(words, codes, RUN)
    every = np.bincount(owner, minlength=texts)
    once = np.bincount(distinct(*grams(words, codes, RUN))[1], minlength=texts)
    some = np.zeros(texts, dtype=np.bool_)
    some[np.arange(count) * texts // count] = True
    part = words.of(some)
    runs = [grams(part, codes, size)[0] for size in (1, 2, 3)]
    met = np.unique(distinct(*grams(part, codes, RUN))[0], return_counts=True)[1]
    return {
        "repetitive": round(float((every - once > REPEATED * every).mean()), 4),
        "words": [int(n) for n in np.quantile(words.lengths, LENGTHS, method="nearest")],
        "distinct": [round(len(np.unique(one)) / max(1, len(one)), 4) for one in runs],
        "shared_runs": round(float(met[met > 1].sum() / max(1, met.sum())), 4),
    }


def _unknown(words: EncodedTexts, known: EncodedTexts, listed: Bools, spelled: Bools) -> float:
    """Share of the words that neither the known texts nor the list has. Numbers and emoji count
    for nothing."""
    there = listed.copy()
    there[known.flat] = True
    flat = words.flat[spelled[words.flat]]
    return round(float((~there[flat]).mean()), 4) if len(flat) else 0.0


def _listed(names: Sequence[str]) -> Bools:
    """Which words are in the list."""
    known = _word_list()
    return np.array([name in known for name in names], dtype=np.bool_)


@functools.cache
def _word_list() -> frozenset[str]:
    """MiniLM's whole words; empty where neither package that has them is installed."""
    folder = shipped(MINILM_INT8) or minilm_package()
    if folder is None:
        return frozenset()
    vocabulary = json.loads((folder / TOKENIZER).read_text("utf-8"))["model"]["vocab"]
    # Single letters are pieces of a word, but for those two.
    words = (one for one in vocabulary if len(one) > 1 or one in "ai")
    return frozenset(one for one in words if one.isascii() and one.isalpha())


def side_by_side(**columns: Sequence[str]) -> dict[str, list[str]]:
    """Of each kind of text every n-th, SHOWN at most, so that nobody picks them; longer ones are
    cut. A kind without texts is left out. columns: public texts, or released ones."""
    found = dict[str, list[str]]()
    for name, texts in columns.items():
        count = min(SHOWN, len(texts))
        if count:
            found[name] = [str(texts[n * len(texts) // count])[:LONGEST] for n in range(count)]
    return found
