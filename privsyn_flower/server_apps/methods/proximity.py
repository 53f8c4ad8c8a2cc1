"""After a training: the public pool as the trained model filters it, and what later calls need.

"Prompt public LLMs to synthesize data for private on-device applications", section 5. The pool is
public and the model is released, so nobody is asked and nothing is paid: what is kept carries the
epsilon of the training.

What the kept text is worth: new LSTMs for the benchmark (Gboard paper, section 5, Tables 4 and 7).
A new model is trained from scratch on what is left and compared with one of all the text. Two more
tell what the difference is due to: one of a random subset as large, and one of what a model trained
on noise alone keeps. All have the start's words, shape and first weights, and take as many steps.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.app.public.proximity import (
    OtherScores,
    Pair,
    Pool,
    Thresholds,
    digest_of,
    filter_pool,
    shares,
)
from privsyn_flower.common.files import build_folder
from privsyn_flower.common.progress import Progress
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.config.training import ProximityConfig
from privsyn_flower.data import Federation
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.recipe import RunContext
from privsyn_flower.server_apps.public_text import PublicText, candidates
from privsyn_flower.text.fingerprints import folder_fingerprint

FILE, SCORES = "proximity.jsonl", "proximity"  # of a run folder: kept texts, and all scores
SOURCE = "source"  # key of a row, where there is a minority
GENERAL, MINORITY = "general", "minority"
START = "start"  # of `RunFolder.load_value`


def thresholds_of(config: ProximityConfig) -> Thresholds:
    """The conditions of a table `[proximity]`."""
    return Thresholds(config.most_unknown, config.least_score, config.least_quantile, config.gain)


def remember_start(folder: RunFolder, start: Path) -> None:
    """Where the training began: `privsyn public proximity` needs the model later."""
    folder.save_value(START, {"folder": str(start), "fingerprint": folder_fingerprint(start)})


def start_of(folder: RunFolder) -> Path | None:
    """The model that the training began with; None where it is not there, or another by now."""
    found = folder.load_value(START)
    if found is None or not Path(found["folder"]).is_dir():
        return None
    start = Path(found["folder"])
    try:
        return start if folder_fingerprint(start) == found["fingerprint"] else None
    except OSError:
        return None


def filtered_pool(run: RunContext, start: Path, trained: Path) -> dict[str, Any]:
    """The run's part of the summary: `proximity`, with FILE in the run folder; {} if not asked for.

    Raises ConfigError for a run without public text.
    """
    if not run.config.proximity.filter:
        return {}
    with run.clock(SCORES):
        found = filtered(run.config, run.public, start, trained, run.folder.path, run.progress)
    return {"proximity": found}


def filtered(
    config: RunConfig,
    public: PublicText,
    start: Path,
    trained: Path,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Write the texts of the pool that `trained` keeps to FILE in `folder`; the figures.

    start: the model before its training. Scores of the same two models that are in `folder` are
    used. Where the pool has a minority, its share before and after is among the figures. Raises
    ConfigError without public text.
    """
    pool = own_pool(config, public)
    models = Pair(start, trained, config.evaluation.sequence_length, config.models.device)
    thresholds, scores = thresholds_of(config.proximity), folder / SCORES
    arguments = (pool, models, thresholds, folder / FILE, scores, progress)
    try:
        found = filter_pool(*arguments)
    except OtherScores:  # the run was over, and went on with its rounds
        shutil.rmtree(scores)
        found = filter_pool(*arguments)
    return {**found, "minority_share": shares(found, MINORITY)} if pool.by else found


def own_pool(config: RunConfig, public: PublicText) -> Pool:
    """The public texts that a run chooses from. Raises ConfigError where there are none."""
    if not public.pool:
        raise ConfigError(
            "proximity.filter = true chooses from public text, and there is none "
            "(data.public-path): name it, or set proximity.filter = false"
        )
    minority = _minority(config, public.federation)
    rows = [
        {"text": text, **({SOURCE: MINORITY if text in minority else GENERAL} if minority else {})}
        for text in public.pool
    ]
    digest = digest_of([f"{row.get(SOURCE, '')}:{row['text']}" for row in rows])
    return Pool(lambda: rows, len(rows), digest, SOURCE if minority else "")


def _minority(config: RunConfig, federation: Federation | None) -> set[str]:
    """Public texts that only the minority packages have, cut as the pool's are."""
    if federation is None:
        return set()
    general = set(candidates(federation.public_general(), config))
    return set(candidates(federation.public_corpus(), config)) - general


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
