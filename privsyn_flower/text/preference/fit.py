"""The training behind `PreferenceTrainer`: TRL's trainers on token ids, with a PEFT adapter.

This module loads torch, transformers, PEFT and TRL; it is imported when training starts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl.trainer.utils
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from privsyn_flower.common.progress import bar
from privsyn_flower.common.randomness import seeded, untouched_randomness
from privsyn_flower.text.generators import chat_turn
from privsyn_flower.text.models.adapters import (
    AdapterError,
    Base,
    base_of,
    check_adapter,
    load_weights,
    lora,
    save_adapter,
)
from privsyn_flower.text.models.batches import longest_first
from privsyn_flower.text.models.devices import empty_cache, one_worker
from privsyn_flower.text.models.libraries import latest_checkpoint, one_device, quiet, seal
from privsyn_flower.text.models.pretrained import load_model, load_tokenizer
from privsyn_flower.text.preference.tuning import (
    CHECKPOINTS,
    KEY,
    NEEDED,
    Pair,
    Row,
    Setting,
    Silent,
    Tuning,
    encode_pairs,
    epoch_folder,
)

SCHEDULES = {"cosine": "cosine", "constant": "constant_with_warmup"}  # transformers' names


def fit(
    setting: Setting,
    tuning: Tuning,
    pairs: Sequence[Pair],
    *,
    start: Path | None,
    work: Path,
    seed: int,
) -> list[dict[str, float]]:
    """Train, or go on from the last checkpoint in `work` -> the metrics of every epoch.

    Leaves an adapter per epoch in `work`. The base is in memory once: with the adapter's layers
    switched off it is the reference.
    """
    checkpoints = work / CHECKPOINTS
    with quiet(), untouched_randomness(), responses_only(setting.device), one_worker():
        trainer, base = _prepared(setting, tuning, pairs, start, checkpoints, seed)
        latest = latest_checkpoint(checkpoints)
        steps = tuning.epochs * math.ceil(len(trainer.train_dataset) / tuning.batch_size)
        with bar(setting.progress, "preference training", steps) as advance:
            saving = SaveCallback(work, base, setting.save_seconds, advance, tuning.processes)
            trainer.add_callback(saving)
            trainer.train(resume_from_checkpoint=str(latest) if latest else None)
        metrics = epoch_metrics(trainer.state.log_history, trainer.state.max_steps, tuning)
        trainer.accelerator.free_memory()
        del trainer
        empty_cache(setting.device)
    return metrics


def _prepared(
    setting: Setting,
    tuning: Tuning,
    pairs: Sequence[Pair],
    start: Path | None,
    checkpoints: Path,
    seed: int,
) -> tuple[Any, Base]:
    """TRL's trainer of the method, with the adapter to go on from; and the base's identity."""
    tokenizer = load_tokenizer(setting.model, KEY)
    model = load_model("AutoModelForCausalLM", setting.model, KEY, setting.device, setting.dtype)
    base = base_of(setting.model, model.config, KEY)
    rising = 0 if start is not None else tuning.warmup_steps
    arguments = _arguments(setting, tuning, checkpoints, model.dtype, seed, rising)
    context = int(getattr(model.config, "max_position_embeddings", 1 << 30))
    turn = chat_turn(tokenizer, setting.model) if tuning.chat else None
    rows = encode_pairs(
        pairs, tokenizer, context=context, ending=tuning.ending, names=NEEDED[tuning.method],
        turn=turn,
    )  # fmt: skip
    adapter = lora(tuning.lora_rank, tuning.lora_alpha)
    common = {"model": model, "processing_class": tokenizer, "peft_config": adapter}
    if tuning.method == "grpo":
        from privsyn_flower.text.preference.policy import grpo, keep_policy

        trainer = grpo(rows, pairs, tuning, arguments, common)
    else:
        trainer = (_dpo if tuning.method == "dpo" else _sft)(rows, tuning, arguments, common)
    if start is not None:
        _load(trainer.model, start, base, tuning)
    if tuning.method == "grpo":
        keep_policy(trainer)
    trainer.remove_callback(PrinterCallback)
    return trainer, base


class _DPO(Silent, DPOTrainer):  # type: ignore[misc]
    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        """The rows are token ids already; TRL's own way would end every text with end-of-text."""
        return dataset


class _SFT(Silent, SFTTrainer):  # type: ignore[misc]
    pass


def _dpo(
    rows: Sequence[Row], tuning: Tuning, arguments: dict[str, Any], common: dict[str, Any]
) -> Any:
    """A DPO trainer whose reference log-probabilities are those of the base, computed once.

    TRL would take a loaded adapter for the reference: so it is given the base and a fresh
    adapter, and the adapter to go on from is loaded later.
    """
    dataset = Dataset.from_list(rows)
    config = one_device(DPOConfig(**arguments, **_loss(tuning), beta=tuning.beta))
    trainer = _DPO(args=config, train_dataset=dataset, **common)
    # TRL's own precomputation hashes the whole model and writes files; this one does neither.
    trainer.train_dataset = _with_reference(trainer, dataset, rows)
    trainer.precompute_ref_logps = True
    return trainer


def _sft(
    rows: Sequence[Row], tuning: Tuning, arguments: dict[str, Any], common: dict[str, Any]
) -> Any:
    """A trainer on the chosen responses, whose prompts carry no loss."""
    dataset = Dataset.from_list(
        [
            {
                "input_ids": row["prompt_ids"] + row["chosen_ids"],
                "labels": [-100] * len(row["prompt_ids"]) + row["chosen_ids"],
            }
            for row in rows
        ]
    )
    return _SFT(args=one_device(SFTConfig(**arguments)), train_dataset=dataset, **common)


def _loss(tuning: Tuning) -> dict[str, Any]:
    """DPO's loss, or the conservative one: -(1-e) log s(x) - e log s(-x) (Mitchell 2023).

    TRL 1.16 knows the latter only through its unbiased sibling, robust DPO (Chowdhury et al.
    2024), r(x) = (-(1-e) log s(x) + e log s(-x)) / (1-2e): the sum below is the same function,
    since log s(-x) = log s(x) - x.
    """
    e = tuning.label_smoothing
    if e == 0:
        return {"loss_type": ["sigmoid"]}
    return {
        "loss_type": ["sigmoid", "robust"],
        "loss_weights": [2 * (1 - e), -(1 - 2 * e)],
        "label_smoothing": e,
    }


def _with_reference(trainer: Any, dataset: Dataset, rows: Sequence[Row]) -> Dataset:
    """The rows with log-probabilities of their responses under the base, adapter switched off."""
    sizes = [len(r["prompt_ids"]) + max(len(r["chosen_ids"]), len(r["rejected_ids"])) for r in rows]
    width = 2 * trainer.args.per_device_train_batch_size  # no gradients to keep
    found = np.empty((len(rows), 2), dtype=np.float32)
    trainer.model.eval()
    for batch in longest_first(sizes, width):
        inputs = trainer.data_collator([rows[i] for i in batch])
        inputs = {name: tensor.to(trainer.args.device) for name, tensor in inputs.items()}
        pair = trainer.compute_ref_log_probs(trainer.model, inputs)
        found[batch] = torch.stack(pair, dim=1).float().cpu().numpy()
    for column, name in enumerate(("ref_chosen_logps", "ref_rejected_logps")):
        dataset = dataset.add_column(name, found[:, column].tolist())
    return dataset


def _arguments(
    setting: Setting, tuning: Tuning, folder: Path, dtype: torch.dtype, seed: int, rising: int
) -> dict[str, Any]:
    """What both of TRL's configurations take; one seed for the fresh adapter and the order.

    rising: steps in which the rate rises. The authors' optimiser and schedule go on through all
    rounds, so that only the first round's begin low.
    """
    number = int(seeded(seed, "preference training").integers(1 << 31))
    return {
        "output_dir": str(folder),
        "num_train_epochs": tuning.epochs,
        "per_device_train_batch_size": tuning.pairs_at_once,
        "gradient_accumulation_steps": tuning.batch_size
        // (tuning.pairs_at_once * tuning.processes),
        "ddp_find_unused_parameters": False,
        "learning_rate": tuning.learning_rate,
        "lr_scheduler_type": SCHEDULES[tuning.schedule],
        "warmup_steps": rising,
        "optim": "adamw_torch",
        "max_length": None,
        "gradient_checkpointing": setting.gradient_checkpointing,
        "bf16": dtype == torch.bfloat16,
        "use_cpu": setting.device == "cpu",
        "seed": number,
        "data_seed": number,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",  # `SaveCallback` says when
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": setting.device.startswith("cuda"),
        "push_to_hub": False,
    }


def _load(model: Any, start: Path, base: Base, tuning: Tuning) -> None:
    """Give the fresh adapter of `model` the weights of the one to go on from."""
    config = check_adapter(start, base)
    if (config["r"], config["lora_alpha"]) != (tuning.lora_rank, tuning.lora_alpha):
        raise AdapterError(
            f"{start} has rank {config['r']} and alpha {config['lora_alpha']}, but "
            f"{tuning.key('lora_rank')} = {tuning.lora_rank} and {tuning.key('lora_alpha')} = "
            f"{tuning.lora_alpha}"
        )
    load_weights(model, start, base)


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
    if tuning.method == "grpo":
        clipped = entry["clip_ratio/region_mean"]
        return {"loss": float(entry["loss"]), "kl": entry["kl"], "clipped": clipped}
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
