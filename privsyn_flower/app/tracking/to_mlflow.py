"""MLflow: a database in the run folder, or the tracking server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from privsyn_flower.app.tracking.public import Value

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
        database = f"sqlite:///{folder.absolute()}/mlflow.db"
        self.client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or database)

    def begin(
        self, run: str, name: str, facts: Mapping[str, Value], settings: Mapping[str, Value]
    ) -> None:
        """Open the run with this run's tag, or make it."""
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        found = self.client.search_runs([experiment], filter_string=f"tags.`{OWN}` = '{run}'")
        if found:
            self.run = str(found[0].info.run_id)
            self.client.update_run(self.run, status="RUNNING")
            return
        tags = {key: str(value) for key, value in facts.items()}
        made = self.client.create_run(experiment, run_name=name, tags={**tags, OWN: run})
        self.run = str(made.info.run_id)
        parameters = [Param(key, str(value)) for key, value in settings.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self.client.log_batch(self.run, params=parameters[first : first + MOST_PARAMETERS])

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Metrics group/NAME."""
        now = int(time.time() * 1000)
        metrics = [Metric(f"{group}/{key}", float(v), now, step) for key, v in values.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def end(self, status: str, privacy_short: str) -> None:
        """Tags, and MLflow's word for how it ended."""
        self.client.set_tag(self.run, "status", status)
        if privacy_short:
            self.client.set_tag(self.run, "privacy_short", privacy_short)
        self.client.set_terminated(self.run, STATUS[status])

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self.client.create_experiment(name))


library = MLflow
