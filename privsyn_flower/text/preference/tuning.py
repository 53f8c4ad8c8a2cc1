"""What a preference training is told, and the names in its folder: shared by all files here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from privsyn_flower.progress import Progress

KEY = "models.generator"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Tuning:
    """The public numbers of a training; the names are those of `[popri]` and `[sft]`. section:
    which of the two, for errors. processes: that share the pairs of a step."""

    method: Literal["dpo", "sft"]
    beta: float
    label_smoothing: float
    learning_rate: float
    schedule: Literal["cosine", "constant"]
    warmup_steps: int
    epochs: int
    batch_size: int
    micro_batch_size: int
    lora_rank: int
    lora_alpha: float
    ending: str | None
    section: str = "popri"
    processes: int = 1

    def __post_init__(self) -> None:
        if self.method not in {"dpo", "sft"}:
            raise ValueError(f"{self.key('training')} = {self.method!r}: must be 'dpo' or 'sft'")
        for name in ("beta", "learning_rate", "lora_alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.key(name)} = {getattr(self, name)}: must be above 0")
        if self.batch_size % max(1, self.processes):
            raise ValueError(
                f"{self.key('batch_size')} = {self.batch_size}: must be a multiple of "
                f"models.training-processes = {self.processes}, which share it"
            )
        for name in ("epochs", "batch_size", "micro_batch_size", "lora_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.key(name)} = {getattr(self, name)}: must be at least 1")
        if self.schedule not in {"cosine", "constant"}:
            raise ValueError(
                f"{self.key('schedule')} = {self.schedule!r}: must be 'cosine' or 'constant'"
            )
        if self.warmup_steps < 0:
            raise ValueError(
                f"{self.key('warmup_steps')} = {self.warmup_steps}: must be at least 0"
            )
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(
                f"{self.key('label_smoothing')} = {self.label_smoothing}: must lie in [0, 0.5)"
            )

    def key(self, name: str) -> str:
        """The configuration's name of one of these."""
        return f"{self.section}.{name.replace('_', '-')}"

    @property
    def pairs_at_once(self) -> int:
        """The largest divisor of a process's share of batch_size, at most micro_batch_size."""
        share = self.batch_size // self.processes
        most = min(self.micro_batch_size, share)
        return max(size for size in range(1, most + 1) if share % size == 0)


@dataclass(frozen=True)
class Setting:
    """The base model, the machine it is trained on, and what is saved and shown meanwhile.

    As `PreferenceTrainer` takes them, but for the device and gradient checkpointing: resolved.
    launch_arguments: more of `accelerate launch`, for several processes.
    """

    model: str | os.PathLike[str]
    device: str
    dtype: str
    gradient_checkpointing: bool
    save_seconds: float
    progress: bool | Progress
    launch_arguments: tuple[str, ...] = ()


def epoch_folder(number: int) -> str:
    """The name of the adapter folder of epoch `number`, from 1."""
    return f"epoch-{number}"
