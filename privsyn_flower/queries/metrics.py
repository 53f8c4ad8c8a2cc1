"""Federated evaluation: how well public language models predict a user's text, as one vector.

A user's vector for R models is [tokens, correct_1, loss_1, ..., correct_R, loss_R], each sum
divided by its public cap, so that every coordinate lies in [0, 1] and the norm is at most
sqrt(1 + 2 R). Only the noisy sum over users is released; ratios of its coordinates are micro
averages over tokens. The number of tokens is the same for all models and is sent once.

To compare models that are nearly alike, the others can be told as differences from the first,
cut at a share `gap` of the caps: the coordinates then hold 1 / gap times as much signal.

An app's own metrics go the same way (`user_app_metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privsyn_flower.common.arrays import F64, I64, Ints


class GridEncoder(Protocol):
    """What metrics need of an integer plan (`IntegerPlan`)."""

    @property
    def scale(self) -> float:
        """Integers per unit of the vector."""

    def encode_users(self, values: F64, users: Ints) -> I64:
        """Integers of the entries of many users' clipped vectors: (n,), (n,) -> (n,)."""


@dataclass(frozen=True)
class Ratio:
    """A quotient of two noisy sums with its confidence interval; all public."""

    value: float
    low: float
    high: float


class TooNoisyError(ValueError):
    """The noisy denominator cannot be told from zero, so no ratio means anything."""


def metrics_bound(models: int) -> float:
    """Norm that no user's vector exceeds: sqrt(1 + 2 models). Raises ValueError below 1 model."""
    if models < 1:
        raise ValueError(f"models = {models} must be at least 1")
    return math.sqrt(1 + 2 * models)


def user_metrics(
    tokens: ArrayLike,
    correct: ArrayLike,
    loss: ArrayLike,
    *,
    max_tokens: int,
    max_loss: float,
    bound: float,
    gap: float = 0.0,
) -> F64:
    """Each user's bounded vector: (u, 1 + 2 R) float64, PRIVATE.

    tokens: (u,) predicted tokens. correct, loss: (u, R) sums over them, right predictions and
    nats, for each model. Users' text is cut to max_tokens tokens and a token's loss to max_loss
    before they get here; what is above these caps is cut again. A user with NaN or infinity, or
    without tokens, is zeros. gap > 0: models after the first are told as its difference from the
    first, cut at gap of this user's tokens (correct) and of tokens * max_loss (loss), divided by
    gap of the cap; such coordinates lie in [-1, 1]. Then one joint clip: a longer vector is
    scaled to norm `bound`, which lowers that user's weight and leaves its own ratios as they are.
    Raises ValueError on shapes and parameters, which are all public.
    """
    for name, value in {"max_tokens": max_tokens, "max_loss": max_loss, "bound": bound}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value} must be finite and above 0")
    if not 0 <= gap <= 1:
        raise ValueError(f"gap = {gap} must be from 0 to 1")
    count, hits, nats = (np.asarray(part, dtype=np.float64) for part in (tokens, correct, loss))
    if count.ndim != 1 or hits.ndim != 2 or nats.shape != hits.shape or len(hits) != len(count):
        raise ValueError(
            f"tokens {count.shape}, correct {hits.shape}, loss {nats.shape}: expected (u,), "
            "(u, R) and (u, R)"
        )
    size = 1 + 2 * hits.shape[1]
    usable = np.isfinite(count) & (count > 0)  # (u,)
    usable &= np.isfinite(hits).all(axis=1) & np.isfinite(nats).all(axis=1)
    count = np.where(usable, count, 0.0).clip(0, max_tokens)
    vectors = np.zeros((len(count), size))  # (u, 1 + 2 R)
    vectors[:, 0] = count / max_tokens
    for column, sums, cap in ((1, hits, 1.0), (2, nats, max_loss)):
        kept = np.where(usable[:, None], sums, 0.0).clip(0, count[:, None] * cap)  # (u, R)
        share = kept / (max_tokens * cap)  # (u, R)
        if gap:
            most = gap * vectors[:, :1]  # (u, 1)
            share[:, 1:] = (share[:, 1:] - share[:, :1]).clip(-most, most) / gap
        vectors[:, column::2] = share
    norms = np.linalg.norm(vectors, axis=1)  # (u,)
    factor = np.minimum(1.0, bound / np.maximum(norms, 1e-300))  # (u,)
    clipped: F64 = vectors * factor[:, None]
    return clipped


def shard_metrics(
    tokens: ArrayLike,
    correct: ArrayLike,
    loss: ArrayLike,
    *,
    max_tokens: int,
    max_loss: float,
    bound: float,
    gap: float = 0.0,
    plan: GridEncoder | None = None,
    sampled: ArrayLike | None = None,
) -> NDArray[Any]:
    """Sum over a node's users of their vectors (see `user_metrics`): (1 + 2 R,), PRIVATE.

    plan: each user's vector is encoded as integers by itself, of L2 norm at most
    `plan.sensitivity`, and only then summed: int64. Entries go to the nearest integer, because
    truncation would take half an integer off every sum of every user, and the noise is no
    smaller for it. Without a plan: float64. sampled: as in `encoded_sum`.
    """
    vectors = user_metrics(
        tokens, correct, loss, max_tokens=max_tokens, max_loss=max_loss, bound=bound, gap=gap
    )
    return encoded_sum(vectors, plan, sampled)


def encoded_sum(
    vectors: F64, plan: GridEncoder | None, sampled: ArrayLike | None = None
) -> NDArray[Any]:
    """Sum of users' bounded vectors (u, d), each encoded by itself: (d,) int64, PRIVATE.

    To the nearest integer, as `shard_metrics` says. Without a plan: float64. sampled: (u,)
    booleans, PRIVATE: whether each user is summed; None: everybody. The work is the same for
    those who are not.
    """
    summed = np.ones(len(vectors), bool) if sampled is None else np.asarray(sampled)  # (u,)
    total: NDArray[Any]
    if plan is None:
        total = (vectors * summed[:, None]).sum(axis=0)
        return total
    whole = np.rint(vectors * plan.scale)  # (u, d)
    # A quarter beyond the integer: an encoder that truncates and one that rounds agree on it.
    values = (whole + 0.25 * np.sign(whole)) / plan.scale
    users = np.repeat(np.arange(len(vectors)), vectors.shape[1])  # (u d,)
    integers = plan.encode_users(values.ravel(), users).reshape(vectors.shape)  # (u, d)
    total = (integers * summed[:, None]).sum(axis=0)  # (d,)
    return total


# --- the server's side: from the released sum to ratios -------------------------------------


@dataclass(frozen=True)
class Reading:
    """A released sum (1 + 2 R,) with what is needed to read it. All public.

    noise_std: of every coordinate. max_loss, gap: as the question had them. z: standard
    deviations of the intervals.
    """

    released: tuple[float, ...]
    noise_std: float
    max_loss: float
    gap: float
    z: float

    def accuracy(self, model: int) -> Ratio:
        """Micro accuracy of model number `model` (from 0), within [0, 1]."""
        return within(self._ratio(self._weights(model, 0)), 0.0, 1.0)

    def loss(self, model: int) -> Ratio:
        """Micro cross-entropy in nats, tokens cut at max_loss, within [0, max_loss]."""
        ratio = self._ratio(self._weights(model, 1), self.max_loss)
        return within(ratio, 0.0, self.max_loss)

    def accuracy_gained(self, model: int, other: int) -> Ratio:
        """Accuracy of `model` less that of `other`."""
        return self._ratio(self._weights(model, 0) - self._weights(other, 0))

    def loss_saved(self, model: int, other: int) -> Ratio:
        """Loss of `other` less that of `model`, in nats."""
        return self._ratio(self._weights(other, 1) - self._weights(model, 1), self.max_loss)

    def _weights(self, model: int, part: int) -> F64:
        """Coefficients of the coordinates in a model's sum; part 0: correct, 1: loss."""
        weights = np.zeros(len(self.released))  # (1 + 2 R,)
        weights[1 + 2 * model + part] = 1.0
        if self.gap and model:
            weights *= self.gap
            weights[1 + part] = 1.0
        return weights

    def _ratio(self, weights: F64, unit: float = 1.0) -> Ratio:
        """A weighted sum over the tokens: coordinates have independent noise of one size."""
        std = self.noise_std
        top, top_std = float(weights @ self.released), float(np.linalg.norm(weights)) * std
        ratio = noisy_ratio(top, self.released[0], top_std, std, self.z)
        return Ratio(unit * ratio.value, unit * ratio.low, unit * ratio.high)


def noisy_ratio(
    numerator: float,
    denominator: float,
    numerator_std: float,
    denominator_std: float,
    z: float,
    *,
    denominator_name: str = "number of tokens, in users' caps,",
    remedy: str = "more users or fewer models, lower max-tokens",
) -> Ratio:
    """Quotient of two sums with independent noise, and Fieller's interval for it.

    The interval is the set of r for which numerator - r * denominator, whose noise has the
    variance numerator_std^2 + r^2 denominator_std^2, is within z of its standard deviations of
    0. So its coverage is that of z, however noisy the denominator is. It covers the noise, not
    the choice of users. Raises TooNoisyError when the denominator is not above z of its standard
    deviations: the set is then unbounded. denominator_name, remedy: words for that, what the
    denominator is and what makes it larger.
    Source: Fieller 1954, "Some problems in interval estimation".
    """
    square = denominator**2 - (z * denominator_std) ** 2
    if not (denominator > 0 and square > 0):
        raise TooNoisyError(
            f"the noisy {denominator_name} is {denominator:.4g}, not above {z:.2f} standard "
            f"deviations of its noise ({denominator_std:.4g}): evaluate on {remedy}, or spend "
            "more on the evaluation"
        )
    spread = (numerator * denominator_std) ** 2 + numerator_std**2 * square
    middle, half = numerator * denominator / square, z * math.sqrt(spread) / square
    return Ratio(numerator / denominator, middle - half, middle + half)


def within(ratio: Ratio, low: float, high: float) -> Ratio:
    """What is known to lie in [low, high] is reported there; no coverage is lost."""
    return Ratio(*(min(max(v, low), high) for v in (ratio.value, ratio.low, ratio.high)))


# --- metrics of somebody else's app -------------------------------------------------------------
#
# An evaluate function of Flower's returns named numbers and how many examples they are about, and
# FedAvg averages them by these. Here a metric m with the public bounds [low, high] becomes
# c = 2 (m - low) / (high - low) - 1 in [-1, 1], a user's weight w lies in [0, 1], and the vector is
# [w, w c_1, ..., w c_k]. Its norm is at most sqrt(1 + k). Only the noisy sum over users is
# released; the ratio of a coordinate to the first is the weighted mean of c, which gives that of m.
# The middle of the bounds is 0, not low: the norm is the same, and the mean of a metric has half of
# the noise that it would have with m in [0, 1].

MOST_METRICS = 16
LARGEST_COUNT = 2**53  # of examples that are told apart: above it floats skip whole numbers

Bounds = Sequence[tuple[float, float]]


def app_metrics_bound(metrics: int) -> float:
    """Norm that no user's vector exceeds: sqrt(1 + metrics). Raises ValueError out of 1..16."""
    if not 1 <= metrics <= MOST_METRICS:
        raise ValueError(f"{metrics} metrics: from 1 to {MOST_METRICS} fit one evaluation")
    return math.sqrt(1 + metrics)


def check_bounds(bounds: Bounds) -> None:
    """Raises ValueError unless every (low, high) is finite with low < high."""
    for low, high in bounds:
        # Their difference is divided by: it must be a number, too.
        if not (low < high and high - low < math.inf):
            raise ValueError(f"bounds ({low}, {high}) must be finite, the first below the second")


def user_app_metrics(
    examples: ArrayLike, values: ArrayLike, *, bounds: Bounds, max_examples: int
) -> F64:
    """Each user's bounded vector: (u, 1 + k) float64, PRIVATE.

    examples: (u,) what each user's metrics are about. values: (u, k) the metrics, cut to `bounds`.
    max_examples: 0 gives every user the weight 1; else the weight is min(examples, max_examples)
    / max_examples, so that a user with more examples than that weighs no more. A user with NaN or
    infinity, or without examples, is zeros. Raises ValueError on shapes and on parameters, which
    are public.
    """
    count, found = np.asarray(examples, dtype=np.float64), np.asarray(values, dtype=np.float64)
    app_metrics_bound(len(bounds))
    check_bounds(bounds)
    if not 0 <= max_examples <= LARGEST_COUNT:
        raise ValueError(f"max_examples = {max_examples} must be from 0 to {LARGEST_COUNT}")
    if count.ndim != 1 or found.shape != (len(count), len(bounds)):
        raise ValueError(
            f"examples {count.shape}, values {found.shape}: expected (u,) and (u, {len(bounds)})"
        )
    usable = np.isfinite(count) & (count > 0) & np.isfinite(found).all(axis=1)  # (u,)
    count, found = np.where(usable, count, 0.0), np.where(usable[:, None], found, 0.0)  # (u, k)
    weight = np.minimum(count, max_examples) / max_examples if max_examples else usable * 1.0
    low, high = np.array(bounds, dtype=np.float64).T  # (k,), (k,)
    centred = (2 * ((found.clip(low, high) - low) / (high - low)) - 1).clip(-1, 1)  # (u, k)
    return np.concatenate([weight[:, None], weight[:, None] * centred], axis=1)


def shard_app_metrics(
    examples: ArrayLike,
    values: ArrayLike,
    *,
    bounds: Bounds,
    max_examples: int,
    plan: GridEncoder | None = None,
    sampled: ArrayLike | None = None,
) -> NDArray[Any]:
    """Sum over a node's users of their vectors (see `user_app_metrics`): (1 + k,), PRIVATE.

    plan: each user's vector is encoded as integers by itself (`encoded_sum`); without: float64.
    sampled: (u,) whether each user is summed, as there.
    """
    vectors = user_app_metrics(examples, values, bounds=bounds, max_examples=max_examples)
    return encoded_sum(vectors, plan, sampled)


# --- the server's side: from the released sum to means --------------------------------------


def read_app_metrics(
    released: ArrayLike, noise_std: float, *, bounds: Bounds, z: float
) -> list[Ratio]:
    """The released sum (1 + k,) -> each metric's mean with its interval; post-processing.

    noise_std: of every coordinate. z: standard deviations of the intervals, which cover the noise
    of this release and nothing else. Raises TooNoisyError when the sum of the users' weights
    cannot be told from zero.
    """
    weight, *sums = (float(value) for value in np.asarray(released))
    means = []
    for total, (low, high) in zip(sums, bounds, strict=True):
        ratio = noisy_ratio(
            total,
            weight,
            noise_std,
            noise_std,
            z,
            denominator_name="sum of the users' weights",
            remedy="more users or fewer metrics, lower max_examples",
        )
        middle, half = low + (high - low) / 2, (high - low) / 2
        scaled = (middle + half * value for value in (ratio.value, ratio.low, ratio.high))
        means.append(within(Ratio(*scaled), low, high))
    return means
