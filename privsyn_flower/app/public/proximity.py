"""Which public texts are near the private ones, as a privately trained model tells it.

"Prompt public LLMs to synthesize data for private on-device applications", section 5: three numbers
of each text, by the model before and after its private training, and three conditions on them.
Only the model knows anything of the users, so this is post-processing of its training: it costs no
privacy, and what is kept carries the training's epsilon.

`filter_pool` is that as a job: a folder of scores that goes on after a kill, and a file.

    SCORES/about.json      what the scores are of
    SCORES/000000.npy ...  (3, n) of each block: unknown, before, after
    TARGET                 the kept texts, one JSON object a line, with their three numbers

Scores stay, so that other thresholds take no model.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privsyn_flower.common.arrays import F64, Bools
from privsyn_flower.common.files import write_atomic
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.lm_metrics import (
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


def concatenate(blocks: Iterable[TextScores]) -> TextScores:
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


Row = Mapping[str, Any]  # a public text under "text", and what is known of it

ABOUT = "about.json"


class OtherScores(ValueError):
    """The folder has scores of other texts, models or lengths; the text says so."""


@dataclass(frozen=True)
class Pool:
    """Public texts that can be read from the start more than once.

    rows: opens them. count: how many. digest: of their content, in their order. by: a key of each
    row that the figures are told by, "stage" for one; "": none.
    """

    rows: Callable[[], Iterable[Row]]
    count: int
    digest: str
    by: str = ""


@dataclass(frozen=True)
class Pair:
    """The model before and after its private training, and how texts are measured by them.

    length: tokens of a text that are looked at.
    """

    before: Path
    after: Path
    length: int
    device: str = "auto"


def filter_pool(
    pool: Pool,
    models: Pair,
    thresholds: Thresholds,
    target: Path,
    scores: Path,
    progress: Progress = silent,
    claimed: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Write the kept rows of `pool` to `target`, and return the figures of it.

    scores: folder of the blocks, as far as they were made before; one process at a time. claimed:
    called once it is known to be of these texts and models, before anything else is written. Raises
    OtherScores when they are of something else, and as `score_texts` does.
    """
    table = _all_scores(pool, models, scores, progress, claimed)
    kept = keep(table, thresholds)
    write_atomic(target, _lines(pool, table, kept))
    return {**_figures(pool, table, kept), "thresholds": _applied(thresholds, table)}


def _all_scores(
    pool: Pool, models: Pair, folder: Path, progress: Progress, claimed: Callable[[], None]
) -> TextScores:
    """The scores of the whole pool; a block that is there is not made again."""
    about = {
        "texts": pool.digest,
        "before": folder_fingerprint(models.before),
        "after": folder_fingerprint(models.after),
        "length": models.length,
        "block": BLOCK,
    }
    _check(folder, about)
    blocks: list[TextScores] = []
    while (path := _place(folder, len(blocks))).exists():
        blocks.append(TextScores(*np.load(path, allow_pickle=False)))
    done = sum(len(block.unknown) for block in blocks)
    if done >= pool.count:
        claimed()
    else:
        rest = (str(row["text"]) for row in islice(pool.rows(), done, None))
        made = score_texts(
            rest, models.before, models.after, length=models.length, device=models.device,
            progress=progress, done=done, total=pool.count,
        )  # fmt: skip
        # The models can be compared: from here on the folder is theirs.
        write_atomic(folder / ABOUT, json.dumps(about, indent=2).encode())
        claimed()
        for block in made:
            buffer = io.BytesIO()
            np.save(buffer, np.stack(block))
            write_atomic(_place(folder, len(blocks)), buffer.getvalue())
            blocks.append(block)
    return concatenate(blocks)


def _check(folder: Path, about: Mapping[str, Any]) -> None:
    """Raises OtherScores for a folder that has scores of something else."""
    path = folder / ABOUT
    found = json.loads(path.read_text("utf-8")) if path.exists() else about
    if found != about:
        differing = ", ".join(sorted(key for key in about if found.get(key) != about[key]))
        raise OtherScores(
            f"{folder} has scores that differ in: {differing}. Name another folder, or delete it"
        )


def _place(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npy"


def _lines(pool: Pool, table: TextScores, selection: Bools) -> Iterator[bytes]:
    numbers = np.stack(table, axis=1)
    for row, own, chosen in zip(pool.rows(), numbers.tolist(), selection.tolist(), strict=True):
        if chosen:
            scores = dict(zip(TextScores._fields, (round(value, 6) for value in own), strict=True))
            yield f"{json.dumps({**row, **scores}, ensure_ascii=False)}\n".encode()


def _figures(pool: Pool, table: TextScores, selection: Bools) -> dict[str, Any]:
    """Texts and bytes of all and of what is kept, also by `pool.by`; mean scores of both."""
    texts, sizes = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for row, chosen in zip(pool.rows(), selection.tolist(), strict=True):
        for group in {"", str(row.get(pool.by, "")) if pool.by else ""}:
            texts[group, chosen] += 1
            sizes[group, chosen] += len(str(row["text"]).encode())

    def counts(group: str) -> dict[str, int]:
        return {
            "kept": texts[group, True],
            "of": texts[group, True] + texts[group, False],
            "bytes_kept": sizes[group, True],
            "bytes_of": sizes[group, True] + sizes[group, False],
        }

    figures = counts("")
    if groups := sorted({group for group, _ in texts} - {""}):
        figures["by"] = {group: counts(group) for group in groups}  # type: ignore[assignment]
    return {
        **figures,
        "unscored": int(np.isnan(table.before).sum()),
        "mean_before": _means(table.before, selection),
        "mean_after": _means(table.after, selection),
    }


def _means(scores: Any, selection: Bools) -> dict[str, float | None]:
    """Nats of a token, over all texts that have a score and over those kept."""

    def mean(values: Any) -> float | None:
        known = values[~np.isnan(values)]
        return round(float(known.mean()), 6) if len(known) else None

    return {"of": mean(scores), "kept": mean(scores[selection])}


def _applied(thresholds: Thresholds, table: TextScores) -> dict[str, Any]:
    """The thresholds as they were applied."""
    return {
        "most_unknown": thresholds.most_unknown,
        "least_score": round(thresholds.least(table.before), 6),
        "least_quantile": thresholds.least_quantile,
        "gain": thresholds.gain,
    }


def shares(figures: Mapping[str, Any], group: str) -> dict[str, float]:
    """The share of a group's texts among all before the filter, and among the kept after it."""
    own = figures["by"].get(group, {"kept": 0, "of": 0})
    return {
        "before": round(own["of"] / max(1, figures["of"]), 6),
        "after": round(own["kept"] / max(1, figures["kept"]), 6),
    }


def digest_of(texts: Sequence[str]) -> str:
    """Of texts that are in memory: what `Pool.digest` is of."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
