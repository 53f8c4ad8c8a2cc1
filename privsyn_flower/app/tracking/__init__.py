"""Trackers: where a run's public numbers go beside its folder."""

from privsyn_flower.app.tracking.trackers import Trackers, TrackerUnavailable

__all__ = ["TrackerUnavailable", "Trackers"]
