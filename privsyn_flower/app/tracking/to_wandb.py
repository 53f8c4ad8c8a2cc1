"""Weights & Biases: as its own environment variables say, offline too, in RUN/wandb."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from privsyn_flower.app.tracking.public import Value

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
        for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # what W&B keeps for itself
            os.environ.setdefault(name, str(folder / "wandb" / "own"))

    def begin(
        self, run: str, name: str, facts: Mapping[str, Value], settings: Mapping[str, Value]
    ) -> None:
        """Make the run of this id, or go on with it."""
        self.result: dict[str, float] = {}
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=run,
            name=os.environ.get("WANDB_NAME") or name,
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or self.folder,
            config={**facts, **settings},
            settings=wandb.Settings(**SETTINGS),
        )
        self.run.define_metric("*", step_metric="round")

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """group/NAME against `round`; those of the result are the run's summary."""
        named = {f"{group}/{key}": value for key, value in values.items()}
        if group == "result":
            self.result = named
        else:
            self.run.log({"round": step, **named})

    def end(self, status: str, privacy_short: str) -> None:
        """The summary, and the exit code W&B knows."""
        told = {"privacy_short": privacy_short} if privacy_short else {}
        self.run.config.update(told, allow_val_change=True)
        self.run.summary.update({**self.result, "status": status})
        self.run.finish(exit_code=EXIT[status])


library = WeightsAndBiases
