"""`[evaluation]`: the keys of the benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from privsyn_flower.config.section import Section

if TYPE_CHECKING:
    from privsyn_flower.config.schema import RunConfig


class EvaluationConfig(Section):
    """`[evaluation]`: the benchmark (simulation only, with `benchmark = true`)."""

    start: Literal["base", "public"] = Field(
        "base", description="what fine-tunings start from: models.downstream as it is, or tuned "
        "on the public pool before"
    )  # fmt: skip
    public_steps: int = Field(0, ge=0, description="start = public: steps of that stage")
    public_epochs: int = Field(0, ge=0, description="start = public: or passes over the pool")
    public_batch_size: int = Field(0, ge=0, description="start = public: 0: batch-size")
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
        0, ge=0, description="texts in memory at once, of no effect on the result; 0: the batch"
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
        "unaligned (popri), no-private-step, histogram-only, training-only (ctcl) and "
        "random-public; empty: nothing"
    )  # fmt: skip

    @property
    def controls_named(self) -> list[str]:
        """The names in `controls`, but for "all"."""
        named = [name.strip() for name in self.controls.split(",")]
        return [name for name in named if name not in ("", "all")]

    def compares(self, control: str) -> bool:
        """Whether the benchmark runs the control of this name."""
        named = [name.strip() for name in self.controls.split(",")]
        return control in named or "all" in named

    def check(self, config: RunConfig) -> None:
        """What a comparison needs of the method."""
        self._check_start(config)
        self._check_kind(config)
        self._check_checkpoint(config)
        if self.rival:
            self._check_rival(config)
        if self.task == "classification":
            (key, given), classes = config.labels, config.classes
            if not any(map(config.uses, ("popri", "ctcl", "pe", "pretext"))) or not classes:
                raise ValueError(
                    f"evaluation.task = 'classification' with method = {config.method!r} and "
                    f"{key} = {given!r}: it needs method = 'popri', 'ctcl', 'pe', 'pretext' or "
                    "'public-only' and labels, so that synthetic text has classes"
                )
            if len(classes) < 2:
                raise ValueError(
                    f"evaluation.task = 'classification' with {key} = "
                    f"{given!r}: at least 2 classes are needed"
                )

    def _check_rival(self, config: RunConfig) -> None:
        """What a rival can be simulated beside."""
        if config.trains:
            raise ValueError(
                f"evaluation.rival = {self.rival!r} is simulated for synthetic text, "
                f"not for method = {config.method!r}: set it to ''"
            )
        if config.uses("pe"):
            raise ValueError(
                f"evaluation.rival = {self.rival!r} is simulated beside method = 'popri', not "
                "beside 'pe': set it to '', and run the other method by itself"
            )
        if config.method == self.rival:
            raise ValueError(
                f"evaluation.rival = {self.rival!r} is the method itself: set it to ''"
            )
        if self.task == "classification":
            raise ValueError(
                f"evaluation.rival = {self.rival!r} writes text without classes, of no use to "
                "evaluation.task = 'classification': set rival = ''"
            )
        if config.pretext.labels:  # public text has the classes of the method's table alone
            raise ValueError(
                f"evaluation.rival = {self.rival!r} with pretext.labels = "
                f"{config.pretext.labels!r}: a rival knows no classes; set pretext.labels = '', "
                "or rival = ''"
            )

    def _check_start(self, config: RunConfig) -> None:
        """A public stage has one length, in one place."""
        lengths = (self.public_steps > 0) + (self.public_epochs > 0)
        if self.start == "base" or config.trains:
            if lengths or self.public_batch_size:
                raise ValueError(
                    f"evaluation.public-steps = {self.public_steps}, public-epochs = "
                    f"{self.public_epochs} and public-batch-size = {self.public_batch_size} belong "
                    "to evaluation.start = 'public' of a method that writes text (a training has "
                    "training.public-steps): set them to 0"
                )
            if self.start == "public" and not config.training.public_steps:
                raise ValueError(
                    "evaluation.start = 'public' with training.public-steps = 0: there is no such "
                    "model; raise it, or set evaluation.start = 'base'"
                )
        elif lengths != 1:
            raise ValueError(
                f"evaluation.start = 'public' with public-steps = {self.public_steps} and "
                f"public-epochs = {self.public_epochs}: set exactly one of them above 0"
            )

    def _check_kind(self, config: RunConfig) -> None:
        """Keys that a task or a method has no use for."""
        classes = self.task == "classification"
        nodes = config.trains or (config.uses("popri") and config.popri.select == "federated")
        for key, used, barred in (
            ("start = 'public'", self.start == "public", classes),
            ("special-tokens = 'bos-eos'", self.special_tokens == "bos-eos", classes or nodes),
            (f"adapter-rank = {self.adapter_rank}", self.adapter_rank > 0, classes or nodes),
        ):
            if used and barred:
                raise ValueError(
                    f"evaluation.{key} is for next tokens on the server, without task = "
                    "'classification' and without training or evaluation on the nodes: leave it out"
                )
        if self.adapter_rank and self.start == "public":
            raise ValueError(
                f"evaluation.adapter-rank = {self.adapter_rank} with start = 'public': adapters "
                "are trained over models.downstream as it is; set start = 'base'"
            )

    def _check_checkpoint(self, config: RunConfig) -> None:
        """A choice among epochs needs epochs, and text to choose by."""
        if self.checkpoint == "last":
            return
        if not self.epochs:
            raise ValueError(
                f"evaluation.checkpoint = {self.checkpoint!r} with epochs = 0: set epochs, or "
                "'last'"
            )
        public = self.checkpoint == "public"
        if public and self.task == "classification":
            raise ValueError(
                "evaluation.checkpoint = 'public' with task = 'classification': public validation "
                "text has no classes; set 'last' or 'development'"
            )
        found = config.data.public_validation if public else config.data.development_users
        if not found:
            key = "data.public-validation" if public else "data.development-users"
            raise ValueError(
                f"evaluation.checkpoint = {self.checkpoint!r} with {key} = 0: raise it, or set "
                "'last'"
            )
