"""The trackers that have a name: which library each needs, and where it writes."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path

from privsyn_flower.app.tracking.tracker import Tracker

NAMES = ("tensorboard", "mlflow", "wandb")  # each also the module, and the extra


class TrackerUnavailable(ValueError):
    """A tracker's library is not installed, or there is no tracker of that name."""


def fault(name: str) -> str:
    """Why a tracker cannot be had here, with what to do; "" when it can. Nothing is imported."""
    if name not in NAMES:
        return f"trackers: {name!r} is unknown; there are {', '.join(NAMES)}"
    if importlib.util.find_spec(name) is None:
        return (
            f"trackers: {name} is not installed: pip install 'privsyn-flower[{name}]', or leave it "
            "out"
        )
    return ""


def adapter(name: str, folder: Path) -> Tracker:
    """In this process. folder: of the run; what is not sent elsewhere is written there."""
    made: Tracker = import_module(f"privsyn_flower.app.tracking.to_{name}").tracker(folder)
    return made


def notes(folder: Path, name: str) -> Path:
    """Where it is written what a tracker was told."""
    return folder / "checkpoints" / f"tracked-{name}.json"
