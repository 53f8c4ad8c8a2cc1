"""New LSTMs for the benchmark: what the text that the filter kept is worth, and why.

Gboard paper, section 5, Tables 4 and 7: a new model is trained from scratch on what is left and
compared with one of all the text. Two more tell what the difference is due to: one of a random
subset as large, and one of what a model trained on noise alone keeps. All have the start's words,
shape and first weights, and take as many steps. Everything here is public, or made of the trained
models: private text is opened by who measures them (`benchmark`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import build_folder
from privsyn_flower.common.progress import Progress
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.methods.proximity import (
    FILE,
    MINORITY,
    SOURCE,
    filtered,
    own_pool,
)
from privsyn_flower.server_apps.methods.recipe import RunContext

logger = logging.getLogger("privsyn_flower")

Rows = Sequence[Mapping[str, Any]]  # public texts under "text", of the minority or not

ANEW = "anew"  # folder of a run
ALL = "pretrained"  # the start itself; the others' names in METHODS:
FILTERED, RANDOM, NOISE = "scratch_filtered", "scratch_random", "scratch_noise"


def is_lstm(folder: Path) -> bool:
    """Whether a model is the keyboard's, which is small enough to be trained anew."""
    from privsyn_flower.text.models.pretrained import model_config

    return str(model_config(folder, "models.downstream").model_type) == "privsyn-lstm"


def planned(config: RunConfig, start: Path) -> list[str]:
    """Names in METHODS of the LSTMs that a benchmark trains: none without a filter, and of other
    models none."""
    if not (config.proximity.filter and is_lstm(start)):
        return []
    return [RANDOM, *([NOISE] if config.evaluation.compares("noise") else []), FILTERED]


def sets_of(run: RunContext, start: Path, noise: Path | None) -> dict[str, Rows]:
    """The texts of each row, those of the start itself among them.

    noise: the model that was trained on noise alone; None leaves its row out. What it keeps is in
    the run folder's `anew/by-noise`.
    """
    config, folder = run.config, run.folder.path
    by_noise = folder / ANEW / "by-noise"
    if noise is not None:
        filtered(config, run.public, start, noise, by_noise, run.progress)
    pool = list(own_pool(config, run.public).rows())
    others = None if noise is None else filtered_rows(by_noise)
    return {ALL: pool, **subsets(pool, filtered_rows(folder), others, config.seed)}


def filtered_rows(folder: Path) -> Rows:
    """What the filter left in a folder."""
    with (folder / FILE).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def subsets(pool: Rows, selection: Rows, by_noise: Rows | None, seed: int) -> dict[str, Rows]:
    """The benchmark's rows -> the texts that each is trained on; none without texts.

    selection, by_noise: what the trained model leaves of the pool, and one trained on noise alone.
    """
    draw = seeded(seed, "random subset of the filter's size")
    drawn = sorted(draw.choice(len(pool), len(selection), replace=False).tolist())
    found = {RANDOM: [pool[place] for place in drawn], NOISE: by_noise, FILTERED: selection}
    for name, rows in found.items():
        if rows is not None and not rows:
            logger.warning(
                "%s: no text was kept, so no LSTM is trained on it (proximity.least-score, "
                "proximity.least-quantile, proximity.most-unknown)", name
            )  # fmt: skip
    return {name: rows for name, rows in found.items() if rows}


def text_counts(sets: Mapping[str, Rows]) -> dict[str, Any]:
    """How many texts each row is trained on and, where the pool has a minority, which share of
    them is the minority's: for summary.json."""
    counts: dict[str, Any] = {"texts": {name: len(rows) for name, rows in sets.items()}}
    if any(SOURCE in row for rows in sets.values() for row in rows):
        counts["minority_share"] = {
            name: round(sum(row[SOURCE] == MINORITY for row in rows) / len(rows), 5)
            for name, rows in sets.items()
        }
    return counts


def train_anew(
    config: RunConfig, start: Path, rows: Rows, target: Path, progress: Progress
) -> Path:
    """`target`, an LSTM like `start` that was trained from its first weights on other texts.

    It takes the steps that the start took, if that is known. A finished one is found again.
    """
    from privsyn_flower.text.models.lstm import STEPS, WordTraining, train_lstm
    from privsyn_flower.text.models.pretrained import load_tokenizer, model_config

    if target.is_dir():
        return target
    key, models = "models.downstream", config.models
    known, tokenizer = model_config(start, key), load_tokenizer(start, key)
    texts = [str(row["text"]) for row in rows]
    training = WordTraining(
        known.trained_steps or models.train_steps or STEPS,
        models.lstm_batch_texts,
        models.lstm_batch_words,
        device=models.device,
        learning_rate=models.lstm_learning_rate,
        adam_epsilon=models.lstm_adam_epsilon,
    )
    target.parent.mkdir(parents=True, exist_ok=True)

    def fill(folder: Path) -> None:
        train_lstm(folder, known, tokenizer, texts, training, progress)

    return build_folder(target, fill)
