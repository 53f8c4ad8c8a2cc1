"""GRPO on completions that are there already: TRL's loss without its sampling.

Shao et al. 2024 (arXiv 2402.03300), equations 3 and 4: what the policy of before wrote is made more
or less likely by its advantage, within clipped probability ratios. Every row brings its completion,
its advantage, and the token log-probabilities of the policy that wrote it and of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

from privsyn_flower.text.models.batches import longest_first
from privsyn_flower.text.models.libraries import one_device
from privsyn_flower.text.preference.tuning import Pair, Row, Silent, Tuning


class _GRPO(Silent, GRPOTrainer):  # type: ignore[misc]
    """Where TRL would draw prompts in groups, generate and ask for rewards, it trains on rows."""

    def get_train_dataloader(self) -> Any:
        return Trainer.get_train_dataloader(self)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return Trainer._get_train_sampler(self, dataset)

    def _prepare_inputs(self, inputs: Any) -> Any:
        return Trainer._prepare_inputs(self, inputs)


def grpo(
    rows: Sequence[Row],
    pairs: Sequence[Pair],
    tuning: Tuning,
    arguments: dict[str, Any],
    common: dict[str, Any],
) -> Any:
    """A trainer of the rows with the pairs' advantages; `keep_policy` completes them."""
    config = GRPOConfig(
        **{name: value for name, value in arguments.items() if name != "max_length"},
        beta=tuning.beta,
        epsilon=tuning.clip,
        loss_type="grpo",
        # Groups are made before; TRL wants two completions or more to a batch that it generates.
        num_generations=2,
        steps_per_generation=2 * arguments["gradient_accumulation_steps"],
    )
    dataset = Dataset.from_list(
        [
            {**row, "advantage": float(pair["advantage"])}
            for row, pair in zip(rows, pairs, strict=True)
        ]
    )
    trainer = _GRPO(
        args=one_device(config), train_dataset=dataset, reward_funcs=_no_reward, **common
    )
    trainer.data_collator = _collate(trainer.processing_class.pad_token_id)
    return trainer


def keep_policy(trainer: Any) -> None:
    """Note what the policy as it is now, and the reference (adapter off), give every token.

    Called before any step, with the adapter that wrote the completions: so a training that was
    killed goes on with the same ratios.
    """
    rows = list(trainer.train_dataset)
    sizes = [len(row["prompt_ids"]) + len(row["completion_ids"]) for row in rows]
    width = 2 * trainer.args.per_device_train_batch_size  # no gradients to keep
    columns: dict[str, list[list[float]]] = {
        name: [[] for _ in rows] for name in ("old_logps", "ref_logps")
    }
    trainer.model.eval()
    for batch in longest_first(sizes, width):
        inputs = Trainer._prepare_inputs(trainer, trainer.data_collator([rows[i] for i in batch]))
        now = _token_logps(trainer, inputs)
        with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
            base = _token_logps(trainer, inputs)
        for name, found in zip(columns, (now, base), strict=True):
            for i, values in zip(batch, found, strict=True):
                columns[name][i] = values[: len(rows[i]["completion_ids"])].tolist()
    dataset = trainer.train_dataset
    for name, values in columns.items():
        dataset = dataset.add_column(name, values)
    trainer.train_dataset = dataset


def _token_logps(trainer: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """(n, t) by the trainer's own forward pass, as the loss computes them."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        found, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, inputs["completion_ids"].shape[1]
        )
    values: torch.Tensor = found.float().cpu()
    return values


def _collate(padding: int) -> Callable[[Sequence[dict[str, Any]]], dict[str, torch.Tensor]]:
    """Rows -> a batch as TRL's loss takes it: prompts end, and completions begin, together."""

    def padded(lists: Sequence[Sequence[Any]], value: float, side: str) -> torch.Tensor:
        tensors = [torch.tensor(one) for one in lists]
        return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)

    def collate(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {"advantages": torch.tensor([row["advantage"] for row in rows])}
        for name, side in (("prompt", "left"), ("completion", "right")):
            ids = [row[f"{name}_ids"] for row in rows]
            batch[f"{name}_ids"] = padded(ids, padding, side)
            batch[f"{name}_mask"] = padded([[1] * len(one) for one in ids], 0, side)
        for name in ("old", "ref"):
            if f"{name}_logps" in rows[0]:
                known = [row[f"{name}_logps"] for row in rows]
                batch[f"{name}_per_token_logps"] = padded(known, 0.0, "right")
        return batch

    return collate


def _no_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """TRL wants a reward function, and never calls it here."""
    return [0.0] * len(completions)
