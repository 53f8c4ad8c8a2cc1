"""Held-out users' sums of one run, kept so that runs can be paired with each other. PRIVATE.

They say how well each held-out user's text is predicted: benchmark figures without noise, which
epsilon does not cover. They stay in the run folder of a simulation, readable by its owner alone,
and never go into a summary or a page.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from privsyn_flower.arrays import F64
from privsyn_flower.files import private_folder, replace_private

FILE = Path("benchmark") / "PRIVATE-user-sums.npz"
USERS = "users"  # whose sums they are, as one hash

Sums = Mapping[str, Mapping[str, F64]]


def save_user_sums(folder: Path, users: Iterable[str], measures: Sums) -> None:
    """Keep one run's sums in its folder.

    users: held-out users' names, in the order of the rows. measures: "accuracy" or "loss" -> name
    in the benchmark -> (u, 2), numerators and denominators. PRIVATE.
    """
    digest = hashlib.sha256("\0".join(users).encode("utf-8", "surrogatepass")).hexdigest()
    arrays = {
        f"{measure}/{name}": np.asarray(sums, dtype=np.float64)
        for measure, own in measures.items()
        for name, sums in own.items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{USERS: np.array(digest)}, **arrays)
    private_folder((folder / FILE).parent)
    replace_private(folder / FILE, buffer.getvalue())


def load_user_sums(folder: Path, measure: str, name: str) -> tuple[str, F64] | None:
    """(hash of the users, (u, 2) sums) of one measure and name; None where none are kept."""
    path = folder / FILE
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as archive:
        if f"{measure}/{name}" not in archive.files:
            return None
        sums: F64 = archive[f"{measure}/{name}"]
        return str(archive[USERS]), sums
