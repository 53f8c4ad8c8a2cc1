"""MLflow: a database in the run folder, or the tracking server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from privsyn_flower.app.tracking.events import Ended, RoundReleased, RunStarted, Stage, Value

EXPERIMENT = "privsyn-flower"
OWN = "privsyn.run"  # tag by which a resumed run finds its run again
STATUS = {
    "finished": "FINISHED",
    "ended early": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
}
MOST_PARAMETERS = 100  # in one request, by MLflow's limits


class MLflow:
    """A run of MLflow's for each run; metrics by round, settings as parameters, words as tags."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def run_started(self, event: RunStarted) -> None:
        """Open the run with this run's tag, or make it."""
        database = f"sqlite:///{self.folder}/mlflow.db"
        self.client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or database)
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        found = self.client.search_runs([experiment], filter_string=f"tags.`{OWN}` = '{event.run}'")
        if found:
            self.run = str(found[0].info.run_id)
            self.client.update_run(self.run, status="RUNNING")
            return
        tags = {key: str(value) for key, value in event.facts.items()}
        made = self.client.create_run(
            experiment, run_name=event.name, tags={**tags, OWN: event.run}
        )
        self.run = str(made.info.run_id)
        parameters = [Param(key, str(value)) for key, value in event.settings.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self.client.log_batch(self.run, params=parameters[first : first + MOST_PARAMETERS])

    def round_released(self, event: RoundReleased) -> None:
        """`rounds/NAME` at the round."""
        self._log(event.phase, event.values, event.round)

    def stage(self, event: Stage) -> None:
        """`stage_seconds/NAME` at the rounds released so far."""
        self._log("stage_seconds", {event.name: event.seconds}, event.round)

    def ended(self, event: Ended) -> None:
        """`result/NAME`, and MLflow's word for how it ended."""
        self._log("result", event.figures, event.round)
        self.client.set_tag(self.run, "status", event.status)
        if event.privacy_short:
            self.client.set_tag(self.run, "privacy_short", event.privacy_short)
        self.client.set_terminated(self.run, STATUS[event.status])

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self.client.create_experiment(name))

    def _log(self, group: str, values: Mapping[str, Value], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [
            Metric(f"{group}/{key}", float(value), now, step) for key, value in values.items()
        ]
        if metrics:
            self.client.log_batch(self.run, metrics=metrics)


def tracker(folder: Path) -> MLflow:
    """Of a run folder."""
    return MLflow(folder)
