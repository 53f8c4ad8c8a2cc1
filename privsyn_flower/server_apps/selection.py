"""Which round's generator writes the result, decided on the nodes and paid for.

Running POPri for too many rounds overfits (section 5.2, Figure 4). The paper stops by private
validation text; here the small model is fine-tuned on each round's text, and one federated
evaluation says which of them predicts the users' text best: one more release of the ledger.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.files import write_atomic
from privsyn_flower.config import ConfigError, RunConfig, split_list
from privsyn_flower.config.section import config_errors
from privsyn_flower.queries.metrics import TooNoisyError
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.models import Models
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.engine.session import Session
from privsyn_flower.strategies.evaluation.strategy import Caps, Estimate, evaluate
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.strategies.popri.strategy import POPri
from privsyn_flower.text.models.lm_metrics import BATCH_TOKENS, base_folder, check_special_tokens
from privsyn_flower.text.models.parameters import (
    Parameters,
    base_shapes,
    longest_sequence,
    pack_parameters,
    unpack_parameters,
)

CANDIDATES = 4

logger = logging.getLogger("privsyn_flower")


def select_round(
    strategy: POPri,
    models: Models,
    config: RunConfig,
    session: Session,
) -> dict[str, Any]:
    """Choose the round with the least noisy loss; returns public facts. Charged once, resumes.

    At most CANDIDATES rounds are compared, evenly spaced and the last among them: every model
    more is downloaded by every node, and takes its share of the norm.
    """
    folder = session.folder
    stored: dict[str, Any] | None = folder.load_value("selection")
    if stored is None:
        rounds = candidate_rounds(len(strategy.candidates()))
        try:
            found = evaluate(
                _fine_tuned(strategy, rounds, models, config, folder),
                base=base_folder(models.folder("downstream")),
                session=session,
                caps=evaluation_caps(config),
                name="selection",
                last=True,
            )
            stored = _facts(found)
        except (NoRelease, TooNoisyError) as error:  # what the rounds found is paid for, and stays
            logger.warning("the nodes' evaluation chose no round, so the last is taken: %s", error)
            stored = {"round": rounds[-1], "estimates": {}, "failed": str(error)}
        folder.save_value("selection", stored)
    strategy.choose(int(stored["round"]))
    logger.info("round %d was selected by the nodes' evaluation", stored["round"])
    return stored


def candidate_rounds(rounds: int) -> list[int]:
    """1..rounds, thinned to CANDIDATES evenly spaced ones that end with the last."""
    count = min(CANDIDATES, rounds)
    return sorted({-(-rounds * i // count) for i in range(1, count + 1)})


def check_sequences(config: RunConfig, base: Path, *, evaluates: bool) -> None:
    """Raise ConfigError where nodes could not read text with `base` as `[evaluation]` says.

    evaluates: they measure models on it, where the time must not depend on a text's length.
    """
    own, most = config.evaluation, longest_sequence(base)
    if evaluates:
        most = min(most, BATCH_TOKENS)
    if own.sequence_length > most:
        raise ConfigError(
            f"evaluation.sequence-length = {own.sequence_length}: models.downstream = {base} "
            f"takes at most {most} tokens on the nodes"
        )
    with config_errors():
        check_special_tokens(base, own.special_tokens)


def _facts(estimates: dict[str, Estimate]) -> dict[str, Any]:
    best = min(estimates, key=lambda name: estimates[name].loss)
    by_model = {name: figures(estimate) for name, estimate in estimates.items()}
    return {"round": int(best.removeprefix("round-")), "estimates": by_model}


def figures(estimate: Estimate) -> dict[str, float]:
    """A model's accuracy and loss with the ends of their intervals."""
    kept = ("accuracy", "loss")
    return {key: value for key, value in asdict(estimate).items() if key.startswith(kept)}


def evaluation_caps(config: RunConfig) -> Caps:
    """Public bounds: as many tokens as a user's samples have at most."""
    length, ends = config.evaluation.sequence_length, config.evaluation.special_tokens
    most = config.data.samples_per_user * length
    # Models of one training are nearly alike: told as differences they carry a tenth of the noise.
    return Caps(max_tokens=most, sequence_length=length, gap=0.1, special_tokens=ends)


def _fine_tuned(
    strategy: POPri,
    rounds: Sequence[int],
    models: Models,
    config: RunConfig,
    folder: RunFolder,
) -> dict[str, Parameters]:
    """The small model fine-tuned on `select_samples` texts of each round's generator."""
    from privsyn_flower.evaluation.public import downstream_of, tuning_of

    rates = [float(rate) for rate in split_list(config.evaluation.learning_rates)]
    # No private text may choose the rate; the middle one is as good a guess as any.
    rate = sorted(rates)[len(rates) // 2]
    tuning = replace(tuning_of(config), learning_rate=rate)
    model = downstream_of(config, models.folder("downstream"))
    shapes = base_shapes(base_folder(models.folder("downstream")))
    result: dict[str, Parameters] = {}
    for rnd in rounds:
        name = f"round-{rnd:04d}"
        path = folder.path / "selection" / f"{name}.jsonl"
        weights = path.with_suffix(".safetensors")
        if weights.exists():  # trained again they might differ in a bit, and be another question
            packed = np.frombuffer(weights.read_bytes(), dtype=np.uint8)
            result[name] = unpack_parameters(packed, shapes)
            continue
        if not path.exists():
            strategy.choose(rnd)
            texts = strategy.synthesise(config[PopriConfig].select_samples)
            write_jsonl(path, ({"text": one.text} for one in texts))
        rows = model.encode([row["text"] for row in read_jsonl(path)])
        stage, work = f"fine-tuning on round {rnd}", path.with_suffix(".work")
        model.fine_tune(rows, tuning, models.progress, stage, work=work)
        result[name] = model.parameters()
        write_atomic(weights, pack_parameters(result[name]).tobytes())
        shutil.rmtree(work, ignore_errors=True)
    return result
