"""GRPO of an adapter on completions that are there: by hand on a tiny Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.text import HuggingFaceGenerator
from privsyn_flower.text.models.adapters import WEIGHTS
from privsyn_flower.text.preference.trainer import CHECKPOINTS
from privsyn_flower.text.prompts import expand_prompt
from privsyn_flower.text.protocols import Trained
from tests.rigs.preference import (
    generator,  # noqa: F401
    killed_in_step,
    token_logps,
    trainer,
)

pytest.importorskip("trl")

ROWS = [
    {"prompt": expand_prompt([f"{word} b c"]), "completion": text, "advantage": advantage}
    for word in ("Return", "quick", "senior")
    for text, advantage in ((f"{word} tea", 1.5), ("river fox near the array", -0.75))
]
GRPO: dict[str, Any] = {"method": "grpo", "section": "dp-rft"}


@pytest.fixture(scope="module")
def first(causal_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One step from the base, to look at and to go on from."""
    work = tmp_path_factory.mktemp("first")
    (epoch,) = trainer(causal_folder, **GRPO).train(ROWS, start=None, work=work, seed=0)
    return epoch


def logps(generator: HuggingFaceGenerator, adapter: Path | None) -> list[np.ndarray]:
    return token_logps(generator, adapter, ((row["prompt"], row["completion"]) for row in ROWS))


def test_a_step_makes_the_rewarded_likelier(
    generator: HuggingFaceGenerator, first: Trained
) -> None:
    before, after = logps(generator, None), logps(generator, first.adapter)
    gains = np.array([new.mean() - old.mean() for old, new in zip(before, after, strict=True)])
    assert (gains[::2] > 0.01).all() and (gains[::2] - gains[1::2] > 0.01).all()
    # Every ratio is 1 and the reference is the policy: the loss is the mean advantage's negative.
    mean = np.mean([row["advantage"] for row in ROWS])
    assert first.metrics["loss"] == pytest.approx(-mean, abs=1e-5)
    assert first.metrics["kl"] == pytest.approx(0.0, abs=1e-6)


def test_ratios_are_of_the_policy_that_wrote_and_kl_of_the_base(
    causal_folder: Path, generator: HuggingFaceGenerator, first: Trained, tmp_path: Path
) -> None:
    """A later round, with a rate too small to move, in micro-batches of other lengths."""
    still = trainer(causal_folder, **GRPO, learning_rate=1e-12, beta=0.7, micro_batch_size=2)
    (found,) = still.train(ROWS, start=first.adapter, work=tmp_path, seed=1)
    now, base = logps(generator, first.adapter), logps(generator, None)
    divergence = [np.exp(b - n) - (b - n) - 1 for n, b in zip(now, base, strict=True)]
    losses = [-row["advantage"] + 0.7 * kl.mean() for row, kl in zip(ROWS, divergence, strict=True)]
    assert found.metrics["loss"] == pytest.approx(np.mean(losses), abs=2e-4)
    assert found.metrics["kl"] > 1e-4 and found.metrics["clipped"] == 0.0


def test_what_is_clipped_moves_no_more(causal_folder: Path, tmp_path: Path) -> None:
    """Many steps on one completion that is to be likelier: ratios count as far as the clip."""
    rows = [{**ROWS[0], "advantage": 1.0}] * 12
    options = {"batch_size": 1, "beta": 1e-9, "schedule": "constant"}
    ends = {}
    for clip in (0.05, 0.9):
        tuner = trainer(causal_folder, **GRPO, clip=clip, **options)
        (ends[clip],) = tuner.train(rows, start=None, work=tmp_path / str(clip), seed=0)
    narrow, wide = (ends[clip].metrics for clip in (0.05, 0.9))
    assert narrow["clipped_last"] > 0.5 and wide["clipped_first"] == narrow["clipped_first"] == 0
    assert -1.05 - 1e-5 <= narrow["loss_last"] < -1.0
    assert wide["loss_last"] < narrow["loss_last"]


@pytest.mark.parametrize("advantage", [None, float("nan"), float("inf")])
def test_wrong_advantages(causal_folder: Path, tmp_path: Path, advantage: Any) -> None:
    rows = [{"prompt": "a", "completion": "b", "advantage": 1.0}]
    wrong = {name: value for name, value in (("advantage", advantage),) if value is not None}
    rows.append({"prompt": "a", "completion": "b", **wrong})
    with pytest.raises(ValueError, match="pair 1: 'advantage' must be a finite number"):
        trainer(causal_folder, **GRPO).train(rows, start=None, work=tmp_path, seed=0)
    with pytest.raises(ValueError, match="pair 0: 'completion' is missing or empty"):
        trainer(causal_folder, **GRPO).train([{"prompt": "a"}], start=None, work=tmp_path, seed=0)


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_bits(
    causal_folder: Path, first: Trained, tmp_path: Path
) -> None:
    """SIGKILL in step 2 of 3: the ratios of the third are still of the policy before the first."""
    options = {**GRPO, "batch_size": 2, "save_seconds": 0.0}
    tuner, work = trainer(causal_folder, **options), tmp_path / "killed"
    settings = {"device": "cpu", "learning_rate": 1e-2, "epochs": 1, "beta": 0.1, **options}
    killed_in_step(2, causal_folder, settings, ROWS, first.adapter, work)
    assert [path.name for path in (work / CHECKPOINTS).iterdir()] == ["checkpoint-1"]
    (resumed,) = tuner.train(ROWS, start=first.adapter, work=work, seed=7)
    (whole,) = tuner.train(ROWS, start=first.adapter, work=tmp_path / "whole", seed=7)
    assert resumed.metrics == whole.metrics
    assert (resumed.adapter / WEIGHTS).read_bytes() == (whole.adapter / WEIGHTS).read_bytes()
