"""The filter of `proximity` as a job: a folder of scores that goes on after a kill, and a file.

    SCORES/about.json      what the scores are of
    SCORES/000000.npy ...  (3, n) of each block: unknown, before, after
    TARGET                 the kept texts, one JSON object a line, with their three numbers

Scores stay, so that other thresholds take no model. All of it is public, and carries the epsilon of
the model's training.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.public.proximity import (
    BLOCK,
    TextScores,
    Thresholds,
    keep,
    score_texts,
    together,
)
from privsyn_flower.arrays import Bools
from privsyn_flower.files import write_atomic
from privsyn_flower.progress import Progress, silent
from privsyn_flower.text.fingerprints import folder_fingerprint

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
    return {**_figures(pool, table, kept), "thresholds": _told(thresholds, table)}


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
    return together(blocks)


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


def _lines(pool: Pool, table: TextScores, kept: Bools) -> Iterator[bytes]:
    numbers = np.stack(table, axis=1)
    for row, own, chosen in zip(pool.rows(), numbers.tolist(), kept.tolist(), strict=True):
        if chosen:
            told = dict(zip(TextScores._fields, (round(value, 6) for value in own), strict=True))
            yield f"{json.dumps({**row, **told}, ensure_ascii=False)}\n".encode()


def _figures(pool: Pool, table: TextScores, kept: Bools) -> dict[str, Any]:
    """Texts and bytes of all and of what is kept, also by `pool.by`; mean scores of both."""
    texts, sizes = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for row, chosen in zip(pool.rows(), kept.tolist(), strict=True):
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

    told = counts("")
    if groups := sorted({group for group, _ in texts} - {""}):
        told["by"] = {group: counts(group) for group in groups}  # type: ignore[assignment]
    return {
        **told,
        "unscored": int(np.isnan(table.before).sum()),
        "mean_before": _means(table.before, kept),
        "mean_after": _means(table.after, kept),
    }


def _means(scores: Any, kept: Bools) -> dict[str, float | None]:
    """Nats of a token, over all texts that have a score and over those kept."""

    def mean(values: Any) -> float | None:
        told = values[~np.isnan(values)]
        return round(float(told.mean()), 6) if len(told) else None

    return {"of": mean(scores), "kept": mean(scores[kept])}


def _told(thresholds: Thresholds, table: TextScores) -> dict[str, Any]:
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
