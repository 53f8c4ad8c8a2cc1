"""Baselines that send users no query, and `[dp-prompt]`: the keys of DP-Prompt."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from privsyn_flower.config.common import BASELINE, CommonConfig, MethodEntry, MethodTable
from privsyn_flower.strategies.popri.config import PopriConfig


class DPPromptConfig(MethodTable):
    """`[dp-prompt]`: paraphrases under local privacy (Utpala et al. 2023), a simulated baseline.

    There is no temperature: it follows from epsilon, of a user with `data.samples-per-user` texts.
    """

    table: ClassVar[str] = "dp_prompt"
    elsewhere: ClassVar[bool] = True

    max_tokens: int = Field(64, ge=1, description="n: most tokens of a paraphrase, each is paid")
    logit_low: float = Field(0.0, description="b1: logits are raised to it")
    logit_high: float = Field(
        0.0, description="b2: logits are lowered to it; both 0: the extremes on public text"
    )

    @property
    def measured(self) -> bool:
        """Whether the range is that of public text."""
        return self.logit_low == self.logit_high == 0.0

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if not self.measured and self.logit_low >= self.logit_high:
            raise ValueError(
                f"dp-prompt.logit-low = {self.logit_low} must be below dp-prompt.logit-high = "
                f"{self.logit_high}, or both 0"
            )
        return self

    def check(self, config: CommonConfig) -> None:
        """Clipping needs the logits themselves."""
        if config.generation.backend != "huggingface":
            raise ValueError(
                f"generation.backend = {config.generation.backend!r} gives no logits to clip: set "
                "'huggingface' for method = 'dp-prompt'"
            )


METHODS = (
    # With POPri's classes; its texts come out as they went in.
    MethodEntry("public-only", BASELINE, PopriConfig, order=8, product="Dataset"),
    MethodEntry("minority-only", BASELINE, order=8, product="Dataset"),
    MethodEntry("expand-only", BASELINE, order=8),
    MethodEntry("expand-private", BASELINE, order=8),
    MethodEntry(
        "dp-prompt", BASELINE, DPPromptConfig, order=8, title="DP-Prompt (Utpala et al. 2023)"
    ),
)
