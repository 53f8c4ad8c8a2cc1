"""The trackers of a run, from what its configuration or the caller of `start` names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from privsyn_flower.app.tracking.named import TrackerUnavailable, fault, notes
from privsyn_flower.app.tracking.process import TrackerProcess
from privsyn_flower.app.tracking.told import Remembering
from privsyn_flower.app.tracking.tracker import Tracker, Tracking


def tracking_of(trackers: Iterable[str | Tracker], folder: Path) -> Tracking:
    """By name, each in a process of its own, or given as they are.

    folder: of the run; the notes of what each was told are in its checkpoints. Raises
    TrackerUnavailable before anything is begun.
    """
    if isinstance(trackers, str):
        raise TrackerUnavailable(f"trackers = {trackers!r}: give a list, as in [{trackers!r}]")
    found: dict[str, Tracker] = {}
    for one in trackers:
        if not isinstance(one, str):
            name = _fresh(type(one).__name__, found)
            found[name] = Remembering(one, notes(folder, name))
        elif why := fault(one):
            raise TrackerUnavailable(why)
        else:
            found[one] = TrackerProcess(one, folder)
    return Tracking(found)


def _fresh(name: str, taken: Iterable[str]) -> str:
    """A name that no other tracker of the run has."""
    same = sum(other == name or other.startswith(f"{name}-") for other in taken)
    return f"{name}-{same + 1}" if same else name
