"""What a run came to, in a sentence: was anything heard through the noise, and did it help?

From released numbers alone, so it costs no privacy. The benchmark's part is told apart, as it comes
from private and held-out text.

The test: a release r (d,) is a sum s plus noise, independent of coordinate to coordinate, of known
standard deviation sigma. Its excess is |r|^2 / (d sigma^2) - 1. From s = 0, |r|^2 / sigma^2 has the
chi-squared distribution of d degrees of freedom: mean d and variance 2 d, so the excess is 0 with a
sampling error of sqrt(2 / d). Otherwise it is |s|^2 / (d sigma^2) on average: the squared ratio of
the signal's norm to the noise's. Votes and scores tell candidates apart by their differences alone:
what all candidates of a group have in common is taken out first, and with it one degree of freedom
a group (Cochran's theorem).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.protocol.question import Query

FALSE_ALARM = 0.01  # chance that pure noise passes for a signal, at most
SMALLEST = 1e-300  # p-value that is told as a number
DROWNED, BELOW, ABOVE = "drowned", "below the noise", "above the noise"
RESULTS = ("synthetic", "trained")
WORDS = {
    "pretrained": "the model before",
    "start": "the start, trained on public text",
    "random_public": "random public text",
    "minority_public": "the public text that is like the users'",
    "noise_votes": "noise in the votes' place",
    "noise_scores": "noise in the scores' place",
    "noise_updates": "noise in the updates' place",
    "noise_answers": "noise in the place of both answers",
    "no_private_step": "the generator before any private step",
}


def verdict(
    metrics: Iterable[Mapping[str, Any]],
    figures: Mapping[str, Any],
    *,
    what: str,
    independent: bool,
) -> dict[str, Any]:
    """The run's verdict for summary.json; public.

    metrics: rows by round. figures: of the method, with what was paid for beside the rounds. what:
    was released ("votes", "scores", "update"). independent: the noise, of round to round.
    """
    found = [Excess(row["excess"], row["excess_degrees"]) for row in metrics if "excess" in row]
    result: dict[str, Any] = {"sentences": []}
    if found:
        result |= _signal(found, what, independent)
        result["sentences"] = [result.pop("sentence")]
    evaluated = figures.get("evaluation", {})
    if "loss_saved" in evaluated:
        result["evaluation"], sentence = _evaluation(evaluated)
        result["sentences"].append(sentence)
    if "models" in figures.get("measured", {}):
        result["sentences"].append(_best(figures["measured"]))
    selected = figures.get("selection", {})
    if chosen := selected.get("estimates", {}).get(f"round-{selected.get('round', 0):04d}"):
        loss = _interval([chosen["loss"], chosen["loss_low"], chosen["loss_high"]], sign=False)
        result["sentences"].append(
            f"evaluated on the nodes: round {selected['round']} is best, loss {loss}"
        )
    return result


def _signal(excesses: Sequence[Excess], what: str, independent: bool) -> dict[str, Any]:
    degrees = sum(one.degrees for one in excesses)
    pooled = Excess(sum(one.degrees * one.value for one in excesses) / degrees, degrees)
    p = p_value(excesses, independent=independent)
    ratios = [round(one.signal_to_noise, 4) for one in excesses]
    releases = f"{len(excesses)} releases" if len(excesses) > 1 else "the release"
    if p >= FALSE_ALARM:
        state = DROWNED
        sentence = (
            f"the noise drowned the {what}: {releases} cannot be told from pure noise ({below(p)})"
        )
    else:
        state = ABOVE if pooled.value >= 1 else BELOW
        course = f"; round by round: {', '.join(f'{r:.2g}' for r in ratios)}"
        sentence = (
            f"the {what} can be told from noise, with {pooled.signal_to_noise:.2g} times the "
            f"noise's norm ({below(p)}{course if len(ratios) > 1 else ''})"
        )
    return {
        "signal": state,
        "signal_to_noise": ratios,
        "excess": round(pooled.value, 6),
        "excess_error": round(math.sqrt(2.0 / degrees), 6),
        "p_value": float(f"{p:.3g}"),
        "false_alarm": FALSE_ALARM,
        "sentence": sentence,
    }


def below(p: float) -> str:
    """A p-value in words: no test has one of 0, only one too small for a float."""
    return f"p = {p:.2g}" if p > SMALLEST else f"p < {SMALLEST:g}"


def _evaluation(evaluated: Mapping[str, Any]) -> tuple[str, str]:
    """better, worse or unclear, by the loss of one paid release, and the sentence."""
    saved, gained = evaluated["loss_saved"], evaluated["accuracy_gained"]
    word = judged(saved)
    said = {
        "better": "the training made the model better",
        "worse": "the training made the model worse",
        "unclear": "its noise does not tell better from worse",
    }[word]
    return word, (
        f"evaluated on the nodes, a paid release: loss saved {_interval(saved)} nats a token, "
        f"accuracy gained {_interval(gained)}: {said}"
    )


def _best(measured: Mapping[str, Any]) -> str:
    """Which of the measured models is right most often, and whether the noise explains it."""
    found = measured["models"]
    best = max(found, key=lambda name: float(found[name]["accuracy"]))
    own = [found[best][key] for key in ("accuracy", "accuracy_low", "accuracy_high")]
    many = measured.get("together", 0)
    of = f" of {many}, in intervals that hold for all of them" if many > 2 else ""
    said = f"evaluated on the nodes: {best!r} is right most often{of}, {_interval(own, sign=False)}"
    if best == measured["against"]:
        return said
    gained = measured["gained"][best]["accuracy_gained"]
    return f"{said}; against {measured['against']!r} {_interval(gained)}, {judged(gained)}"


def judged(interval: Sequence[float]) -> str:
    """A gain's [value, low, high]: better, worse, or unclear where 0 is within it."""
    _, low, high = interval
    if low > 0:
        return "better"
    return "worse" if high < 0 else "unclear"


def benchmark_verdict(benchmark: Mapping[str, Any]) -> list[str]:
    """The benchmark's comparisons of the run's result in words; not covered by epsilon."""
    lines = []
    for pair, interval in benchmark.get("accuracy_difference", {}).items():
        result, _, other = pair.partition("-")
        if result not in RESULTS or other not in WORDS:
            continue
        line = f"against {WORDS[other]}: accuracy {_interval(interval)}, {judged(interval)}"
        if pair in benchmark.get("loss_difference", {}):
            value, low, high = benchmark["loss_difference"][pair]
            saved = [-value, -high, -low]
            line += f"; loss saved {_interval(saved)}, {judged(saved)}"
        lines.append(line)
    return lines


def _interval(values: Sequence[float], *, sign: bool = True) -> str:
    value, low, high = (f"{one:+.4f}" if sign else f"{one:.4f}" for one in values)
    return f"{value} [{low}, {high}]"


logger = logging.getLogger("privsyn_flower")


def warn_if_drowned(what: str, first: Excess) -> None:
    """Say after a first round that its votes or scores may all be noise. Noise alone escapes the
    warning in FALSE_ALARM of the cases. A training round's own signal is too small to judge."""
    if (p := p_value([first])) >= FALSE_ALARM:
        logger.warning(
            "%s cannot be told from pure noise (p = %.2g, a signal below %g): what is "
            "chosen by them follows the noise. More users, a larger epsilon or fewer candidates "
            "would help; or the users prefer none of these candidates to another", what, p,
            FALSE_ALARM,
        )  # fmt: skip


def excess_of(query: Query, released: F64, noise_std: float) -> Excess | None:
    """The excess of the answer to a question; None for a question that chooses or trains nothing.

    Votes are compared with each other, scores within their prompt, an update with no change.
    """
    if query.kind == "update":  # adaptive clipping's count comes after the update
        counted = float(query.options.get("indicator", 0.0)) > 0
        return excess(released[: len(released) - counted], noise_std)
    if query.kind == "votes":
        return excess(released, noise_std, [len(released)])
    if query.kind == "scores":
        groups = query.extra.get("groups")
        sizes = [len(released)] if groups is None else [int(count) for count in groups]
        # An audit has the answers of many trials in one release.
        return excess(released, noise_std, sizes) if sum(sizes) == len(released) else None
    return None


# Of the noise's variance: so much more may be the users' rounding to integers, which is no signal.
# A user adds at most 1/4 in integers, the noise at least (4096 z)^2: it covers 67,000 z^2 users.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Excess:
    """value: |r|^2 / (degrees sigma^2) - 1 of a release. degrees: of freedom, at least 1."""

    value: float
    degrees: int

    @property
    def error(self) -> float:
        """Its standard deviation on pure noise."""
        return math.sqrt(2.0 / self.degrees)

    @property
    def signal_to_noise(self) -> float:
        """The estimated norm of the signal over the noise's, at least 0."""
        return math.sqrt(max(0.0, self.value))


def excess(released: F64, noise_std: float, groups: Sequence[int] = ()) -> Excess | None:
    """The excess of a release (d,). groups: sizes of the groups whose means are taken out, d in
    all; none: nothing is. None where no coordinate is left, or there is no noise."""
    values = np.asarray(released, dtype=np.float64)
    degrees = len(values) - len(groups)
    if degrees < 1 or noise_std <= 0:
        return None
    if groups:
        starts = np.concatenate([[0], np.cumsum(groups)[:-1]]).astype(np.intp)
        means = np.add.reduceat(values, starts) / np.asarray(groups)
        values = values - np.repeat(means, groups)
    scaled = values / noise_std
    return Excess(float(scaled @ scaled) / degrees - 1.0, degrees)


def p_value(excesses: Sequence[Excess], *, independent: bool = True) -> float:
    """How often pure noise has at least such an excess; 1 without releases.

    independent: of release to release, which are added up then. Else, as where an aggregator
    correlates the noise over the rounds, the largest counts, as many times as there are
    (Bonferroni), whatever the dependence.
    """
    from scipy.special import chdtrc

    if not excesses:
        return 1.0
    sums = [one.degrees * (1.0 + one.value) / (1.0 + TOLERANCE) for one in excesses]
    degrees = [one.degrees for one in excesses]
    if independent:
        return float(chdtrc(sum(degrees), sum(sums)))
    least = min(float(chdtrc(d, total)) for d, total in zip(degrees, sums, strict=True))
    return min(1.0, len(excesses) * least)
