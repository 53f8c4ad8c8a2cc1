"""What surrounds a preference training: checkpoints, the log's summary, less work on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl.trainer.utils
from transformers import TrainerCallback

from privsyn_flower.text.models.adapters import Base, save_adapter
from privsyn_flower.text.models.libraries import seal
from privsyn_flower.text.preference.tuning import CHECKPOINTS, Tuning, epoch_folder


class SaveCallback(TrainerCallback):  # type: ignore[misc]
    """Saves the adapter of every epoch, and checkpoints of which the last complete one stays."""

    def __init__(
        self,
        work: Path,
        base: Base,
        save_seconds: float,
        advance: Callable[[int], None],
        processes: int = 1,
    ) -> None:
        self.work, self.base, self.save_seconds = work, base, save_seconds
        self.alone = processes == 1
        self.advance, self.saved, self.shown = advance, time.monotonic(), 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.advance(state.global_step - self.shown)
        self.shown = state.global_step
        # At the end of an epoch the adapter comes first: a checkpoint beyond it would skip it.
        within = state.global_step % (state.max_steps // state.num_train_epochs) != 0
        # Several processes save together, and their clocks differ: at the end of an epoch alone.
        if self.alone and within and time.monotonic() - self.saved >= self.save_seconds:
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            save_adapter(model, self.work / epoch_folder(round(state.epoch)), self.base)
        # After the last epoch nothing is left to go on with.
        control.should_save = state.global_step < state.max_steps

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.alone:
            torch.distributed.barrier()  # each has written its part of the checkpoint
        if state.is_world_process_zero:
            seal(self.work / CHECKPOINTS / f"checkpoint-{state.global_step}")
        self.saved = time.monotonic()


def epoch_metrics(
    history: Sequence[dict[str, Any]], steps: int, tuning: Tuning
) -> list[dict[str, float]]:
    """The log of every step -> mean, first and last value of each epoch."""
    each = steps // tuning.epochs
    epochs: list[list[dict[str, float]]] = [[] for _ in range(tuning.epochs)]
    for entry in history:
        if "loss" in entry:
            epochs[(int(entry["step"]) - 1) // each].append(_named(entry, tuning))
    result = []
    for logged in epochs:
        summary: dict[str, float] = {}
        for name in logged[0]:
            values = [step[name] for step in logged]
            if not np.isfinite(values).all():
                raise RuntimeError(
                    f"preference training: {name} is not finite; lower "
                    f"{tuning.key('learning_rate')} = {tuning.learning_rate}"
                )
            summary |= {
                name: float(np.mean(values)), f"{name}_first": values[0], f"{name}_last": values[-1]
            }  # fmt: skip
        result.append(summary)
    return result


def _named(entry: Mapping[str, Any], tuning: Tuning) -> dict[str, float]:
    if tuning.method == "sft":
        return {"loss": float(entry["loss"]), "token_accuracy": entry["mean_token_accuracy"]}
    rewards = entry["rewards/chosen"] + entry["rewards/rejected"]
    return {
        "loss": float(entry["loss"]),
        "reward_accuracy": entry["rewards/accuracies"],
        "reward_margin": entry["rewards/margins"],
        "kl": rewards / (2 * tuning.beta),
    }


@contextmanager
def responses_only(device: str) -> Iterator[None]:
    """On a CPU, score the responses' tokens alone, as TRL does on a GPU.

    There it scores the prompts as well and drops the result, because some accelerators compile
    anew for every shape; with short responses that is most of the work. A TRL that no longer has
    the switch is slower and as right.
    """
    switch = "_use_triton"
    if device != "cpu" or not hasattr(trl.trainer.utils, switch):
        yield
        return
    before = getattr(trl.trainer.utils, switch)
    setattr(trl.trainer.utils, switch, lambda _: True)
    try:
        yield
    finally:
        setattr(trl.trainer.utils, switch, before)
