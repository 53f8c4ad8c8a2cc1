"""Held-out users' sums of a run, and intervals over users and over seeds.

Two sources of chance, told apart: another seed (choices, generation, noise), and other held-out
users. Neither interval covers the other's. Users' sums say how well each user's text is predicted:
benchmark figures without noise, which epsilon does not cover. They are PRIVATE: they stay in the
run folder of a simulation, readable by its owner alone, and never go into a summary or a page.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privsyn_flower.common.arrays import F64, I64
from privsyn_flower.common.files import private_folder, replace_private

BLOCK = 256  # resamples weighed at once


@dataclass(frozen=True)
class Interval:
    """A point estimate and a percentile interval."""

    value: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        """[value, low, high], rounded for JSON."""
        return [round(number, 6) for number in (self.value, self.low, self.high)]


def paired_bootstrap(
    methods: Mapping[str, F64],
    differences: Sequence[tuple[str, str]],
    rng: np.random.Generator,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> dict[str, dict[str, Interval]]:
    """Users' sums per method -> intervals of every method and of differences of pairs.

    methods: name -> (u, 2) per user: numerator (correct tokens, or loss) and denominator
    (tokens); the same users in the same order everywhere, and each resample draws the same users
    for all methods (Efron and Tibshirani 1993, chapter 13: percentile intervals; Koehn 2004 for
    the pairing). The statistic is micro: sum of numerators over sum of denominators.
    Returns {"value": {name: ...}, "difference": {"b-a": ...}}, where "b-a" is b minus a for the
    pair ("b", "a"). Raises ValueError on unequal shapes, no users or no tokens.
    """
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(f"{confidence=} must be in (0, 1) and {resamples=} at least 1")
    shapes = {name: sums.shape for name, sums in methods.items()}
    users = next(iter(shapes.values()), (0,))[0]
    if users == 0 or any(shape != (users, 2) for shape in shapes.values()):
        raise ValueError(f"sums of shapes {shapes}: every method needs (users, 2), users > 0")
    if any(sums[:, 1].sum() <= 0 for sums in methods.values()):
        raise ValueError("no held-out user has a token to predict")
    weights = rng.multinomial(users, np.full(users, 1 / users), size=resamples)
    drawn = {name: ratios(weights, sums) for name, sums in methods.items()}
    point = {name: float(sums[:, 0].sum() / sums[:, 1].sum()) for name, sums in methods.items()}
    tail = 50 * (1 - confidence)
    return with_differences(point, drawn, differences, (tail, 100 - tail))


def with_differences(
    point: Mapping[str, float],
    drawn: Mapping[str, F64],
    pairs: Sequence[tuple[str, str]],
    tails: tuple[float, float] = (2.5, 97.5),
) -> dict[str, dict[str, Interval]]:
    """Percentile intervals of every method, and of b minus a for each pair ("b", "a").

    point: the statistic of each method. drawn: its resamples, the same users' in every method.
    tails: percentiles where an interval ends. Returns as `paired_bootstrap`.
    """

    def interval(value: float, samples: F64) -> Interval:
        low, high = np.nanpercentile(samples, tails)
        return Interval(value, float(low), float(high))

    return {
        "value": {name: interval(point[name], drawn[name]) for name in point},
        "difference": {
            f"{one}-{two}": interval(point[one] - point[two], drawn[one] - drawn[two])
            for one, two in pairs
        },
    }


def ratios(weights: I64, sums: F64) -> F64:
    """(r, u) draws and (u, 2) sums -> (r,) ratios; NaN where only users without tokens came."""
    parts = []
    for start in range(0, len(weights), BLOCK):
        totals = weights[start : start + BLOCK] @ sums
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(totals[:, 0] / totals[:, 1])
    return np.concatenate(parts)


def over_seeds(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Mean of one figure of several runs, with Student's t interval; None for fewer than two.

    The seeds are taken for independent draws of a normal distribution. Three of them give an
    interval of 2.5 standard deviations to each side.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"{confidence=} must be in (0, 1)")
    count = len(values)
    if count < 2:
        return None
    from scipy.special import stdtrit

    mean = float(np.mean(values))
    reach = float(stdtrit(count - 1, (1 + confidence) / 2))
    half = reach * float(np.std(values, ddof=1)) / float(np.sqrt(count))
    return Interval(mean, mean - half, mean + half)


def over_users(
    runs: Sequence[F64],
    others: Sequence[F64] = (),
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Mean over runs of a figure, or of its difference to `others`; percentile interval over users.

    runs: for each run (u, 2), users' numerators (correct tokens, or loss) and denominators
    (tokens); the same users in the same order everywhere. others: as many, of the runs that are
    paired with them; empty: no difference. A resample draws the users once for all runs (Efron and
    Tibshirani 1993, chapter 13), so the seeds stay as they are. Raises ValueError on unequal
    shapes, no runs, no users or no tokens.
    """
    shapes = {sums.shape for sums in (*runs, *others)}
    users = runs[0].shape[0] if runs else 0
    if users == 0 or shapes != {(users, 2)} or (others and len(others) != len(runs)):
        raise ValueError(
            f"sums of shapes {sorted(shapes)} in {len(runs)} and {len(others)} runs: every run "
            "needs (users, 2), users > 0, and every pair two runs"
        )
    if any(sums[:, 1].sum() <= 0 for sums in (*runs, *others)):
        raise ValueError("no held-out user has a token to predict")
    weights = rng.multinomial(users, np.full(users, 1 / users), size=resamples)
    once = np.ones((1, users), dtype=np.int64)

    def mean(draws: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> F64:
        found = sum(ratios(draws, sums) for sums in runs) - sum(ratios(draws, s) for s in others)
        value: F64 = np.asarray(found, dtype=np.float64) / len(runs)
        return value

    tail = 50 * (1 - confidence)
    low, high = np.nanpercentile(mean(weights), [tail, 100 - tail])
    return Interval(float(mean(once)[0]), float(low), float(high))


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
