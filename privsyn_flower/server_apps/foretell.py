"""Before each long stage: about how long it takes on this machine.

By sizes of models and made-up text alone (`estimates/`): nothing of a run's text, and nothing
that a run measured, is in what is told or kept.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.progress import ProgressLog
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.estimates.machine import Machine, this_machine
from privsyn_flower.server_apps.estimates.stages import (
    ROUNDS,
    Shapes,
    Stage,
    done_here,
    remaining,
    shapes_of,
    spoken,
    stage_of,
)
from privsyn_flower.server_apps.estimates.timing import timed
from privsyn_flower.server_apps.estimates.work import Task
from privsyn_flower.server_apps.methods import recipe_of

logger = logging.getLogger("privsyn_flower")

LONG = 20.0  # seconds of a stage that are worth a line before it
LITTLE = 1e12  # operations of a whole run that are over before anybody asks: nothing is timed
TIMING_SECONDS = 1.0  # no timing begins later; what is timed is kept for other runs
RESULTS = {  # a stage's file: once it is there, the stage has nothing to do
    "expansion": "synthetic.jsonl",
    "proximity": "proximity.jsonl",
    "control": "control.jsonl",
    "unaligned": "unaligned.jsonl",
    "rival": "rival.jsonl",
    "no_private_step": "no_private_step.jsonl",
    "histogram_only": "histogram_only.jsonl",
    "training_only": "training_only.jsonl",
}
INITIAL = "initial.jsonl"  # of `methods.pe`
KEPT = ("models", "public")  # stages whose results other runs may have left in the cache


class Foretold:
    """Called with the name of each stage before it begins; says each once."""

    def __init__(self, config: RunConfig, folder: RunFolder, progress: ProgressLog) -> None:
        self.config, self.folder, self.progress = config, folder, progress
        self.machine: Machine | None = None
        self.told = set[str]()

    @functools.cached_property
    def tasks(self) -> list[Task]:
        """All work of the run that this machine does."""
        return done_here(self.config, recipe_of(self.config).work(self.config))

    @functools.cached_property
    def shapes(self) -> Shapes:
        """The sizes of its models."""
        return shapes_of(self.config)

    def __call__(self, stage: str) -> None:
        """Tell it, where it is long; an estimate that fails is none, and ends no run."""
        if stage in self.told:
            return
        self.told.add(stage)
        try:
            line = self._line(stage)
        except Exception as error:  # of whatever kind: nothing hangs on an estimate
            logger.info("%s: no estimate of its time (%s)", stage, type(error).__name__)
            return
        if line:
            self.progress.foretell(stage, line)

    def _line(self, stage: str) -> str:
        tasks = self._left(stage)
        if not tasks:
            return ""
        machine = self._machine()
        if machine is None:
            return ""
        found = stage_of(self.config, tasks, self.shapes, machine)
        return described(found, stage, cached=stage in KEPT) if found.seconds >= LONG else ""

    def _left(self, stage: str) -> list[Task]:
        """What a stage still has to do here."""
        result = RESULTS.get(stage)
        if result and Path(self.folder.path / result).exists():
            return []
        tasks = [task for task in self.tasks if task.stage == stage]
        if (self.folder.path / INITIAL).exists():  # a model's first candidates are written once
            tasks = [task for task in tasks if (task.stage, task.kind) != ("models", "generation")]
        return remaining(tasks, self._done()) if stage == ROUNDS else tasks

    def _done(self) -> int:
        checkpoint = self.folder.last_checkpoint()
        return int(checkpoint["round"]) if checkpoint else 0

    def _machine(self) -> Machine | None:
        """This machine; None for a run of so little work that no stage can be long."""
        if self.machine is None:
            known = Machine("", "cpu", 1, 0, 0, {"4": 1.0, "2": 1.0}, 1.0)
            if stage_of(self.config, self.tasks, self.shapes, known).operations < LITTLE:
                return None
            cache = cache_folder(self.config)
            found = this_machine(cache, self.config.models.device)
            self.machine = timed(self.config, self.tasks, found, seconds=TIMING_SECONDS)
        return self.machine


def described(found: Stage, stage: str, *, cached: bool = False) -> str:
    """A stage's time in words."""
    about = "about" if found.timed else "at least"
    parts = [f"{about} {spoken(found.seconds)} when this machine does nothing else"]
    if stage == ROUNDS and found.first > 0.25 * found.seconds and found.first < found.seconds:
        parts.append(f"its first round {about} {spoken(found.first)}")
    if found.at_once > 1:
        parts.append(f"{found.at_once} fine-tunings at once")
    if cached:
        parts.append("unless it is in the cache")
    if found.unknown:
        parts.append("without " + ", ".join(task.what for task in found.unknown))
    return ", ".join(parts)
