"""Weights & Biases: as its own environment variables say, offline too, in RUN/wandb."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import wandb

from privsyn_flower.app.tracking.events import Ended, RoundReleased, RunStarted, Stage

PROJECT = "privsyn-flower"
EXIT = {"finished": 0, "ended early": 0, "failed": 1, "stopped": 255}
# W&B would add the host's name and account, the command, git's remote, installed packages, the
# machine's load and what is printed. None of that is a run's public number.
SETTINGS: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


class WeightsAndBiases:
    """A run of W&B's for each run, by its id; metrics by round, facts and settings as config."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run_started(self, event: RunStarted) -> None:
        """Make the run of this id, or go on with it."""
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=event.run,
            name=os.environ.get("WANDB_NAME") or event.name,
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or self.folder,
            config={**event.facts, **event.settings},
            settings=wandb.Settings(**SETTINGS),
        )
        self.run.define_metric("*", step_metric="round")

    def round_released(self, event: RoundReleased) -> None:
        """`rounds/NAME` against `round`."""
        values = {f"{event.phase}/{key}": value for key, value in event.values.items()}
        self.run.log({"round": event.round, **values})

    def stage(self, event: Stage) -> None:
        """`stage_seconds/NAME` against the rounds released so far."""
        self.run.log({"round": event.round, f"stage_seconds/{event.name}": event.seconds})

    def ended(self, event: Ended) -> None:
        """`result/NAME` in the summary, and the exit code W&B knows."""
        figures = {f"result/{key}": value for key, value in event.figures.items()}
        told = {"privacy_short": event.privacy_short} if event.privacy_short else {}
        self.run.config.update(told, allow_val_change=True)
        self.run.summary.update({**figures, "status": event.status})
        self.run.finish(exit_code=EXIT[event.status])


def tracker(folder: Path) -> WeightsAndBiases:
    """Of a run folder, where what W&B keeps for itself lies too."""
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        os.environ.setdefault(name, str(folder / "wandb" / "own"))
    return WeightsAndBiases(folder)
