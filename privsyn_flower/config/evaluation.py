"""`[evaluation]`: the keys of the benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from privsyn_flower.config.section import Section, split_list

if TYPE_CHECKING:
    from privsyn_flower.config.schema import RunConfig


class EvaluationConfig(Section):
    """`[evaluation]`: the benchmark (simulation only, with `benchmark = true`)."""

    sequence_length: int = Field(64, ge=8, description="tokens of a training sequence")
    steps: int = Field(200, ge=1, description="optimiser steps of every fine-tuning")
    batch_size: int = Field(32, ge=1, description="sequences of one optimiser step")
    learning_rates: str = Field("1e-4,3e-4,1e-3", description="tried on public validation text")
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
        "unaligned (popri) and random-public; empty: nothing"
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
        if self.rival and config.trains:
            raise ValueError(
                f"evaluation.rival = {self.rival!r} is simulated for synthetic text, "
                f"not for method = {config.method!r}: set it to ''"
            )
        if self.task == "classification":
            if not config.uses("popri") or not config.popri.labels:
                raise ValueError(
                    f"evaluation.task = 'classification' with method = {config.method!r} and "
                    f"popri.labels = {config.popri.labels!r}: it needs method = 'popri' or "
                    "'public-only' and labels, so that synthetic text has classes"
                )
            if len(split_list(config.popri.labels)) < 2:
                raise ValueError(
                    f"evaluation.task = 'classification' with popri.labels = "
                    f"{config.popri.labels!r}: at least 2 classes are needed"
                )
            if self.rival == "pretext":
                raise ValueError(
                    "evaluation.rival = 'pretext' writes text without classes, of no use to "
                    "evaluation.task = 'classification': set rival = ''"
                )
        if self.rival and config.method == self.rival:
            raise ValueError(
                f"evaluation.rival = {self.rival!r} is the method itself: set it to ''"
            )
