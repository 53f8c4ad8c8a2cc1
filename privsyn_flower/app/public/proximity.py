"""Which public texts are near the private ones, as a privately trained model tells it.

"Prompt public LLMs to synthesize data for private on-device applications", section 5: three numbers
of each text, by the model before and after its private training, and three conditions on them.
Only the model knows anything of the users, so this is post-processing of its training: it costs no
privacy, and what is kept carries the training's epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from privsyn_flower.arrays import F64, Bools
from privsyn_flower.progress import Progress, silent
from privsyn_flower.text.models.likelihoods import (
    TOKEN_CHARACTERS,
    Likelihoods,
    same_tokenizer,
    unknown_rates,
)

BLOCK = 4096  # texts that are tokenised, measured and told together
STAGE = "proximity"  # in the progress


class TextScores(NamedTuple):
    """Three numbers of each of n texts, (n,) each; NaN for a text in which nothing is predicted.

    unknown: share of its tokens outside of the vocabulary. before, after: mean log-likelihood of a
    token (natural logarithm, at most 0), by the model before and after its private training.
    Unknown words count in all three, as the word that stands for them.
    """

    unknown: F64
    before: F64
    after: F64


@dataclass(frozen=True)
class Thresholds:
    """The conditions under which a text is kept (Gboard paper, section 5 and appendix C.2).

    most_unknown: largest `TextScores.unknown`. least_score: smallest `after`. The paper prints its
    threshold as 5, tuned over 6, 5 and 4; a mean log-likelihood has no positive value, so this is
    read as -5 of -6, -5 and -4. It belongs to the paper's vocabulary of 30,000 words.
    least_quantile: above 0, the least score is that quantile of all texts' `before` instead. gain:
    the private training must not have made the text less likely. Raises ValueError for a number
    out of bounds.
    """

    most_unknown: float = 0.6
    least_score: float = -5.0
    least_quantile: float = 0.0
    gain: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.most_unknown <= 1:
            raise ValueError(f"most-unknown = {self.most_unknown} must be from 0 to 1: a share")
        if not -math.inf < self.least_score <= 0:
            raise ValueError(
                f"least-score = {self.least_score} must be finite and at most 0: a mean "
                "log-likelihood is never positive (the paper's 5 is -5)"
            )
        if not 0 <= self.least_quantile < 1:
            raise ValueError(f"least-quantile = {self.least_quantile} must be from 0 to below 1")

    def least(self, before: F64) -> float:
        """The least score (nats of a token) for texts of these scores `before`, (n,)."""
        if not self.least_quantile:
            return self.least_score
        told = before[~np.isnan(before)]
        return float(np.quantile(told, self.least_quantile)) if len(told) else 0.0


def keep(scores: TextScores, thresholds: Thresholds) -> Bools:
    """The scores of all n texts -> (n,), which of them are kept. Each condition holds at its bound;
    a text in which nothing is predicted is never kept."""
    kept: Bools = scores.unknown <= thresholds.most_unknown
    kept = kept & (scores.after >= thresholds.least(scores.before))
    return kept & (scores.after >= scores.before) if thresholds.gain else kept


def together(blocks: Iterable[TextScores]) -> TextScores:
    """The scores of all blocks, in order; of none without blocks."""
    columns = list(zip(*blocks, strict=True))
    return TextScores(*map(np.concatenate, columns)) if columns else TextScores(*np.zeros((3, 0)))


def score_texts(
    texts: Iterable[str],
    before: Path,
    after: Path,
    *,
    length: int,
    device: str = "auto",
    progress: Progress = silent,
    done: int = 0,
    total: int = 0,
) -> Iterator[TextScores]:
    """Texts -> their scores, as they come, in blocks of BLOCK and one smaller.

    before, after: folders of causal language models with one tokenizer, which reads each text once.
    length: tokens of a text that are looked at, the special ones counted. done, total: texts for
    the progress, where `texts` are the rest of more. A block's scores depend on its own texts
    alone. Raises, before it reads a text, ModelUnavailableError for a folder that is no model, and
    ValueError for two tokenizers and a length below 2.
    """
    if length < 2:
        raise ValueError(f"length = {length} must be at least 2: the first token is not predicted")
    models = Likelihoods(before, device), Likelihoods(after, device)
    if not same_tokenizer(*(model.tokenizer for model in models)):
        raise ValueError(
            f"{before} and {after} have different tokenizers: likelihoods of a token are compared "
            "between a model and what was trained from it"
        )
    total = total or (done + len(texts) if isinstance(texts, Sized) else 0)
    # Cut as they come: a whole block of long texts is much memory.
    short = (text[: length * TOKEN_CHARACTERS] for text in texts)
    return _scored(short, models, length, progress, done, total)


def _scored(
    texts: Iterator[str],
    models: tuple[Likelihoods, Likelihoods],
    length: int,
    progress: Progress,
    done: int,
    total: int,
) -> Iterator[TextScores]:
    while block := list(islice(texts, BLOCK)):
        yield _block(block, models, length)
        done += len(block)
        progress(STAGE, done, max(total, done))


def _block(
    texts: Sequence[str], models: tuple[Likelihoods, Likelihoods], length: int
) -> TextScores:
    rows = models[0].encode(texts, length)
    unknown = unknown_rates(models[0].tokenizer, rows)
    return TextScores(unknown, *(model.means(rows) for model in models))
