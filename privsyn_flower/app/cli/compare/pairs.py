"""Paired intervals over held-out users that stay beside kept summaries.

Users' own sums are PRIVATE and stay in the run folders, so where only summaries are left, the
interval of a paired difference cannot be drawn again. It is kept as it was, with the figures of
the runs that it belongs to: it counts for these runs alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from privsyn_flower.app.cli.compare.estimates import Difference
from privsyn_flower.config.grid import GridConfig
from privsyn_flower.runs import write_json

Kept = Mapping[str, Mapping[str, Any]]


def place(grid: GridConfig, path: Path) -> Path | None:
    """Where a grid keeps them: compare-users.pairs.json; None for one that keeps nothing."""
    return path.parent / grid.kept / f"{path.stem}.pairs.json" if grid.kept else None


def load_pairs(file: Path | None) -> Kept:
    """Difference -> its runs' figures and its interval. Raises ValueError for a damaged file."""
    if file is None or not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): remove it") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} is damaged (no object): remove it")
    return found


def keep_pairs(found: Sequence[Difference], kept: Kept, file: Path | None) -> None:
    """Write what is known of intervals; what was kept of differences that are not here stays."""
    told = dict(kept) | {
        name(one): {"figures": one.figures, "users": one.estimate.users}
        for one in found
        if one.estimate.users is not None
    }
    if file is not None and told != kept:
        write_json(file, told)


def completed(found: Sequence[Difference], kept: Kept) -> list[Difference]:
    """Differences without an interval over users have the kept one, if it is of the same runs."""
    return [_completed(one, kept.get(name(one), {})) for one in found]


def _completed(one: Difference, entry: Mapping[str, Any]) -> Difference:
    if one.estimate.users is not None or entry.get("figures") != one.figures:
        return one
    low, high = entry["users"]
    return replace(one, estimate=replace(one.estimate, users=(low, high)))


def name(one: Difference) -> str:
    """A difference in the file: "pretext minus dp-fedavg, users 250: accuracy"."""
    point = "".join(f", {axis} {value}" for axis, value in one.point.items())
    return f"{one.method.name} minus {one.against.name}{point}: {one.measure}"
