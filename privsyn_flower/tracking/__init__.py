"""Trackers: where a run's public numbers go beside its folder."""

from privsyn_flower.tracking.events import Ended, NotPublic, RoundReleased, RunStarted, Stage
from privsyn_flower.tracking.tracker import Tracker

__all__ = ["Ended", "NotPublic", "RoundReleased", "RunStarted", "Stage", "Tracker"]
