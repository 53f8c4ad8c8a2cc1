"""What a simulated run is worth, measured with private and held-out text.

Of what measures a run, this, `private.py`, `fine_tunings.py` and `app/inspect` alone open private
or held-out text outside the nodes (rule 4). It runs in simulation with `benchmark = true`, and its
figures are no part of the private result: they go under `benchmark` in summary.json and are not
covered by epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.app.benchmark.feedback import Feedback
from privsyn_flower.app.benchmark.fine_tunings import Folders, classification, next_token
from privsyn_flower.app.benchmark.names import RANDOM_PUBLIC, note, steps_of
from privsyn_flower.app.benchmark.private import Private, Sets, distances
from privsyn_flower.common.arrays import F32
from privsyn_flower.common.progress import Progress, Steps, silent
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.data import Federation
from privsyn_flower.evaluation.duplicates import near_duplicates
from privsyn_flower.evaluation.rows import Work


@dataclass(frozen=True)
class Benchmark:
    """summary: figures for summary.json. For the pictures: held_out (n, d) embeddings of
    held-out texts, PRIVATE, and the candidates (m, d) of every round."""

    summary: dict[str, Any]
    held_out: F32
    candidates: list[F32]


def run_benchmark(
    config: RunConfig,
    private: Private,
    *,
    downstream: str | Path,
    feedback: Callable[[F32], Feedback],
    synthetic: Sets,
    seeds: Sets,
    progress: Progress = silent,
    steps: Steps | None = None,
    work: Work | None = None,
    keep: Path | None = None,
) -> Benchmark:
    """All figures of one finished run; held-out users as `evaluation.on` says.

    downstream: folder or name of the model to fine-tune. feedback: held-out embeddings (n, d) ->
    what the users' answers were worth. synthetic: texts by the names in METHODS, "synthetic" the
    run's own and the others its controls; with their labels (`data.LabelledText`) for
    `evaluation.task = "classification"`. seeds: PrE-Text's, "seeds" the run's own; empty for
    methods without. steps: those begun already (`steps_of`). work: where finished fine-tunings
    are kept until all are (`Work`). keep: the run folder, where held-out users' sums stay
    (`evaluation.intervals`).
    """
    steps = steps or steps_of(config, progress, [])
    federation = private.federation
    pool = federation.public() if config.evaluation.compares(RANDOM_PUBLIC) else ()
    held_out = private.held_out()
    summary: dict[str, Any] = {"note": note(config), "held_out": config.evaluation.on}
    with steps.task("distances to held-out text"):
        found, candidates = feedback(held_out.rows)
        summary |= found
        groups = {"seeds": seeds, "synthetic": synthetic} if seeds else {"synthetic": synthetic}
        given = groups, pool, private, held_out, config
        summary["frechet"], summary["closeness"] = distances(*given)
    references = {
        "private": _all(federation.shard(0, 1)),
        "held_out": _all(federation.held_out(config.evaluation.on)),
        "public": federation.public_corpus(),
    }
    with steps.task("texts that repeat others"):
        own = synthetic["synthetic"]
        repeated = {name: near_duplicates(own, texts) for name, texts in references.items()}
        summary["near_duplicates"] = repeated
    measure = classification if config.evaluation.task == "classification" else next_token
    work = work or Work()
    told = config, federation, downstream, synthetic, progress, steps
    summary |= {"task": config.evaluation.task, **measure(*told, work=work, keep=keep)}
    work.end()
    steps.end()
    return Benchmark(summary, held_out.rows, candidates)


def training_benchmark(
    config: RunConfig,
    federation: Federation,
    *,
    downstream: str | Path,
    models: Folders,
    start: Path | None = None,
    progress: Progress = silent,
    steps: Steps | None = None,
    work: Work | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Figures of a run that trained a model: for summary.json, named as `run_benchmark`'s are.

    models: folders by the names in METHODS, measured as they are. start: the model that the private
    training began with, from which others go with `evaluation.start = "public"`. There is no text
    whose distances could be told. work, keep: as `run_benchmark`'s. Raises ConfigError
    unless `benchmark` is true.
    """
    if not config.benchmark:
        raise ConfigError("benchmark = false: private text is not opened; set benchmark = true")
    steps = steps or steps_of(config, progress, [], list(models))
    work = work or Work()
    measure = classification if config.training.classifies else next_token
    texts: Sets = {}  # there are none
    told = config, federation, downstream, texts, progress, steps
    found = measure(*told, models=models, start=start, work=work, keep=keep)
    work.end()
    steps.end()
    return {
        "note": note(config),
        "held_out": config.evaluation.on,
        "frechet": {},
        "task": config.evaluation.task,
        **found,
    }


def _all(users: Mapping[str, Sequence[str]]) -> list[str]:
    return [text for own in users.values() for text in own]
