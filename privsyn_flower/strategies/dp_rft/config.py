"""`[dp-rft]`: the keys of online reinforcement learning on votes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from privsyn_flower.config.common import SYNTHETIC, CommonConfig, MethodEntry, MethodTable
from privsyn_flower.strategies.popri.config import PopriConfig

# Of POPri's keys: how its scores are asked, and what is made of them. Its rank of the rejected is
# not read either, but has to fit the number of responses.
UNUSED = ("labels", "dimension", "training", "label_smoothing")


class DpRftConfig(MethodTable):
    """`[dp-rft]`: what votes are worth, and GRPO (Shao et al. 2024, arXiv 2402.03300).

    Prompts, completions, adapters and the optimiser are `[popri]`'s, as are the bound of a user's
    votes (`popri.score-bound`) and the weight of the KL term (`popri.beta`).
    """

    table: ClassVar[str] = "dp_rft"

    threshold: float = Field(
        1.0, ge=0, description="taken off every completion's votes, in std of the noise; less is 0"
    )
    scale: Literal["group", "round"] = Field(
        "group", description="rewards are divided by their std in the prompt (GRPO) or the round"
    )
    clip: float = Field(0.2, gt=0, lt=1, description="probability ratios count within 1 +- clip")

    def adapter_rank(self, config: CommonConfig) -> int:
        return config[PopriConfig].lora_rank

    def evaluates_on_nodes(self, config: CommonConfig) -> bool:
        return config[PopriConfig].select == "federated"

    def check(self, config: CommonConfig) -> None:
        """POPri's keys as far as they are used, and none of the others."""
        shared, default = config[PopriConfig], PopriConfig()
        for name in UNUSED:
            if (value := getattr(shared, name)) != getattr(default, name):
                raise ValueError(
                    f"popri.{name.replace('_', '-')} = {value!r} is of no use to method = "
                    "'dp-rft', which asks for votes without classes and learns by GRPO: leave it "
                    "out"
                )
        if shared.score not in (default.score, "nearest"):
            raise ValueError(
                f"popri.score = {shared.score!r}: method = 'dp-rft' asks for votes alone; leave it "
                "out, or set 'nearest'"
            )
        shared.check(config)


METHODS = (
    MethodEntry(
        "dp-rft", SYNTHETIC, DpRftConfig, ("popri",), order=6, title="DP-RFT (Xu et al. 2026)"
    ),
)
