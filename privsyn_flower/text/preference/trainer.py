"""Preference training of a causal language model: DPO or SFT of a LoRA adapter.

POPri, section 3 (3) and appendix B: the responses that users preferred are made more likely than
those they did not, relative to the public base model (Rafailov et al. 2023, arXiv 2305.18290,
equation 7).
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from privsyn_flower.common.files import file_digest, replace_private
from privsyn_flower.common.progress import Progress
from privsyn_flower.config.api import named_as_arguments
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.models.adapters import WEIGHTS, save_untrained
from privsyn_flower.text.models.devices import training_device
from privsyn_flower.text.models.pretrained import local_folder
from privsyn_flower.text.preference.tuning import (
    CHECKPOINTS,
    EXPAND_ENDING,
    KEY,
    Pair,
    Setting,
    Tuning,
    check_pairs,
    epoch_folder,
)
from privsyn_flower.text.protocols import Trained

TASK, FINISHED = "task.json", "finished.json"


class PreferenceTrainer:
    """Trains LoRA adapters of one base model on pairs of responses (a Trainer).

    Args:
        model: folder or hub name of the base; loaded once per training and let go afterwards.
        method: `dpo`; `sft` on the chosen responses (the paper's PE + SFT); or `grpo`, whose
            "pairs" are a `prompt`, its `completion` and that one's `advantage`.
        beta: strength of the reference, which is the base without adapter in every round.
        label_smoothing: above 0: conservative DPO, the chance that a preference is wrong.
        learning_rate: AdamW's peak.
        schedule: `cosine`: the rate falls to 0 within each training; `constant`: it stays.
        warmup_steps: optimiser steps over which it rises first, in a run that starts from
            the base; one that goes on from an adapter has the full rate at once.
        epochs: passes over the pairs; each leaves an adapter.
        batch_size, micro_batch_size: pairs of an optimiser step, and of one forward pass at most.
        lora_rank, lora_alpha: of the adapter on all linear layers except the output's.
        ending: text that ends a response, the next heading by default; None: end-of-text.
        device: `auto`, `cpu`, `cuda` (the first visible) or `mps`.
        dtype: of the base: `auto` (bfloat16 on CUDA, else float32) or a torch dtype's name.
        gradient_checkpointing: less memory for a third more time; None: on CUDA.
        save_seconds: time between checkpoints; the end of an epoch always leaves one.
        progress: True for a bar on stderr in long runs, or a function to call.
        processes: above 1: that many, started by `accelerate launch`, share each step's pairs.
        launch_arguments: more arguments of `accelerate launch`, as on a command line.
        section: of the configuration that these are from, which errors name.
        chat: a prompt is a user's turn in the tokenizer's chat template.
        clip: GRPO's probability ratios count within 1 +- clip.
    """

    @named_as_arguments
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        method: Literal["dpo", "sft", "grpo"] = "dpo",
        beta: float = 0.01,
        label_smoothing: float = 0.0,
        learning_rate: float = 5e-7,
        schedule: Literal["cosine", "constant"] = "cosine",
        warmup_steps: int = 0,
        epochs: int = 2,
        batch_size: int = 24,
        micro_batch_size: int = 8,
        lora_rank: int = 4,
        lora_alpha: float = 8.0,
        ending: str | None = EXPAND_ENDING,
        device: str = "auto",
        dtype: str = "auto",
        gradient_checkpointing: bool | None = None,
        save_seconds: float = 60.0,
        progress: bool | Progress = True,
        processes: int = 1,
        launch_arguments: str = "",
        section: str = "popri",
        chat: bool = False,
        clip: float = 0.2,
    ) -> None:
        self.tuning = Tuning(
            method=method, beta=beta, label_smoothing=label_smoothing,
            learning_rate=learning_rate, schedule=schedule, warmup_steps=warmup_steps,
            epochs=epochs, batch_size=batch_size, micro_batch_size=micro_batch_size,
            lora_rank=lora_rank, lora_alpha=lora_alpha, ending=ending,
            section=section, processes=processes, chat=chat, clip=clip,
        )  # fmt: skip
        found = training_device(device)
        if gradient_checkpointing is None:
            gradient_checkpointing = found.startswith("cuda")
        self.setting = Setting(
            model, found, dtype, gradient_checkpointing, save_seconds, progress,
            tuple(shlex.split(launch_arguments)),
        )  # fmt: skip

    def train(
        self, pairs: Sequence[Pair], *, start: Path | None, work: Path, seed: int
    ) -> list[Trained]:
        """Pairs -> one Trained per epoch, in order (see `Trainer`).

        metrics: means over the epoch's optimiser steps of `loss` (nats) and, for DPO, of
        `reward_accuracy` (share of pairs whose chosen response gained more), `reward_margin`
        (beta times the difference of the two log-ratios) and `kl` (mean of log policy/reference
        over chosen and rejected responses, nats per response: an unbiased estimate of the KL
        divergence only for responses drawn from the policy, which these were before the
        training); for SFT of `token_accuracy`; for GRPO of `kl` (from the reference, nats per
        token) and `clipped` (share of tokens whose ratio did not count). With `_first` and
        `_last`: those steps alone.
        Raises ValueError for pairs or settings that cannot be trained on, for a `work` folder
        of another training, AdapterError for a `start` that does not fit, and RuntimeError when
        the loss is not finite.
        """
        check_pairs(pairs, self.tuning.method)
        work.mkdir(parents=True, exist_ok=True)
        self._claim(work, self._task(pairs, start, seed))
        if not (work / FINISHED).is_file():
            if self.tuning.processes > 1:
                from privsyn_flower.text.preference.launched import fit_launched as fit
            else:
                from privsyn_flower.text.preference.fit import fit
            metrics = fit(self.setting, self.tuning, pairs, start=start, work=work, seed=seed)
            report = json.dumps(metrics, indent=1) + "\n"
            replace_private(work / FINISHED, report.encode())
        shutil.rmtree(work / CHECKPOINTS, ignore_errors=True)
        epochs = json.loads((work / FINISHED).read_text("utf-8"))
        return [
            Trained(work / epoch_folder(number), metrics)
            for number, metrics in enumerate(epochs, start=1)
        ]

    def untrained(self, target: Path) -> None:
        """Write the adapter of a training run of no steps (`text.readiness.Untrained`).

        Raises ModelUnavailableError where the base's weights are not here.
        """
        import privsyn_flower.text.preference.fit  # noqa: F401 - its libraries

        tuning = self.tuning
        save_untrained(
            self.setting.model, KEY, target, rank=tuning.lora_rank, alpha=tuning.lora_alpha
        )

    def _task(self, pairs: Sequence[Pair], start: Path | None, seed: int) -> str:
        """A hash of all that the result depends on."""
        folder = local_folder(self.setting.model, KEY)
        # Several processes take the pairs in another order.
        apart = {("section", self.tuning.section), ("processes", 1), ("chat", False), ("clip", 0.2)}
        about = {
            "model": folder_fingerprint(folder) if folder else os.fspath(self.setting.model),
            "tuning": {k: v for k, v in asdict(self.tuning).items() if (k, v) not in apart},
            "dtype": self.setting.dtype,
            "start": file_digest(start / WEIGHTS) if start and (start / WEIGHTS).is_file() else "",
            "seed": seed,
            "pairs": [dict(pair) for pair in pairs],
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def _claim(self, work: Path, task: str) -> None:
        """Make `work` the folder of this training; ValueError when it is another's."""
        path = work / TASK
        if path.is_file() and json.loads(path.read_text("utf-8"))["task"] != task:
            raise ValueError(
                f"{work} holds a training of other pairs, settings, start or seed: use an empty "
                "folder"
            )
        replace_private(path, json.dumps({"task": task}).encode())
