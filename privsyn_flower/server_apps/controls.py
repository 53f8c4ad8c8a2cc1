"""What a run is compared with: the same pipeline on pure noise, and a rival at the same epsilon.

For benchmarks in simulation. The control opens nothing private. The rival is another method
whose users' answers come from the benchmark's own view of their text, with Gaussian noise of the
run's multiplier: its figures are a comparison, never a result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from privsyn_flower.benchmark.private import Private
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.correlated import Factorization, NoiseKey, NoiseKeyMissing
from privsyn_flower.privacy.noise.gaussian import system_gaussian
from privsyn_flower.progress import Progress
from privsyn_flower.randomness import seeded
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.models import Method, Models
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine.rounds import NothingLearned, Vector
from privsyn_flower.strategies.popri import POPri
from privsyn_flower.strategies.pretext import PrEText
from privsyn_flower.text.prompts import LabelledText, expand

logger = logging.getLogger("privsyn_flower")

CONTROL = "control"  # what the key of a control's correlated noise is called


def synthesise(
    strategy: Method, models: Models, config: RunConfig, path: Path, purpose: str
) -> list[LabelledText]:
    """The strategy's synthetic texts in the file `path`, made unless they are there.

    Post-processing: costs no privacy. purpose: of the randomness.
    """
    if path.exists():
        return [LabelledText(row["text"], row.get("label", "")) for row in read_jsonl(path)]
    options = config.expand
    if isinstance(strategy, POPri):
        texts = strategy.synthesise(options.samples)
    else:
        include = options.include_seeds or not options.samples
        plain = list(strategy.seeds) if include else []
        if options.samples:
            generator = models.generator()
            generator.use_adapter(None)
            plain += expand(
                strategy.seeds,
                generator,
                samples=options.samples,
                seeds_per_prompt=options.seeds_per_prompt,
                rng=seeded(config.seed, purpose, "expand"),
                min_words=options.min_words,
                progress=models.progress,
            )
        texts = [LabelledText(text) for text in plain]
    rows = (asdict(one) if one.label else {"text": one.text} for one in texts)
    write_jsonl(path, rows)
    return texts


def noise_control(
    strategy: Method, config: RunConfig, record: RunFolder, folder: RunFolder, progress: Progress
) -> None:
    """Take `strategy` (fresh) through the rounds of `record` with noise in the answers' place.

    The noise has the released noise's standard deviation, round by round. Votes lie around the
    mean of the released ones, as if every candidate had been equally popular: around zero hardly
    any would pass the threshold, and the comparison would be with next to nothing. Scores lie
    around zero, as only their order counts. Resumes from `folder`.
    """
    strategy.attach(folder)
    checkpoint = folder.last_checkpoint()
    done = int(checkpoint["round"]) if checkpoint else 0
    if checkpoint:
        strategy.restore(checkpoint["state"])
    for row in record.metrics()[done:]:
        rnd, std = row["round"], row["noise_std"]
        rng = seeded(config.seed, rnd, "control")
        metrics = {}
        try:
            if isinstance(strategy, PrEText):
                size = config.pretext.population
                answers = row["released_votes"] / size + rng.normal(0.0, std, size)
            else:
                answers = rng.normal(0.0, std, strategy.ask(rnd).length)
            metrics = strategy.learn(rnd, answers, std)
        except NothingLearned:
            logger.warning("control: nothing could be learned in round %d", rnd)
        folder.save_checkpoint(rnd, strategy.state(), {"round": rnd, **metrics})
        progress("control rounds", rnd, strategy.rounds)


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
    checkpoint = folder.last_checkpoint()
    done = int(checkpoint["round"]) if checkpoint else 0
    if checkpoint:
        strategy.restore(checkpoint["state"])
    rows = record.metrics()[done:]
    if not rows:
        return
    length = strategy.layout.length + (strategy.indicator > 0)
    key = _control_key(folder)
    draw = _independent(config, length) if correlation is None else _like(correlation, key, length)
    for row in rows:
        rnd, std = row["round"], row["noise_std"]
        metrics = {}
        try:
            metrics = strategy.learn(rnd, std * draw(rnd), std)
        except NothingLearned as error:
            logger.warning("control: %s", error)
        folder.save_checkpoint(rnd, strategy.state(), {"round": rnd, **metrics})
        progress("control rounds", rnd, strategy.rounds)
    key.erase()


def _independent(config: RunConfig, length: int) -> Callable[[int], Vector]:
    """Round -> noise of unit variance, (length,)."""
    return lambda rnd: seeded(config.seed, rnd, "control").standard_normal(length)


def _like(correlation: Factorization, key: NoiseKey, length: int) -> Callable[[int], Vector]:
    """The same, correlated over the rounds."""
    stream, stds = correlation.stream(key, length), correlation.release_std()
    return lambda rnd: stream.noise(rnd) / stds[rnd - 1]


def _control_key(folder: RunFolder) -> NoiseKey:
    """A key of the control's own, which protects nobody."""
    try:
        return NoiseKey.open(folder.path, CONTROL)
    except NoiseKeyMissing:
        return NoiseKey.create(folder.path, CONTROL)


def pretext_rival(
    strategy: PrEText, private: Private, noise_std: float, folder: RunFolder, progress: Progress
) -> None:
    """Take PrE-Text (fresh) through its rounds on the users' true votes and Gaussian noise.

    noise_std: in votes. Resumes from `folder`.
    """
    checkpoint = folder.last_checkpoint()
    done = int(checkpoint["round"]) if checkpoint else 0
    if checkpoint:
        strategy.restore(checkpoint["state"])
    for rnd in range(done + 1, strategy.rounds + 1):
        votes = private.votes(strategy.ask(rnd).question())
        metrics = {}
        try:
            noisy = votes + system_gaussian(len(votes), noise_std)
            metrics = strategy.learn(rnd, noisy, noise_std)
        except NothingLearned:
            logger.warning("rival: no candidate above the threshold in round %d", rnd)
        folder.save_checkpoint(rnd, strategy.state(), {"round": rnd, **metrics})
        progress("rival rounds", rnd, strategy.rounds)
