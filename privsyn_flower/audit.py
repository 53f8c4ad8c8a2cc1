"""`privsyn audit`: is one release as private, and as noisy, as is claimed? Measured, not assumed.

Two tests of many trials through the real path (`audit_path`), with one canary user present or
absent (zero-out) and everything else known to the adversary:

threshold   the canary's shift is looked for with a matched filter. Its hits and false alarms
            bound mu of Gaussian differential privacy from below, and so epsilon (Nasr et al.
            2023, "Tight auditing of differentially private machine learning").
variance    what is left of the sums without users' vectors, at survivors of honest weight W_min,
            against the variance that is charged.

What this does not know: the bound reads epsilon off mu, which is exact for Gaussian noise and as
good as exact for Skellam noise at these sensitivities; one canary and one configuration are
tried, so passing is evidence and no proof; randomness that an adversary could predict passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privsyn_flower.audit_path import (
    EMBEDDER,
    AuditError,
    Case,
    Trials,
    run_trials,
    smallest_population,
)
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.config import RunConfig, split_list
from privsyn_flower.data import LabelledText
from privsyn_flower.privacy import accounting
from privsyn_flower.question import Query
from privsyn_flower.server_apps.parts import AGGREGATIONS, noise_multiplier
from privsyn_flower.strategies.cohort import RoundPlan
from privsyn_flower.text import load_embedder

CONFIDENCE = 0.95
# Thresholds far out have few hits or alarms; at a lower confidence chance would prefer them.
CHOOSING = 1 - 1e-8
VARIANCE_LEVEL = 1e-3  # two-sided, so too little noise is a false alarm once in 2000 audits
FEWEST_TRIALS, DEFAULT_TRIALS, MOST_TRIALS = 200, 10_000, 1_000_000

Floats = np.ndarray[Any, np.dtype[np.float64]]
Halves = tuple[Floats, Floats]


@dataclass(frozen=True)
class Audit:
    """What was found about one release.

    claimed_epsilon: of a user who takes part, at `delta`. lower_bound: epsilon is at least this
    with probability `confidence`. noise_variance_ratio: measured / charged. variance_p_value:
    two-sided. contradiction: lower_bound above claimed_epsilon, or noise below what is charged.
    """

    kind: str
    claimed_epsilon: float
    lower_bound: float
    confidence: float
    trials: int
    noise_variance_ratio: float
    variance_p_value: float
    contradiction: bool
    delta: float
    noise_multiplier: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that the command prints."""
        return asdict(self)


def audit(config: RunConfig, trials: int = DEFAULT_TRIALS) -> Audit:
    """Audit one release of this configuration's kind of query, at its noise and weights.

    trials: releases, half of them with the canary. Raises ConfigError or ValueError on numbers,
    AuditError when nothing could be measured.
    """
    if not FEWEST_TRIALS <= trials <= MOST_TRIALS:
        raise ValueError(f"trials = {trials} must be from {FEWEST_TRIALS} to {MOST_TRIALS}")
    kind, plan = query_kind(config), _plan(config)
    case = KINDS[kind](config)
    seen = run_trials(case, plan, AGGREGATIONS[config.aggregation](), trials)
    multiplier, sensitivity = seen.noise.multiplier, seen.noise.sensitivity
    claimed = accounting.epsilon(
        multiplier, 1, config.delta, mechanism="skellam", sensitivity=sensitivity
    )
    mu = mu_lower_bound(*_statistics(seen), CONFIDENCE)
    bound = accounting.gaussian_epsilon(1 / mu, config.delta) if mu > 0 else 0.0
    ratio, p_value = variance_test(seen.residue, multiplier * case.query.bound)
    return Audit(
        kind=kind,
        claimed_epsilon=claimed,
        lower_bound=bound,
        confidence=CONFIDENCE,
        trials=trials,
        noise_variance_ratio=ratio,
        variance_p_value=p_value,
        contradiction=bound > claimed or (ratio < 1 and p_value < VARIANCE_LEVEL),
        delta=config.delta,
        noise_multiplier=multiplier,
    )


def described(found: Audit) -> str:
    """The result as a table of plain lines, and what it says."""
    rows = {
        "query": f"{found.kind}, one release, of a user who takes part",
        "noise multiplier": f"{found.noise_multiplier:.4f}, at survivors of weight W_min",
        "trials": f"{found.trials}, the canary in half of them",
        "claimed epsilon": f"{found.claimed_epsilon:.4f} at delta = {found.delta:g}",
        "lower bound": f"{found.lower_bound:.4f} with confidence {found.confidence:g}",
        "noise variance": f"{found.noise_variance_ratio:.4f} of what is charged",
        "its p-value": f"{found.variance_p_value:.3g} (two-sided)",
    }
    why = []
    if found.lower_bound > found.claimed_epsilon:
        why.append("the canary is told apart more often than the claimed epsilon allows")
    if found.variance_p_value < VARIANCE_LEVEL:
        side = "less" if found.noise_variance_ratio < 1 else "more"
        why.append(f"the sums carry {side} noise than is charged")
    verdict = "CONTRADICTION" if found.contradiction else "no contradiction found"
    lines = [f"{name:<17} {text}" for name, text in rows.items()]
    return "\n".join([*lines, ": ".join([verdict, "; ".join(why)] if why else [verdict])])


def mu_lower_bound(present: Halves, absent: Halves, confidence: float) -> float:
    """mu >= this with probability `confidence`: Phi^-1(hits) - Phi^-1(false alarms), 0 at least.

    present, absent: the statistic with and without the canary, each in two independent parts.
    One threshold of 199 is chosen on the first parts; Clopper-Pearson intervals of the second
    ones, at the root of the confidence each because they are independent, certify it.
    """
    pooled = np.concatenate([present[0], absent[0]])
    thresholds = np.quantile(pooled, np.linspace(0.005, 0.995, 199))
    best = np.argmax(_mu_at(thresholds, present[0], absent[0], CHOOSING))
    certified = _mu_at(thresholds[best : best + 1], present[1], absent[1], confidence)
    return max(0.0, float(certified[0]))


def _mu_at(thresholds: Floats, present: Floats, absent: Floats, confidence: float) -> Floats:
    """The bound on mu that each threshold (k,) gives: (k,), -inf where it gives none."""
    from scipy.stats import beta, norm

    level = math.sqrt(confidence)
    hits = (present[None] > thresholds[:, None]).sum(axis=1)
    alarms = (absent[None] > thresholds[:, None]).sum(axis=1)
    # Clopper and Pearson 1934; beta.ppf has no value at the ends, where the limits are 0 and 1.
    low = np.where(hits > 0, beta.ppf(1 - level, np.maximum(hits, 1), len(present) - hits + 1), 0.0)
    rest = len(absent) - alarms
    high = np.where(rest > 0, beta.ppf(level, alarms + 1, np.maximum(rest, 1)), 1.0)
    # The limits 0 and 1 each give -inf by themselves, never inf - inf.
    bound: Floats = norm.ppf(low) - norm.ppf(high)
    return bound


def variance_test(noise: Floats, std: float) -> tuple[float, float]:
    """Measured variance of noise of mean 0 / std^2, and its two-sided chi-square p-value.

    Skellam noise at these variances is Gaussian for this purpose (excess kurtosis 1 / variance).
    """
    from scipy.stats import chi2

    freedom = noise.size
    statistic = float(np.square(noise / std).sum())
    p_value = 2 * min(chi2.cdf(statistic, freedom), chi2.sf(statistic, freedom))
    return statistic / freedom, min(1.0, float(p_value))


def _statistics(seen: Trials) -> tuple[Halves, Halves]:
    """The matched filter on every release: with the canary, and without; two halves each.

    The shift is known to the adversary, who knows all texts; where a user changes others'
    vectors too (a clip of sums, not of users) it has their part in it.
    """
    found = seen.released @ (seen.shift / np.linalg.norm(seen.shift))
    first = np.arange(len(found)) < len(found) // 2
    there, away = seen.present, ~seen.present
    return (
        (found[there & first], found[there & ~first]),
        (found[away & first], found[away & ~first]),
    )


def _plan(config: RunConfig) -> RoundPlan:
    """The run's public numbers for one release in which the canary takes part."""
    return RoundPlan(
        run="audit",
        users=max(config.data.users, smallest_population(config.min_surviving_weight)),
        noise_multiplier=noise_multiplier(config),
        spare_rounds=0,
        min_surviving_weight=config.min_surviving_weight,
        colluding_weight=config.colluding_weight,
    )


def query_kind(config: RunConfig) -> str:
    """The kind of query that the configured method asks in its rounds."""
    if config.method == "popri" and config.popri.score == "nearest":
        return "votes"
    return METHODS[config.method]


def votes_case(config: RunConfig) -> Case:
    """All of the canary's samples vote for the same candidates: the longest vector there is.

    Its node's other user has one sample, so that a clip of the node's sum would let the canary
    push that user's vote aside.
    """
    options: dict[str, Any] = {"bound": config.popri.score_bound}
    if config.method == "pretext":
        own = config.pretext
        options = {
            "bound": own.vote_bound,
            "clip": own.clip,
            "neighbors": own.neighbors,
            "metric": own.metric,
        }
    cap, names = config.data.samples_per_user, range(3 * options.get("neighbors", 1) + 2)
    texts = [f"candidate {at} {'abcdefghijklmnopqrstuvwxyz'[at % 26] * 8} {at}" for at in names]
    embedder = load_embedder(EMBEDDER)
    query = Query.votes(
        embedder.embed(texts), model=embedder.fingerprint, samples_cap=cap, **options
    )
    return Case(query, VOTES, [texts[0]] * cap, [texts[1]], [texts[2]] * cap)


def scores_case(config: RunConfig) -> Case:
    """The canary's samples are one half of the candidates, its node's other user has the other.

    Their scores point away from each other, so a clip of the node's sum would let the canary turn
    that user's vector round. Half of the candidates at similarity 1 reach the bound, or as much of
    it as a round's candidates can. With labels the canary has samples of each, so that a clip of
    every class by itself would be too long; one sample a class where the cap leaves no more.
    """
    options, cap = config.popri, config.data.samples_per_user
    labels = split_list(options.labels)[:cap]
    most = options.prompts * options.responses // 4
    prompts = max(len(labels), 3, min(most, math.ceil(options.score_bound**2 / 2)))
    sides = ["alpha beta gamma delta", "one two three four five"]
    embedder = load_embedder(EMBEDDER)
    query = Query.scores(
        np.tile(embedder.embed(sides), (2 * prompts, 1)),
        bound=options.score_bound,
        model=embedder.fingerprint,
        score=options.score,
        samples_cap=cap,
        groups=[4] * prompts,
        classes=[labels[at % len(labels)] for at in range(prompts)] if labels else None,
        labels=labels,
        dimension=min(options.dimension, embedder.dimension - 1),
    )
    canary, other = (
        [LabelledText(side, (labels or [""])[at % max(1, len(labels))]) for at in range(cap)]
        for side in sides
    )
    return Case(query, SCORES, canary, other[: max(1, len(labels))], other)


KINDS: dict[str, Callable[[RunConfig], Case]] = {"votes": votes_case, "scores": scores_case}
METHODS = {"pretext": "votes", "popri": "scores"}  # the kind of query that a method asks

__all__ = ["Audit", "AuditError", "audit", "described", "mu_lower_bound", "variance_test"]
