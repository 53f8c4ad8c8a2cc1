"""The noise of a release beside what the users' answers come to: `privsyn plan`'s first lines.

Everything is in units of the released sum. The answers are bounded, so the most that they can come
to is known before anything is asked; what they will come to is not, and nothing here guesses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privsyn_flower.app.preflight.findings import Finding, Findings
from privsyn_flower.app.preflight.numbers import noise_of
from privsyn_flower.config import EvolutionConfig, RunConfig, split_list
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.strategies.evaluation.config import MeasureConfig
from privsyn_flower.strategies.popri.config import PopriConfig

SURE = 1.96  # standard deviations of an interval
NEAREST = (
    "votes are for the nearest text, however far: they do not tell whether public text is of the "
    "users' domain"
)
MOST_EPSILON = 64  # times the run's: a larger one is no advice


@dataclass(frozen=True)
class Signal:
    """noise: standard deviation of one coordinate of what is released. expected: what the answers
    come to there, under the assumption that `assumed` states. users: in that sum, on average."""

    kind: str
    unit: str
    noise: float
    expected: float
    users: float
    assumed: str
    note: str = ""

    @property
    def ratio(self) -> float:
        """Expected signal over noise."""
        return self.expected / self.noise if self.noise else math.inf

    def lines(self) -> list[str]:
        """In words."""
        first = (
            f"noise {self.noise:,.4g}, signal {self.expected:,.4g} {self.unit}: ratio "
            f"{self.ratio:,.3g} ({self.assumed}; {self.users:,.0f} users in the sum)"
        )
        ratio = (
            "the ratio is the signal in standard deviations of the noise; it is readable from "
            f"{SURE} on, {'as here' if self.readable else 'which it is not here'}"
        )
        return [first, ratio, *([self.note] if self.note else [])]

    @property
    def readable(self) -> bool:
        """Whether it stands out of the noise at 95 %."""
        return self.ratio >= SURE


def weak(config: RunConfig, signal: Signal, coordinates: int | None) -> Findings:
    """A signal that the noise would cover, and what would make it readable."""
    if signal.readable:
        return
    users = math.ceil(config.data.users * SURE / signal.ratio)
    ways = [f"about {users:,} users (data.users = {config.data.users:,})"]
    if epsilon := _readable_from(config, coordinates):
        ways.append(f"epsilon = {epsilon:.3g} at these users")
    ways.append("fewer models" if signal.kind == "evaluation" else "fewer numbers in an answer")
    yield Finding(
        f"the signal ({signal.kind}) is {signal.ratio:.3g} times the noise, and is not surely "
        f"readable below {SURE}: the result may follow the noise more than the users, and be worse "
        f"than public text alone. It takes {', or '.join(ways)}",
        fatal=False,
    )


def _readable_from(config: RunConfig, coordinates: int | None) -> float | None:
    """The epsilon from which the signal is readable, to three digits; None: none that is known."""

    def readable(epsilon: float) -> bool:
        other = config.model_copy(update={"epsilon": epsilon})
        return signal_of(other, coordinates).readable

    low, high = config.epsilon, config.epsilon
    try:
        while not readable(high):
            low, high = high, 2 * high
            if high > MOST_EPSILON * config.epsilon:
                return None
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if readable(middle) else (middle, high)
    except ValueError:  # numbers without a privacy plan
        return None
    return math.ceil(high * 100) / 100


def signal_of(config: RunConfig, coordinates: int | None) -> Signal:
    """The signal of a configuration with rounds. coordinates: of an update, where the model's size
    is known."""
    kind, asked = recipe_of(config).question(config)
    if kind == "update":
        return _update(config, coordinates)
    _, users, _ = noise_of(config)
    bound = float(asked["bound"])
    noise = privacy_plan(config).main.multiplier * bound
    if kind == "evaluation":
        return _evaluation(config, users, noise)
    size = recipe_of(config).length(config)
    if kind == "votes":
        return _votes(config, asked, users, noise, size)
    classes = max(1, len(split_list(config[PopriConfig].labels)))
    expected = bound * users / math.sqrt(size * classes)
    return Signal(
        "scores", "a response", noise, expected, users,
        "root mean square of the scores' sum, when all users score alike",
        f"when they agree less, it shrinks as their agreement does: below {noise / expected:.2%} "
        "of it a response does not stand out by one standard deviation",
    )  # fmt: skip


def _evaluation(config: RunConfig, users: float, noise: float) -> Signal:
    """Accuracy is a quotient whose denominator is the tokens, counted in users' caps."""
    ratio = users / noise
    sure = ratio > SURE
    note = (
        f"an accuracy's 95 % interval is then about +- {SURE / ratio:.2g}; wider, as users hold "
        "less text" if sure else "no figure would have an interval: raise epsilon or users, or "
        "measure fewer models"
    )  # fmt: skip
    most = config[MeasureConfig].tokens(config)
    return Signal(
        "evaluation", "users' caps of tokens", noise, users, users,
        f"when every user has {most:,} tokens to predict or more", note,
    )  # fmt: skip


def _votes(
    config: RunConfig, options: dict[str, Any], users: float, noise: float, size: int
) -> Signal:
    votes = one_users_votes(
        options.get("clip", "normalised"),
        float(options["bound"]),
        min(size, config.data.samples_per_user * options.get("neighbors", 1)),
    )
    return Signal(
        "votes", "votes a candidate", noise, users * votes / size, users,
        f"the mean over {size:,} candidates, when every user has data.samples-per-user = "
        f"{config.data.samples_per_user} texts and votes for as many candidates",
        "; ".join(filter(None, [_threshold(config, noise), NEAREST])),
    )  # fmt: skip


def one_users_votes(clip: str, bound: float, votes: int) -> float:
    """Sum of one user's clipped votes for so many different candidates (`queries.votes`).

    Counts of 1 have the norm sqrt(n): normalised to the bound they sum to bound sqrt(n), clipped
    to it to n min(1, bound / sqrt(n)).
    """
    norm = math.sqrt(votes)
    return votes * (bound / norm if clip == "normalised" else min(1.0, bound / norm))


def _threshold(config: RunConfig, noise: float) -> str:
    """What the threshold is in both units."""
    if not config.owns(EvolutionConfig):
        return ""
    own = config.evolution
    votes = own.threshold * (noise if own.threshold_unit == "noise-std" else 1.0)
    return f"threshold {votes:,.4g} votes, {votes / noise:.2f} standard deviations of the noise"


def _update(config: RunConfig, coordinates: int | None) -> Signal:
    """A model is the sum of its rounds: of all of them together, in units of clip-norm."""
    noise, answers, summed = noise_of(config)
    clip = config.training.clip_norm
    if coordinates is None:
        note = (
            f"over the whole vector: unknown, the size of models.{config.trained} is not known here"
        )
    else:
        whole = noise * math.sqrt(coordinates)
        note = (
            f"over the whole vector of {coordinates:,} coordinates the noise has the norm "
            f"{whole * clip:,.4g}: ratio {answers / whole:,.3g}"
        )
    return Signal(
        "update", f"in one direction, of {summed}", noise * clip, answers * clip, answers,
        f"every update at training.clip-norm = {clip:g} and in that direction", note,
    )  # fmt: skip
