"""After a training: the public pool as the trained model filters it, and what later calls need.

"Prompt public LLMs to synthesize data for private on-device applications", section 5. The pool is
public and the model is released, so nobody is asked and nothing is paid: what is kept carries the
epsilon of the training.
"""

from __future__ import annotations

import shutil
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
from privsyn_flower.common.progress import Progress
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
