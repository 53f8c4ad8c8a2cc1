"""Federated evaluation: how well do these public models predict the users' text?

The server sends one or several small causal language models; each user answers with one bounded
vector (`queries/metrics.py`), and only the noisy sum comes back, charged to the same ledger as
every other release. Accuracy and loss are ratios of its coordinates, with intervals that the
known noise gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.plan import EVALUATIONS
from privsyn_flower.protocol.question import Query
from privsyn_flower.queries.metrics import Ratio, Reading, metrics_bound
from privsyn_flower.strategies.engine.cohort import Cohort
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.engine.session import Session
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.batches import SpecialTokens
from privsyn_flower.text.models.lm_metrics import BATCH_TOKENS, check_special_tokens
from privsyn_flower.text.models.parameters import (
    MOST_MODELS,
    Parameters,
    base_shapes,
    check_parameters,
    longest_sequence,
    model_names,
    pack_parameters,
    read_model,
)


@dataclass(frozen=True)
class Caps:
    """Public bounds of one user's answer; the same for all users and models.

    max_tokens: predicted tokens of one user that count, the first ones. Near what a typical
    user holds: a higher cap makes everybody's share of the norm smaller. max_loss: nats of one
    token; log of the vocabulary is what a model that knows nothing loses. sequence_length:
    tokens of one text. special_tokens: around it (`text.models.batches.encode`). bound: L2 norm of
    the joint clip; 0 for sqrt(1 + 2 models), which never clips. A smaller one adds less noise, and
    weighs users with much text less. gap: above 0, models after the first are told as their
    difference from it, cut at this share of a user's tokens and of max_loss nats; differences have
    1 / gap times less noise then. 0.1 is right for checkpoints of one training.
    """

    max_tokens: int = 512
    max_loss: float = 10.0
    sequence_length: int = 64
    bound: float = 0.0
    gap: float = 0.0
    special_tokens: SpecialTokens = "tokenizer"


@dataclass(frozen=True)
class Estimate:
    """One model's noisy figures with the intervals of the evaluation's noise. All public.

    accuracy: share of tokens predicted right. loss: nats a token, each cut at max_loss. The
    intervals cover the noise of this release and nothing else: they are about the users who took
    part, not about users in general. reading, number: what they come from.
    """

    accuracy: float
    accuracy_low: float
    accuracy_high: float
    loss: float
    loss_low: float
    loss_high: float
    reading: Reading
    number: int


@dataclass(frozen=True)
class Difference:
    """How much better the first of two models is: accuracy gained and loss saved, each with its
    interval. Above 0 is better; `low > 0` says that the noise does not explain it."""

    accuracy: Ratio
    loss: Ratio


def evaluation_query(models: Mapping[str, Parameters], *, fingerprint: str, caps: Caps) -> Query:
    """The question about these models, in their order; all arrays are public.

    fingerprint: of the base model's folder, which a node must have. Raises ValueError for no
    model, more than MOST_MODELS, or caps out of range.
    """
    if not 1 <= len(models) <= MOST_MODELS:
        raise ValueError(f"{len(models)} models: from 1 to {MOST_MODELS} fit one evaluation")
    if caps.sequence_length > BATCH_TOKENS:
        raise ValueError(
            f"sequence_length = {caps.sequence_length}: nodes take at most {BATCH_TOKENS} tokens "
            "(evaluation.sequence-length)"
        )
    if caps.max_tokens < 1 or caps.sequence_length < 2 or not 0 < caps.max_loss < math.inf:
        raise ValueError(f"{caps}: max_tokens >= 1, sequence_length >= 2 and max_loss > 0 needed")
    if not 0 <= caps.gap <= 1:
        raise ValueError(f"gap = {caps.gap} must be from 0 to 1")
    full = metrics_bound(len(models))
    if not 0 <= caps.bound <= full:
        raise ValueError(f"bound = {caps.bound} must be at most {full:.4g}, or 0 for that")
    packed = [pack_parameters(parameters) for parameters in models.values()]
    return Query(
        kind="evaluation",
        rows=np.zeros((0, 0), dtype=np.int8),
        scales=np.zeros(0, dtype=np.float32),
        length=1 + 2 * len(models),
        bound=caps.bound or full,
        model=fingerprint,
        options={
            "models": len(models),
            "max-tokens": caps.max_tokens,
            "max-loss": caps.max_loss,
            "sequence-length": caps.sequence_length,
            "gap": caps.gap,
            "special-tokens": caps.special_tokens,
        },
        extra=dict(zip(model_names(len(models)), packed, strict=True)),
    )


def read_estimates(
    released: F64, names: list[str], noise_std: float, caps: Caps, confidence: float = 0.95
) -> dict[str, Estimate]:
    """The released sum (1 + 2 models,) -> each model's figures; post-processing.

    Raises TooNoisyError when the number of tokens cannot be told from zero.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    sums = tuple(float(value) for value in released)
    reading = Reading(sums, noise_std, caps.max_loss, caps.gap, z)
    estimates = {}
    for number, name in enumerate(names):
        right, loss = reading.accuracy(number), reading.loss(number)
        figures = (right.value, right.low, right.high, loss.value, loss.low, loss.high)
        estimates[name] = Estimate(*figures, reading, number)
    return estimates


def better(first: Estimate, second: Estimate) -> Difference:
    """How much better `first` is than `second`, measured in the same evaluation.

    Both ratios have the same denominator, so the difference is one ratio, and its interval is
    narrower than the two intervals make believe. Raises ValueError for two evaluations.
    """
    reading = first.reading
    if reading != second.reading:
        raise ValueError("the two models were not measured in the same evaluation")
    pair = first.number, second.number
    return Difference(reading.accuracy_gained(*pair), reading.loss_saved(*pair))


class FederatedEvaluation(OneQuestion):
    """One question about some models, for the round engine."""

    def __init__(self, models: Mapping[str, Parameters], *, fingerprint: str, caps: Caps) -> None:
        query = evaluation_query(models, fingerprint=fingerprint, caps=caps)
        super().__init__(query, list(models))


def evaluate(
    models: Mapping[str, Parameters | Path],
    *,
    base: Path,
    session: Session,
    phase: str = EVALUATIONS,
    caps: Caps | None = None,
    name: str = "",
    last: bool = False,
    cohort: Cohort | None = None,
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """Measure public models on the users of a run, as one more release of its ledger.

    models: name -> folder (a whole causal LM or a PEFT LoRA adapter) or named arrays over
    `base`, a local folder that the nodes have too; {} is the base itself. session: the run's,
    inside `begun`, whose plan has the phase. name, last, cohort: as `Session.ask` has them.
    Raises what that does, TooNoisyError and ParametersError.
    """
    caps = caps or Caps()
    shapes = base_shapes(base)
    given = {key: m if isinstance(m, Mapping) else read_model(m, base) for key, m in models.items()}
    for parameters in given.values():
        check_parameters(parameters, shapes)
    if caps.sequence_length > longest_sequence(base):
        raise ValueError(
            f"sequence_length = {caps.sequence_length} is above {base}'s {longest_sequence(base)}"
        )
    check_special_tokens(base, caps.special_tokens)
    strategy = FederatedEvaluation(given, fingerprint=folder_fingerprint(base), caps=caps)
    session.ask(strategy, phase, name=name, last=last, cohort=cohort)
    released = np.array(strategy.released)
    return read_estimates(released, strategy.names, strategy.noise_std, caps, confidence)
