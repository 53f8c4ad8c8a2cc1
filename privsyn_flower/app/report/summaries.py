"""The summary of a finished run (summary.json): read, and what is said of it everywhere."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privsyn_flower.privacy.wording import at_most

Summary = Mapping[str, Any]

RESULTS = ("synthetic", "trained")  # the run's own result among the benchmark's names
DISTRIBUTED = "Noise of the nodes under secure aggregation: nobody has a sum without noise"
TRUSTED = "A trusted aggregator: it has sums without the guaranteed noise, or single answers"
NO_QUERIES = "Public text alone: nobody was asked"
LOCAL = "Local privacy: the texts that leave the devices are noisy themselves"
NONE = "No privacy is claimed"
# How a threat model begins -> its table, in the order of the tables.
TRUSTS = {
    "honest-but-curious": DISTRIBUTED,
    "trusted aggregator": TRUSTED,
    "local": LOCAL,
    "nobody was asked": NO_QUERIES,
    "none": NONE,
}


DRAW = "these intervals are over held-out users: they leave out the draw of the noise"
DROWNED_DRAW = ", which drowned the users' answers, so another draw may come out otherwise"


class ReportError(ValueError):
    """A folder is no finished run; the text says which and why."""


def read_summary(folder: Path) -> Summary:
    """The summary of a finished run. Raises ReportError, which says what to do about a damaged
    one."""
    path = folder / "summary.json" if folder.is_dir() else folder
    again = ""
    if path.name == "summary.json":
        again = f"; delete it, and `privsyn run --resume {path.parent}` writes it again"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path} is not the summary of a finished run: {error}") from None
    except ValueError as error:
        raise ReportError(f"{path} is damaged ({error}){again}") from None
    if not isinstance(found, dict) or not {"method", "epsilon", "threat_model"} <= set(found):
        raise ReportError(
            f"{path} is not the summary of a run (method, epsilon, threat_model){again}"
        )
    return found


def read_named(place: Path) -> Summary:
    """`read_summary`, with the run's name (`run`) and its seed (None where nothing says it)."""
    summary = read_summary(place)
    own = place if place.is_dir() else place.parent
    alone = not place.is_dir() and place.name != "summary.json"  # a summary that was put elsewhere
    name = place.stem if alone else own.absolute().name
    return {"seed": None if alone else _seed(own / "config.toml"), **summary, "run": name}


def _seed(config: Path) -> int | None:
    try:
        seed = tomllib.loads(config.read_text(encoding="utf-8")).get("seed")
    except (OSError, ValueError):
        return None
    return seed if isinstance(seed, int) else None


def claim(summary: Summary) -> Iterator[tuple[str, str]]:
    """The run's sentence, then whether the answers can be told from their noise."""
    yield "privacy", str(summary.get("privacy_short", summary["privacy"]))
    yield from (("verdict", line) for line in summary.get("verdict", {}).get("sentences", []))


def trust_of(summary: Summary) -> str:
    """The table that a run belongs to, by the threat model that it states."""
    model = str(summary["threat_model"])
    return next((title for begin, title in TRUSTS.items() if model.startswith(begin)), NONE)


def unusable_lines(summary: Summary) -> list[str]:
    """Why a result is of no use, before anything else is said of it."""
    reasons = summary.get("unusable")
    return [f"NOT USABLE: {why}" for why in reasons] if isinstance(reasons, list) else []


def verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    """What the run came to; nothing of runs of earlier versions."""
    lines = [f"verdict: {one}" for one in summary.get("verdict", {}).get("sentences", [])]
    lines += [f"benchmark, not covered by epsilon: {one}" for one in benchmark_lines(summary)]
    return lines + [f"note: {one}" for one in summary.get("notes", [])]


def benchmark_lines(summary: Mapping[str, Any]) -> list[str]:
    """The benchmark's comparisons, and what their intervals leave out."""
    found = (summary.get("benchmark") or {}).get("verdict")
    if not isinstance(found, list) or not found:
        return []
    drowned = (summary.get("verdict") or {}).get("signal") == "drowned"
    return [*map(str, found), DRAW + DROWNED_DRAW * drowned]


def epsilon_of(summary: Summary) -> str:
    """In words, rounded up; JSON has no infinity, so null is that."""
    value = summary["epsilon"]
    return at_most(math.inf if value is None else value)
