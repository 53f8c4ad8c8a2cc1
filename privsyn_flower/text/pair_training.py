"""Training of a generator on public pairs of a condition and a text (CTCL, section 3.1).

For any causal or encoder-decoder model: BART in the paper, on 430 million pairs. The loss is that
of the texts' tokens. transformers' Trainer does it, on one device and with checkpoints; this module
loads it, and is imported when training starts.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from privsyn_flower.common.files import new_folder
from privsyn_flower.common.progress import Progress, bar
from privsyn_flower.common.randomness import seeded, untouched_randomness
from privsyn_flower.text.conditional import MAX_TARGET, ConditionalLM, open_conditional
from privsyn_flower.text.conditions import MAX_SOURCE, Pair
from privsyn_flower.text.models.devices import one_worker
from privsyn_flower.text.models.libraries import latest_checkpoint, one_device, quiet, seal

SAVE_SECONDS = 600.0  # between checkpoints


@dataclass(frozen=True, slots=True)
class PairTraining:
    """How a generator is trained on public pairs; batch and rate are the paper's (section 3.1).

    batch_size: pairs in a step, `together` of them at once, which must divide it. learning_rate:
    AdamW's, which falls along a cosine to 0. length, max_source: most tokens of a text with its
    end, and of its condition. held_out: share of the pairs that only measure. Raises ValueError.
    """

    epochs: int = 1
    batch_size: int = 4096
    together: int = 32
    learning_rate: float = 5e-5
    length: int = MAX_TARGET
    max_source: int = MAX_SOURCE
    held_out: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size, self.together, self.length, self.max_source) < 1:
            raise ValueError(f"{self}: epochs, sizes and lengths must be at least 1")
        if self.batch_size % self.together:
            raise ValueError(f"together = {self.together} must divide batch_size {self.batch_size}")
        if not (self.learning_rate > 0 and 0 <= self.held_out < 1):
            raise ValueError(f"{self}: learning_rate must be above 0, held_out in [0, 1)")


def train_on_pairs(
    model: str | os.PathLike[str],
    pairs: Sequence[Pair],
    target: Path,
    how: PairTraining | None = None,
    *,
    device: str = "auto",
    progress: bool | Progress = True,
) -> dict[str, Any]:
    """Write into the new folder `target` the model trained on public pairs: a models.conditional.

    model: folder or hub name. Checkpoints are kept beside `target`: called again with the same
    arguments, a run that was stopped goes on. Returns, as training.json does, the steps and
    the loss on the pairs held out before and after, in nats a token as the mean over texts (None
    without any). Raises ModelUnavailableError, and ValueError for too few pairs.
    """
    how = how or PairTraining()
    if target.exists():
        raise FileExistsError(f"{target} is there already")
    order = seeded(how.seed, "pairs", "held out").permutation(len(pairs))
    count = math.ceil(how.held_out * len(pairs))
    held_out, read = ([pairs[i] for i in part] for part in (order[:count], order[count:]))
    if not read:
        raise ValueError(f"{len(pairs)} pairs, {count} of them held out: none is left to train on")
    started = time.monotonic()
    generator = open_conditional(
        model, max_tokens=1, max_source=how.max_source, device=device, dtype="float32"
    )
    if how.length > generator.longest_text:
        raise ValueError(
            f"length = {how.length}: {model} has room for {generator.longest_text} tokens of a "
            f"text with conditions of max_source = {how.max_source}"
        )
    before = generator.loss(held_out, how.length) if held_out else None
    work = target.with_name(f".{target.name}.training")
    steps = _fit(generator, read, how, work, progress)
    after = generator.loss(held_out, how.length) if held_out else None
    about = {
        "pairs": len(read),
        "steps": steps,
        "seconds": round(time.monotonic() - started, 1),
        "held_out": {"pairs": count, "loss_before": before, "loss_after": after},
    }

    def fill(folder: Path) -> None:
        generator.model.save_pretrained(folder)
        generator.tokenizer.save_pretrained(folder)
        facts = {"trained": asdict(how), "training": about}
        (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")

    target.parent.mkdir(parents=True, exist_ok=True)
    new_folder(target, fill, result=True)
    shutil.rmtree(work, ignore_errors=True)
    return about


def _fit(
    generator: ConditionalLM,
    pairs: Sequence[Pair],
    how: PairTraining,
    work: Path,
    progress: bool | Progress,
) -> int:
    """Train the generator's model in place, from the last checkpoint in `work`; steps in all."""
    rows = generator.training_rows(pairs, how.length)
    steps = how.epochs * math.ceil(len(rows) / how.batch_size)
    number = int(seeded(how.seed, "pairs", "training").integers(1 << 31))
    with quiet(), untouched_randomness(), one_worker():
        arguments = TrainingArguments(
            output_dir=str(work),
            num_train_epochs=how.epochs,
            per_device_train_batch_size=how.together,
            gradient_accumulation_steps=how.batch_size // how.together,
            learning_rate=how.learning_rate,
            lr_scheduler_type="cosine",
            optim="adamw_torch",
            bf16=generator.device.startswith("cuda"),
            use_cpu=generator.device == "cpu",
            seed=number,
            data_seed=number,
            save_strategy="no",  # the callback says when
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        generator.model.requires_grad_(True).train()
        trainer = Trainer(
            generator.model,
            one_device(arguments),
            data_collator=generator.collate,
            train_dataset=rows,
        )
        trainer.remove_callback(PrinterCallback)
        latest = latest_checkpoint(work)
        with bar(progress, "training on pairs", steps) as advance:
            trainer.add_callback(_Saving(work, advance))
            trainer.train(resume_from_checkpoint=str(latest) if latest else None)
        taken = int(trainer.state.global_step)
    generator.model.requires_grad_(False).eval()
    return taken


class _Saving(TrainerCallback):  # type: ignore[misc]
    """Checkpoints by time, of which the last complete one stays."""

    def __init__(self, work: Path, advance: Callable[[int], None]) -> None:
        self.work, self.advance = work, advance
        self.saved, self.shown = time.monotonic(), 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.advance(state.global_step - self.shown)
        self.shown = state.global_step
        control.should_save = time.monotonic() - self.saved >= SAVE_SECONDS

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seal(self.work / f"checkpoint-{state.global_step}")
        self.saved = time.monotonic()
