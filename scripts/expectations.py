"""What the papers lead one to expect of a grid, and whether its runs bear it out.

Every answer comes from paired differences and their 95 % intervals (`estimates.Difference.reach`,
over users and over seeds); nothing is said that no run has shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privsyn_flower.app.cli.compare.estimates import Bounds, Difference, Line, change, numeric
from privsyn_flower.app.cli.compare.tables import escaped, point_label
from privsyn_flower.config.grid import GridConfig, Point

Verdict = Literal["confirmed", "not confirmed", "not decided", "not run"]
AXIS = "epsilon"
POPRI, PRETEXT, TRAINED = "popri", "pretext", "dp-fedavg"
DIGITS = 4
Place = tuple[Any, ...]  # a method's name, and axes with their values


@dataclass(frozen=True)
class Expectation:
    """One expectation at one point. gain: of what is expected to be ahead, in accuracy, which alone
    decides; bounds: the lowest and the highest of its 95 % intervals; both None where runs are
    missing, which `missing` names. beside: what else the same runs tell."""

    says: str
    verdict: Verdict
    gain: float | None = None
    bounds: Bounds | None = None
    missing: str = ""
    beside: str = ""

    def sentence(self) -> str:
        """One line of markdown."""
        told = f"{self.says}: **{self.verdict}**"
        if self.gain is not None:
            told += f" ({_figure(self.gain, self.bounds)} in accuracy)"
        told += f"; {self.beside}" if self.beside else ""
        return told + (f", for want of {self.missing}" if self.missing else "")


def expectations(
    grid: GridConfig, pairs: Sequence[Difference], lines: Sequence[Line] = ()
) -> list[Expectation]:
    """The three of the papers: POPri's text beyond PrE-Text's, text beyond training on the devices
    at the smallest epsilon, and a crossing of the two at a larger one.

    pairs: differences of methods (`estimates.differences`) with accuracy among their measures.
    lines: what has been run, also without its other half.
    """
    there = {(line.method.name, *line.point.items()) for line in lines if not line.reference}
    there |= {
        (method.name, *pair.point.items())
        for pair in pairs
        for method in (pair.method, pair.against)
    }
    points = [point for method in grid.methods if method.name == PRETEXT
              for point in grid.points(method)]  # fmt: skip
    found = [
        _ahead(
            grid, pairs, there, POPRI, PRETEXT, point, "POPri's text is worth more than PrE-Text's"
        )
        for point in points
    ]
    scale = numeric(grid, AXIS) if AXIS in grid.axes else None
    if scale is None:
        return found
    points.sort(key=lambda point: scale[point[AXIS]])
    says = "PrE-Text's text is worth more than training on the devices by DP-FedAvg"
    found += [
        _ahead(grid, pairs, there, PRETEXT, TRAINED, point, says)
        for point in points
        if point[AXIS] == points[0][AXIS]
    ]
    return [*found, *_crossing(grid, pairs, there, points)]


def _ahead(
    grid: GridConfig,
    pairs: Sequence[Difference],
    there: Collection[Place],
    one: str,
    other: str,
    point: Point,
    says: str,
) -> Expectation:
    """That one method is ahead of another at a point."""
    says = ", ".join(filter(None, [says, escaped(point_label(point))]))
    found = _between(pairs, one, other, point)
    if found is None:
        return Expectation(says, "not run", missing=_lacking(grid, (one, other), there, point))
    loss = _between(pairs, one, other, point, "loss")
    beside = f"{_figure(*loss)} in loss, of which less is better" if loss else ""
    sign = _sign(found[1])
    verdict: Verdict = "not decided"
    if sign:
        verdict = "confirmed" if sign > 0 else "not confirmed"
    return Expectation(says, verdict, *found, beside=beside)


def _crossing(
    grid: GridConfig,
    pairs: Sequence[Difference],
    there: Collection[Place],
    points: Sequence[Point],
) -> Iterator[Expectation]:
    """Text ahead at the smallest epsilon, training ahead at the largest."""
    ends = points[0], points[-1]
    if ends[0] == ends[1]:
        return
    says = (
        f"the two change places between {escaped(point_label(ends[0]))} and "
        f"{escaped(point_label(ends[1]))}"
    )
    own = [_between(pairs, PRETEXT, TRAINED, point) for point in ends]
    missing = [
        f"{_lacking(grid, (PRETEXT, TRAINED), there, point)} at {escaped(point_label(point))}"
        for point, one in zip(ends, own, strict=True)
        if one is None
    ]
    if missing:
        yield Expectation(says, "not run", missing=" and ".join(missing))
        return
    signs = [_sign(one[1]) for one in own if one is not None]
    verdict: Verdict = "not decided"
    if signs == [1, -1]:
        verdict = "confirmed"
    elif signs[0] < 0 or signs[1] > 0:
        verdict = "not confirmed"
    yield Expectation(says, verdict, beside=_shift(pairs, ends))


def _shift(pairs: Sequence[Difference], ends: tuple[Point, Point]) -> str:
    """How much further training is ahead of text at the second point than at the first."""
    told = []
    for measure in ("accuracy", "loss"):
        own = [
            next((one for one in pairs if one.measure == measure and one.point == point
                  and (one.method.name, one.against.name) == (TRAINED, PRETEXT)), None)
            for point in ends
        ]  # fmt: skip
        found = change(own[1], own[0]) if own[0] and own[1] else None
        if found is not None:
            told.append(f"{_figure(found.value, found.seeds)} in {measure}")
    if not told:
        return ""
    return f"training minus text is greater at the latter by {' and by '.join(told)}"


def _figure(value: float, bounds: Bounds | None) -> str:
    """With its 95 % interval."""
    told = f"{value:+.{DIGITS}f}"
    if bounds is not None:
        told += f" [{bounds[0]:+.{DIGITS}f}, {bounds[1]:+.{DIGITS}f}]"
    return told


def _between(
    pairs: Sequence[Difference], one: str, other: str, point: Point, measure: str = "accuracy"
) -> tuple[float, Bounds | None] | None:
    """How far one method is ahead, with its bounds; None without such a pair."""
    for pair in pairs:
        if pair.measure != measure or pair.point != point:
            continue
        names = pair.method.name, pair.against.name
        if names == (one, other):
            return pair.estimate.value, pair.reach
        if names == (other, one):
            reach = pair.reach
            return -pair.estimate.value, None if reach is None else (-reach[1], -reach[0])
    return None


def _sign(bounds: Bounds | None) -> int:
    return 0 if bounds is None else (bounds[0] > 0) - (bounds[1] < 0)


def _lacking(grid: GridConfig, names: Sequence[str], there: Collection[Place], point: Point) -> str:
    """The methods of a pair that have no run at a point; both, if runs of other seeds."""
    missing = [name for name in names if (name, *point.items()) not in there] or list(names)
    titles = {method.name: method.title for method in grid.methods}
    return " and ".join(escaped(titles.get(name, name)) for name in missing)
