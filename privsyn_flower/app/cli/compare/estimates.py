"""What a grid's runs come to: means with two intervals, paired differences, where curves cross.

Over users: which held-out users there are, the runs as they are. Over seeds: another run, on the
users as they are (Student's t; none for one seed). Differences are taken between runs of the same
seed on the same held-out users. Users' own sums are PRIVATE and stay in the run folders: where only
summaries are left, the interval of a difference is kept beside them as it was, with the figures of
the runs that it belongs to, and counts for these alone."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privsyn_flower.app.cli.compare.cells import Outcome
from privsyn_flower.app.report.summaries import NO_QUERIES, NONE, trust_of
from privsyn_flower.app.report.tables import ALIKE_BENCHMARK
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError
from privsyn_flower.config.grid import GridConfig, GridMethod, Point
from privsyn_flower.evaluation.intervals import Interval, load_user_sums, over_seeds, over_users
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.runs import write_json

MEASURES = ("accuracy", "loss", "macro_f1")
UNPROTECTED = ("private", "majority")  # references that read private text without noise
# From here on an observer's odds about a user may change by a factor of half a billion (e^20).
NO_GUARANTEE = 20.0
EPSILON = "epsilon"  # an axis that what asked nobody is not on
Bounds = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Line:
    """One row of the tables at one point: a method's result, or a reference of its benchmark.

    reference: name in the benchmark; "" for the result. runs: finished ones, one for each seed.
    """

    method: GridMethod
    reference: str
    point: Point
    runs: Sequence[Outcome]

    @property
    def title(self) -> str:
        """What tables call it."""
        if not self.reference:
            return self.method.title
        said = self.runs[0].benchmark.get("methods", {}).get(self.reference, self.reference)
        return f"{said} (runs of {self.method.title})"

    @property
    def trust(self) -> str:
        """The table that it belongs to."""
        if self.reference:
            return NONE if self.reference in UNPROTECTED else NO_QUERIES
        return trust_of(self.runs[0].summary or {})

    @property
    def guaranteed(self) -> bool:
        """Whether its epsilon promises anything; a reference to public text needs none."""
        if self.reference:
            return self.reference not in UNPROTECTED
        return self.trust != NONE and self.epsilon < NO_GUARANTEE

    @property
    def epsilon(self) -> float:
        """The largest that a run of it states; null in a summary is infinity."""
        stated = [(run.summary or {})["epsilon"] for run in self.runs]
        return max(math.inf if value is None else float(value) for value in stated)

    def has(self, axis: str) -> bool:
        """Whether its place on this axis means something: what asked nobody has no epsilon, nor has
        a reference beside it; the grid runs them once."""
        once = len(self.method.only.get(EPSILON, ())) == 1
        return axis != EPSILON or not once or not (self.reference or self.trust == NO_QUERIES)

    @property
    def stated_epsilon(self) -> str:
        """In a table; one that promises nothing says so."""
        return at_most(self.epsilon) + ("" if self.guaranteed else " (no guarantee)")

    def name(self, run: Outcome) -> str:
        """What the row shows, in the benchmark of one run."""
        return self.reference or run.result

    def values(self, measure: str) -> list[float]:
        """A figure of each run; empty unless all have it."""
        found = [run.benchmark.get(measure, {}).get(self.name(run)) for run in self.runs]
        return [] if None in found else [float(value) for value in found]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. users, seeds: 95 % intervals; None where there is none. exact: whether
    `users` was drawn for the mean itself; else its bounds are means of the seeds' bounds."""

    value: float
    users: Bounds | None
    seeds: Bounds | None
    count: int
    exact: bool = True


@dataclass(frozen=True)
class Difference:
    """A method minus another at one point. alike: whether both trust the same parties, or the
    method nobody, because it asked nobody. figures: of the paired runs, the method's and the
    other's; seeds: theirs."""

    method: GridMethod
    against: GridMethod
    point: Point
    measure: str
    estimate: Estimate
    alike: bool = True
    figures: Sequence[Sequence[float]] = ()
    seeds: Sequence[int] = ()

    @property
    def reach(self) -> Bounds | None:
        """From the lowest to the highest bound of both intervals; None without any."""
        known = [own for own in (self.estimate.users, self.estimate.seeds) if own is not None]
        if not known:
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    @property
    def sign(self) -> int:
        """1 or -1 where zero is outside of both intervals; 0 where it cannot be told."""
        if self.reach is None:
            return 0
        return (self.reach[0] > 0) - (self.reach[1] < 0)


def lines_of(grid: GridConfig, outcomes: Sequence[Outcome]) -> list[Line]:
    """The rows of a grid's tables, in its order; only what has a finished run."""
    found = []
    for method in grid.methods:
        for name in ("", *method.references):
            for point in grid.points(method):
                runs = [
                    run
                    for run in outcomes
                    if run.cell.method is method and run.cell.point == point and run.result
                    and (not name or name in run.benchmark["accuracy"])
                ]  # fmt: skip
                if runs:
                    runs.sort(key=lambda run: run.cell.seed)
                    found.append(Line(method, name, point, runs))
    return found


def estimate(line: Line, measure: str) -> Estimate | None:
    """The mean of one row; None where a run has no such figure."""
    values = line.values(measure)
    if not values:
        return None
    kept = _sums(line, line.runs, measure)
    if kept is not None:
        users = _bounds(over_users(kept[1], rng=_rng(measure)))
    else:
        users = _mean_bounds(line, measure)
    return Estimate(
        statistics.mean(values), users, _bounds(over_seeds(values)), len(values), kept is not None
    )


def perplexity(loss: Estimate) -> Estimate:
    """e to a loss in nats a token, and to its bounds (CTCL, Table 5): over seeds, of their mean."""
    users, seeds = (own and (_exp(own[0]), _exp(own[1])) for own in (loss.users, loss.seeds))
    return replace(loss, value=_exp(loss.value), users=users, seeds=seeds)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def differences(grid: GridConfig, lines: Sequence[Line]) -> list[Difference]:
    """Every method's results minus those of `against`, wherever seeds and held-out users agree. One
    that asked nobody has no epsilon: it stands beside every one that it was not run at itself."""
    results = [line for line in lines if not line.reference]
    base = grid.against or grid.methods[0].name
    own = {(line.method.name, *line.point.items()) for line in results}
    found = []
    for line in results:
        for other in results:
            place = line.point
            alone = (line.method.name, *other.point.items()) not in own
            if line.trust == NO_QUERIES and alone and EPSILON in place:
                place = place | {EPSILON: other.point[EPSILON]}
            if other.method.name != base or other is line or place != other.point:
                continue
            found += [
                one for measure in MEASURES if (one := paired(line, other, measure)) is not None
            ]
    return found


def paired(line: Line, other: Line, measure: str) -> Difference | None:
    """One row minus another, at the other's point, over the seeds that both have; None without
    such a pair."""
    pairs = [
        (one, two)
        for one in line.runs
        for two in other.runs
        if one.cell.seed == two.cell.seed
        and comparable(one, two)
        and not _strangers(line, one, other, two, measure)
    ]
    ones, twos = [one for one, _ in pairs], [two for _, two in pairs]
    here = Line(line.method, line.reference, line.point, ones).values(measure)
    there = Line(other.method, other.reference, other.point, twos).values(measure)
    if not here or not there:
        return None
    gains = [one - two for one, two in zip(here, there, strict=True)]
    mine, theirs = _sums(line, ones, measure), _sums(other, twos, measure)
    users = None
    if mine is not None and theirs is not None and mine[0] == theirs[0]:
        users = _bounds(over_users(mine[1], theirs[1], rng=_rng(measure)))
    gained = Estimate(statistics.mean(gains), users, _bounds(over_seeds(gains)), len(gains))
    alike = line.trust in (other.trust, NO_QUERIES)
    figures, seeds = [here, there], [one.cell.seed for one in ones]
    return Difference(
        line.method, other.method, other.point, measure, gained, alike, figures, seeds
    )


def change(one: Difference, other: Difference) -> Estimate | None:
    """How much greater a difference is at one point than at another, over the seeds that both have;
    its users' interval is not known. None without such a seed."""
    here, there = (
        {seed: mine - theirs for seed, mine, theirs in zip(own.seeds, *own.figures, strict=True)}
        if own.seeds else {}
        for own in (one, other)
    )  # fmt: skip
    found = [here[seed] - there[seed] for seed in here if seed in there]
    if not found:
        return None
    return Estimate(statistics.mean(found), None, _bounds(over_seeds(found)), len(found))


def comparable(one: Outcome, two: Outcome) -> bool:
    """Whether two runs were measured on the same held-out users, as far as the summaries say."""
    return all(one.benchmark.get(key) == two.benchmark.get(key) for key in ALIKE_BENCHMARK)


def _strangers(line: Line, one: Outcome, other: Line, two: Outcome, measure: str) -> bool:
    """Whether two runs are known to be of different held-out users, though of as many."""
    mine, theirs = _sums(line, [one], measure), _sums(other, [two], measure)
    return mine is not None and theirs is not None and mine[0] != theirs[0]


def crossings(grid: GridConfig, pairs: Sequence[Difference]) -> Iterator[str]:
    """For every axis of numbers: where a method's accuracy and the other's change places. Methods
    without an interval of any difference have no order, and one line names them."""
    for axis in grid.axes:
        scale = numeric(grid, axis)
        if scale is None:
            continue
        groups: dict[tuple[str, ...], list[Difference]] = {}
        untold = []
        for one in pairs:
            if one.measure == "accuracy":
                rest = [f"{key} {value}" for key, value in one.point.items() if key != axis]
                groups.setdefault((one.method.name, *rest), []).append(one)
        for key, own in groups.items():
            own.sort(key=lambda d: scale[d.point[axis]])
            if len(own) > 1:
                where = f" at {', '.join(key[1:])}" if key[1:] else ""
                pair = f"{own[0].method.title} and {own[0].against.title}"
                if all(one.reach is None for one in own):
                    untold.append(own[0].method.title + where)
                else:
                    yield f"{pair} along {axis}{where}: {_course(own, axis)}."
        if untold:
            other = f"against {pairs[0].against.title} along {axis}"
            yield f"No order {other}, for want of an interval: {'; '.join(untold)}."


def _course(own: Sequence[Difference], axis: str) -> str:
    """One sentence about the signs of differences in the order of an axis."""
    words = {1: "ahead", 0: "not told apart", -1: "behind"}
    course = ", ".join(
        f"{words[one.sign] if one.reach else 'without an interval'} at {one.point[axis]}"
        for one in own
    )
    signs = [(one.sign, one.point[axis]) for one in own if one.sign]
    turns = [
        f"between {before} and {after}"
        for (sign, before), (next_, after) in itertools.pairwise(signs)
        if sign != next_
    ]
    if turns:
        cross = f"they cross {' and '.join(turns)}"
    elif len(signs) == len(own):
        cross = "they do not cross on this grid"
    elif signs or any(one.reach is None for one in own):
        cross = "whether they cross is not decided"
    else:
        cross = "they cannot be told apart on this grid"
    return f"{cross} (the first is {course})"


def numeric(grid: GridConfig, axis: str) -> dict[str, float] | None:
    """Value name -> number of an axis whose names are all positive numbers, two at least."""
    try:
        found = {value.name: float(value.name) for value in grid.axes[axis]}
    except ValueError:
        return None
    fit = all(math.isfinite(number) and number > 0 for number in found.values())
    return found if fit and len(found) > 1 else None


def _sums(line: Line, runs: Sequence[Outcome], measure: str) -> tuple[str, list[F64]] | None:
    """Whose sums, and held-out users' sums of all runs, if all have them of the same users.

    PRIVATE.
    """
    found = [
        load_user_sums(run.folder, measure, line.name(run)) if run.folder else None for run in runs
    ]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or len({users for users, _ in known}) != 1:
        return None
    return known[0][0], [sums for _, sums in known]


def _mean_bounds(line: Line, measure: str) -> Bounds | None:
    """Of runs whose users' sums are not here: the mean of their lower and of their upper bounds.

    With users drawn alike in all runs that is no narrower than the interval of the mean.
    """
    intervals: list[Any] = [
        run.benchmark.get(f"{measure}_interval", {}).get(line.name(run)) for run in line.runs
    ]
    if None in intervals:
        return None
    lows, highs = zip(*intervals, strict=True)
    return statistics.mean(map(float, lows)), statistics.mean(map(float, highs))


def _bounds(interval: Interval | None) -> Bounds | None:
    return None if interval is None else (interval.low, interval.high)


def _rng(measure: str) -> Any:
    """The same users are drawn wherever they are drawn, so that figures repeat."""
    return seeded(0, "compare", measure)


def by_trust(lines: Sequence[Line]) -> Mapping[str, list[Line]]:
    """The rows in tables of one kind of trust each."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.trust, []).append(line)
    return found


StoredPairs = Mapping[str, Mapping[str, Any]]


def place(grid: GridConfig, path: Path) -> Path | None:
    """Where a grid keeps them: compare-users.pairs.json; None for one that keeps nothing."""
    return path.parent / grid.archive / f"{path.stem}.pairs.json" if grid.archive else None


def load_pairs(file: Path | None) -> StoredPairs:
    """Difference -> its runs' figures and its interval. Raises ConfigError for a damaged file."""
    if file is None or not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}): remove it") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is damaged (no object): remove it")
    return found


def keep_pairs(pairs: Sequence[Difference], stored: StoredPairs, file: Path | None) -> None:
    """Write what is known of intervals; what was kept of differences that are not here stays."""
    entries = dict(stored) | {
        name(one): {"figures": one.figures, "users": one.estimate.users}
        for one in pairs
        if one.estimate.users is not None
    }
    if file is not None and entries != stored:
        write_json(file, entries)


def completed(pairs: Sequence[Difference], stored: StoredPairs) -> list[Difference]:
    """Differences without an interval over users have the kept one, if it is of the same runs."""
    return [_completed(one, stored.get(name(one), {})) for one in pairs]


def _completed(one: Difference, entry: Mapping[str, Any]) -> Difference:
    if one.estimate.users is not None or entry.get("figures") != one.figures:
        return one
    low, high = entry["users"]
    return replace(one, estimate=replace(one.estimate, users=(low, high)))


def name(one: Difference) -> str:
    """A difference in the file: "pretext minus dp-fedavg, users 250: accuracy"."""
    point = "".join(f", {axis} {value}" for axis, value in one.point.items())
    return f"{one.method.name} minus {one.against.name}{point}: {one.measure}"
