"""`[evaluation]`: the keys of the benchmark."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from privsyn_flower.config.section import Section, split_list


class EvaluationConfig(Section):
    """`[evaluation]`: the benchmark (simulation only, with `benchmark = true`)."""

    start: Literal["base", "public", "converged"] = Field(
        "base", description="what fine-tunings start from: models.downstream as it is, tuned on "
        "the public pool before, or tuned on it until the loss on public validation text stops "
        "falling (a private training starts there, too)"
    )  # fmt: skip
    public_steps: int = Field(
        0, ge=0, description="start = public: steps of that stage; converged: at most so many"
    )
    public_epochs: int = Field(0, ge=0, description="start = public: or passes over the pool")
    public_batch_size: int = Field(
        0, ge=0, description="start = public or converged: 0: batch-size"
    )
    public_patience: int = Field(
        200, ge=1, description="start = converged: steps without a lower loss that end it"
    )
    sequence_length: int = Field(64, ge=8, description="tokens of a training sequence")
    special_tokens: Literal["tokenizer", "bos-eos"] = Field(
        "tokenizer", description="around a text: what the tokenizer puts there, or BOS and EOS"
    )
    steps: int = Field(200, ge=1, description="optimiser steps of every fine-tuning")
    epochs: int = Field(
        0, ge=0, description="passes over each set instead of steps; 0: steps, at equal cost"
    )
    batch_size: int = Field(32, ge=1, description="sequences of one optimiser step")
    batch_of: Literal["tokens", "texts"] = Field(
        "tokens", description="a batch is batch-size x sequence-length tokens to predict, or "
        "batch-size texts (as with epochs, and for classes)"
    )  # fmt: skip
    micro_batch_size: int = Field(
        0,
        ge=0,
        description="texts in memory at once, of no effect on the result but for rounding; 0: the "
        "batch. On a CPU 16 at most",
    )
    learning_rates: str = Field("1e-4,3e-4,1e-3", description="tried on public validation text")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="of the learning rate after its warm-up"
    )
    warm_up: float = Field(0.1, ge=0, lt=1, description="share of the steps in which it rises")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's")
    gradient_clip: float = Field(1.0, ge=0, description="norm of a step's gradient; 0: no limit")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of matrix products in training; of the weights under adapters"
    )
    processes: int = Field(
        1, ge=1, description="that share a fine-tuning, with a GPU each (next-token)"
    )
    adapter_rank: int = Field(
        0, ge=0, description="above 0: LoRA factors of that rank are trained, on all projections"
    )
    adapter_alpha: float = Field(8.0, gt=0, description="their scale is alpha / rank")
    checkpoint: Literal["last", "public", "development"] = Field(
        "last", description="epoch kept of a fine-tuning: the last, or the most accurate on public "
        "validation text, or on development users' (the papers; outside epsilon)"
    )  # fmt: skip
    bootstrap: int = Field(2000, ge=100, description="resamples of users for the interval")
    on: Literal["test", "development"] = Field("test", description="which held-out users")
    task: Literal["next-token", "classification"] = Field(
        "next-token", description="what the downstream model is fine-tuned for"
    )
    rival: Literal["", "pretext"] = Field(
        "", description="another method at the same epsilon, simulated for comparison"
    )
    controls: str = Field(
        "all", description="what the result is compared with: all, or a list of noise, "
        "unaligned (popri), no-private-step, histogram-only, training-only (ctcl), "
        "random-public and minority-public (its part that is like the users' text); empty: nothing"
    )  # fmt: skip

    @property
    def controls_named(self) -> list[str]:
        """The names in `controls`, but for "all"."""
        return [name for name in split_list(self.controls) if name != "all"]

    def compares(self, control: str) -> bool:
        """Whether the benchmark runs the control of this name."""
        return not {control, "all"}.isdisjoint(split_list(self.controls))
