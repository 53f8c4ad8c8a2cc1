"""`privsyn inspect`: what a finished run tells of its private users.

The owner of the private text runs it, outside of any node: it reads private text, adds no noise,
and epsilon covers none of its figures. They are PRIVATE, and so is the file with them, which stays
in the run folder for its owner alone.

Each check is a module with `measure`, which makes figures of `Texts`, and `described`, which makes
lines of the figures. A further one is a name in CHECKS.

What this does not know: a private text that was written in other words; names without capitals, or
made of ordinary words; text that only several users share; and what a server sees of a training,
which is every round's noisy sum (of votes and scores `attacks` knows it). Finding nothing is no
proof of privacy.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from privsyn_flower.app.inspect import copies, membership, replay
from privsyn_flower.app.inspect.texts import InspectError, Texts, read_texts
from privsyn_flower.common.files import private_folder, replace_private
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.strategies.synthesis.topic_texts import MODEL
from privsyn_flower.text.fingerprints import folder_fingerprint

__all__ = ["CHECKS", "FILE", "NOTE", "InspectError", "described", "inspect", "read_texts", "save"]

FILE = Path("private") / "inspect.json"  # of a run folder; nothing under private/ is published
NOTE = (
    "PRIVATE: these figures were made by reading private text, without noise, and are NOT covered "
    "by epsilon"
)
CHECKS: dict[str, ModuleType] = {"copies": copies, "replay": replay, "membership": membership}
OF_TEXT = ("copies", "replay")  # checks of what the run wrote


def inspect(texts: Texts, progress: Progress = silent) -> dict[str, Any]:
    """All figures of a run's result, by the names of the checks. PRIVATE."""
    found: dict[str, Any] = {
        "private": NOTE,
        "synthetic_sha256": texts.digest,
        "model_fingerprint": _model_of(texts),
        "synthetic_texts": len(texts.synthetic),
        "users": {"private": len(texts.private), "held_out": len(texts.held_out)},
        "public_texts": len(texts.public),
        "notes": list(texts.notes),
    }
    for done, (name, check) in enumerate(CHECKS.items()):
        progress("inspecting", done, len(CHECKS), name)
        if name in OF_TEXT and not texts.synthetic:
            found[name] = {"missing": "the run wrote no text"}
        else:
            found[name] = check.measure(texts, progress)
    progress("inspecting", len(CHECKS), len(CHECKS), "")
    return found


def _model_of(texts: Texts) -> str:
    """Of the model that the run trained; "" without one."""
    folder = texts.run[0] / MODEL if texts.run else None
    return folder_fingerprint(folder) if folder and folder.is_dir() else ""


def save(run: Path, figures: dict[str, Any]) -> Path:
    """Write the figures to the run folder, for its owner alone; returns where."""
    path = run.expanduser().absolute() / FILE
    private_folder(path.parent)
    replace_private(path, json.dumps(figures, indent=2, allow_nan=False).encode())
    return path


def described(figures: dict[str, Any]) -> str:
    """The figures for the terminal of whoever owns the private text. PRIVATE."""
    users = figures["users"]
    lines = [
        NOTE,
        f"{figures['synthetic_texts']:,} synthetic texts against {users['private']:,} private and "
        f"{users['held_out']:,} held-out users, and {figures['public_texts']:,} public texts",
        *(f"note: {note}" for note in figures["notes"]),
    ]
    for name, check in CHECKS.items():
        own = figures[name]
        if name in OF_TEXT and "missing" in own:
            lines += ["", f"{name}: not measured: {own['missing']}"]
        else:
            lines += ["", *check.described(own)]
    return "\n".join(lines)
