"""A strategy taken through a run's rounds without its users: what a result is compared with.

For benchmarks in simulation: controls learn from noise in the answers' place, a rival from answers
that the benchmark made itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.correlated import Factorization, NoiseKey, NoiseKeyMissing
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine.rounds import Method, NothingLearned

logger = logging.getLogger("privsyn_flower")

CONTROL = "control"  # what the key of a control's correlated noise is called


def replay(
    strategy: Method,
    rounds: Iterable[int],
    answers: Callable[[int], tuple[F64, float]],
    folder: RunFolder,
    progress: Progress,
    who: str,
) -> None:
    """Take `strategy` (fresh) through `rounds`; answers: round -> what is released, its noise's
    standard deviation. Resumes from `folder`. who: for the progress."""
    checkpoint = folder.last_checkpoint()
    done = int(checkpoint["round"]) if checkpoint else 0
    if checkpoint:
        strategy.restore(checkpoint["state"])
    for rnd in rounds:
        if rnd <= done:
            continue
        metrics = {}
        try:
            metrics = strategy.learn(rnd, *answers(rnd))
        except NothingLearned as error:
            logger.warning("%s: %s", who, error)
        folder.save_checkpoint(rnd, strategy.state(), {"round": rnd, **metrics})
        progress(f"{who} rounds", rnd, strategy.rounds)


def noise_updates(
    strategy: TrainingStrategy,
    config: RunConfig,
    record: RunFolder,
    folder: RunFolder,
    correlation: Factorization | None,
    progress: Progress,
) -> None:
    """Take `strategy` (fresh, attached to `folder`) through the rounds of `record` with noise in
    the updates' place.

    The noise has the released noise's standard deviation, round by round, and is correlated over
    the rounds in the same way. Resumes from `folder`.
    """
    length = strategy.layout.length + (strategy.indicator > 0)
    key = _control_key(folder)
    draw = _independent(config, length) if correlation is None else _like(correlation, key, length)
    stds = {row["round"]: row["noise_std"] for row in record.metrics()}
    replay(
        strategy, stds, lambda rnd: (stds[rnd] * draw(rnd), stds[rnd]), folder, progress, CONTROL
    )
    key.erase()


def _independent(config: RunConfig, length: int) -> Callable[[int], F64]:
    """Round -> noise of unit variance, (length,)."""
    return lambda rnd: seeded(config.seed, rnd, "control").standard_normal(length)


def _like(correlation: Factorization, key: NoiseKey, length: int) -> Callable[[int], F64]:
    """The same, correlated over the rounds."""
    stream, stds = correlation.stream(key, length), correlation.release_std()
    return lambda rnd: stream.noise(rnd) / stds[rnd - 1]


def _control_key(folder: RunFolder) -> NoiseKey:
    """A key of the control's own, which protects nobody."""
    try:
        return NoiseKey.open(folder.path, CONTROL)
    except NoiseKeyMissing:
        return NoiseKey.create(folder.path, CONTROL)
