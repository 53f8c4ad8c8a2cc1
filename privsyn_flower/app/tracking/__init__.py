"""Trackers: where a run's public numbers go beside its folder."""

from privsyn_flower.app.tracking.events import Ended, NotPublic, RoundReleased, RunStarted, Stage
from privsyn_flower.app.tracking.tracker import Tracker

__all__ = ["Ended", "NotPublic", "RoundReleased", "RunStarted", "Stage", "Tracker"]
