"""The training behind every fine-tuning: transformers' Trainer on batches drawn as they are needed.

This file loads torch and transformers; it is imported when a training starts. The Trainer brings
the loop, checkpoints, adapters (PEFT) and several processes (accelerate); ours are the batches,
whose parts are weighted so that micro-batches add up to the whole batch's mean loss.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from privsyn_flower.common.progress import Progress
from privsyn_flower.common.randomness import untouched_randomness
from privsyn_flower.evaluation.tuning import Plateau, Tuning, learning_rate_factor
from privsyn_flower.text.models.devices import one_worker
from privsyn_flower.text.models.libraries import (
    COMPLETE,
    latest_checkpoint,
    one_device,
    quiet,
    seal,
    steps_done,
)

BEST = "best.safetensors"  # in a checkpoint: the trained weights of the best epoch so far
SAVE_SECONDS = 600.0  # between checkpoints

Part = Any  # what `Task.loss` takes: a micro-batch


class Task(Protocol):
    """What is learned from a set: its batches and their loss."""

    def steps(self) -> int:
        """Optimiser steps in all."""

    def epoch_steps(self) -> int:
        """Steps of one pass."""

    def parts(self, start: int) -> Iterator[Sequence[Part]]:
        """The micro-batches of each step from `start` on; one is made when it is indexed."""

    def loss(self, model: Any, part: Part) -> tuple[Any, float]:
        """The mean loss of a part in nats, and its share of the step."""


@dataclass(frozen=True)
class Watch:
    """How a training is followed.

    work: a folder for checkpoints of this training alone, None: it cannot be resumed. score: of
    the model as it is; with it the epoch of the highest score is kept, not the last. plateau:
    the score is a loss below zero, looked at as often as this says, and ends the training.
    """

    progress: Progress
    stage: str
    work: Path | None = None
    score: Callable[[], float] | None = None
    plateau: Plateau | None = None


def fit(model: Any, task: Task, tuning: Tuning, device: str, watch: Watch) -> float:
    """Train the parameters of `model` that take gradients; returns the mean training loss in nats.

    On a CPU in one worker. Goes on from the last checkpoint in `watch.work`, with the result of a
    training that was never interrupted. Other state than the model is left as it was.
    """
    with quiet(), untouched_randomness(), one_worker(), contextlib.ExitStack() as stack:
        work = watch.work or Path(stack.enter_context(_scratch()))
        latest = latest_checkpoint(work)
        trainer = _Fit(model, task, tuning, device, watch, work, latest)
        trainer.train(resume_from_checkpoint=str(latest) if latest else None)
        if trainer.best is not None:
            put(model, trainer.best)
        model.eval().requires_grad_(False)
        trainer.accelerator.free_memory()
        return float(trainer.total_loss / trainer.state.global_step)


class _Fit(Trainer):  # type: ignore[misc]
    """total_loss: the sum of the steps' losses. best: the weights of the best epoch, by name."""

    def __init__(
        self,
        model: Any,
        task: Task,
        tuning: Tuning,
        device: str,
        watch: Watch,
        work: Path,
        latest: Path | None,
    ) -> None:
        steps = task.steps()
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=tuning.learning_rate, weight_decay=tuning.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, steps, tuning)
        )
        arguments = one_device(_arguments(steps, tuning, device, work))
        super().__init__(model, args=arguments, optimizers=(optimizer, schedule))
        self.remove_callback(PrinterCallback)
        self.add_callback(_Following(self, tuning.seed, watch, task.epoch_steps()))
        self.rough = tuning.precision == "bfloat16"
        self.task, self.start = task, steps_done(latest) if latest else 0
        self.total_loss, self.top, self.best = 0.0, float("-inf"), None
        if latest:
            note = json.loads((latest / COMPLETE).read_bytes())
            self.total_loss = note["told"]
            self.top = note["top"] if note["top"] is not None else self.top
            if watch.plateau is not None:
                watch.plateau.restore(note["losses"])
            if (latest / BEST).is_file():
                self.best = load_file(latest / BEST)

    def get_train_dataloader(self) -> Any:
        """The steps' batches. The library neither shuffles nor skips: a resumed training begins
        where it was."""
        return _Stream(self.task, self.start)

    def training_step(self, model: Any, inputs: Sequence[Part], *_: Any) -> torch.Tensor:
        """One optimiser step's gradient, a micro-batch at a time; each process takes its share."""
        model.train()
        rank, world = self.args.process_index, self.args.world_size
        own = range(rank, len(inputs), world) or range(1)  # every process has to take part
        idle = rank >= len(inputs)
        total = torch.zeros((), device=self.args.device)
        for place in own:
            with self._unless_last(model, place == own[-1]):
                # Not the library's own: it leaves a model alone that it has prepared before.
                with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.rough):
                    mean, share = self.task.loss(model, inputs[place])
                    weight = 0.0 if idle else share * world  # gradients are averaged
                    loss = mean if weight == 1.0 else mean * weight
                self.accelerator.backward(loss)
            total += loss.detach()
        if world > 1:
            total = self.accelerator.reduce(total, "mean")
        self.total_loss += float(total.item())
        return total

    def _unless_last(self, model: Any, last: bool) -> Any:
        """Processes exchange gradients once a step."""
        return contextlib.nullcontext() if last else self.accelerator.no_sync(model)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted."""
        return 0

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """None in checkpoints."""


class _Stream:
    def __init__(self, task: Task, start: int) -> None:
        self.task, self.start = task, start

    def __iter__(self) -> Iterator[Sequence[Part]]:
        return self.task.parts(self.start)


class _Following(TrainerCallback):  # type: ignore[misc]
    """Progress, checkpoints by the clock, and the best epoch."""

    def __init__(self, trainer: _Fit, seed: int, watch: Watch, epoch_steps: int) -> None:
        self.trainer, self.seed, self.watch = trainer, seed, watch
        self.every = watch.plateau.every if watch.plateau else epoch_steps
        self.saved = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Dropout of each process is its own. A checkpoint's state comes after this.
        torch.manual_seed(self.seed + args.process_index)
        if self.watch.plateau is not None and not state.global_step:
            self._judge(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, watch = state.global_step, self.watch
        if watch.score is not None and step % self.every == 0:
            self._judge(step)
            if watch.plateau is not None:
                control.should_training_stop |= watch.plateau.reached(step)
        if watch.work and step < state.max_steps and not control.should_training_stop:
            control.should_save = self._due()
        if args.process_index == 0:
            watch.progress(watch.stage, step, state.max_steps)

    def _due(self) -> bool:
        """Whether it is time for a checkpoint: by the first process' clock."""
        due = time.monotonic() - self.saved >= SAVE_SECONDS
        if self.trainer.args.world_size == 1:
            return due
        told = torch.tensor(int(due), device=self.trainer.args.device)
        torch.distributed.broadcast(told, 0)
        return bool(told.item())

    def _judge(self, step: int) -> None:
        trainer, watch = self.trainer, self.watch
        score = watch.score() if watch.score is not None else 0.0
        if watch.plateau is not None:
            watch.plateau.add(step, -score)
        if score > trainer.top:
            trainer.top, trainer.best = score, trained_weights(trainer.model)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self.trainer
        trainer.accelerator.wait_for_everyone()  # each process writes the state of its generator
        if args.process_index == 0:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if trainer.best is not None:
                save_file(trainer.best, checkpoint / BEST)
            top = None if trainer.best is None else trainer.top
            note: dict[str, Any] = {"told": trainer.total_loss, "top": top}
            if self.watch.plateau is not None:
                note["losses"] = self.watch.plateau.losses
            seal(checkpoint, json.dumps(note).encode())
        trainer.accelerator.wait_for_everyone()
        self.saved = time.monotonic()


def _arguments(steps: int, tuning: Tuning, device: str, work: Path) -> TrainingArguments:
    several = torch.distributed.is_initialized()
    return TrainingArguments(
        output_dir=str(work),
        max_steps=steps,
        max_grad_norm=tuning.clip,
        use_cpu=device == "cpu",
        ddp_backend="gloo" if several and device == "cpu" else None,
        ddp_find_unused_parameters=False,
        seed=tuning.seed % (1 << 32),
        save_strategy="no",  # `_Following` says when
        logging_strategy="no",
        logging_nan_inf_filter=False,
        ignore_data_skip=True,
        report_to="none",
        disable_tqdm=True,
        push_to_hub=False,
    )


def trained_weights(model: Any, adapter: bool | None = None) -> dict[str, Any]:
    """Copies of the parameters that take gradients, by name.

    adapter: when none takes any more, an adapter's (True) or all (False).
    """
    return {
        name: value.detach().cpu().clone()
        for name, value in model.named_parameters()
        if (value.requires_grad if adapter is None else not adapter or "lora_" in name)
    }


def put(model: Any, weights: dict[str, Any]) -> None:
    """Overwrite the parameters of these names."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in weights:
                value.copy_(weights[name])


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="privsyn-") as folder:
        yield folder
