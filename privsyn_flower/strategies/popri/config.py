"""`[popri]`: the keys of POPri."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from privsyn_flower.config.common import SYNTHETIC, CommonConfig, MethodEntry, MethodTable
from privsyn_flower.config.section import Scalar


class PopriConfig(MethodTable):
    """`[popri]`: POPri, Algorithms 1 to 5 of the paper. Sampling of responses is `[expand]`'s."""

    table: ClassVar[str] = "popri"
    elsewhere: ClassVar[bool] = True
    without_benchmark: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "checkpoint": ("last", "public"),
        "select": ("last", "public", "federated"),
    }

    prompts: int = Field(128, ge=1, description="K: prompts in a round")
    responses: int = Field(8, ge=2, description="J: responses to one prompt")
    examples: int = Field(3, ge=0, description="public texts in one prompt; 0: the instruction")
    instruction: str = Field("", description="the prompt when examples = 0; {label}: the class")
    labels: str = Field("", description="public class list; empty: not class-conditional")
    score: Literal["standardised", "centred", "mean-cosine", "nearest"] = Field(
        "standardised", description="a user's answer: z-scored (the paper's code), centred by "
        "prompt, mean cosine (the paper), or nearest-neighbour votes (its ablation)"
    )  # fmt: skip
    score_bound: float = Field(1.0, gt=0, description="L2 bound of one user's scores")
    dimension: int = Field(
        0, ge=0, description="dimension sent to users, by a public projection; 0: the embedder's"
    )
    rejected_rank: int = Field(5, ge=2, description="rank of the rejected response; 1 is chosen")
    training: Literal["dpo", "sft"] = Field("dpo", description="DPO, or SFT on the best")
    beta: float = Field(0.01, gt=0, description="DPO: strength of the reference")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="above 0: conservative DPO")
    learning_rate: float = Field(5e-7, gt=0, description="AdamW's peak")
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="the rate within a round: a cosine to 0, or the same throughout"
    )
    warmup_steps: int = Field(
        0, ge=0, description="steps of the run's first training in which the rate rises"
    )
    epochs: int = Field(2, ge=1, description="passes over a round's pairs")
    batch_size: int = Field(24, ge=1, description="pairs of one optimiser step")
    micro_batch_size: int = Field(8, ge=1, description="pairs in memory at once")
    lora_rank: int = Field(4, ge=1, description="of the adapter, on all projections")
    lora_alpha: float = Field(8.0, gt=0, description="its scale is alpha / rank")
    checkpoint: Literal["last", "public", "private"] = Field(
        "last", description="epoch kept: the last, or by Frechet distance to public validation "
        "text, or to private text (the paper; benchmark only, outside epsilon)"
    )  # fmt: skip
    select: Literal["last", "public", "private", "federated"] = Field(
        "last", description="round whose generator writes the result: the last, by public "
        "validation text, by private text as checkpoint = private, or by a paid evaluation on "
        "the nodes"
    )  # fmt: skip
    select_samples: int = Field(400, ge=16, description="texts made to compare checkpoints")

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if self.rejected_rank > self.responses:
            raise ValueError(
                f"popri.rejected-rank = {self.rejected_rank} is above popri.responses = "
                f"{self.responses}: lower the one or raise the other"
            )
        if self.select == "private" and self.checkpoint != "private":
            raise ValueError(
                f"popri.select = 'private' with popri.checkpoint = {self.checkpoint!r}: rounds are "
                "compared by the private distance of their epochs; set checkpoint = 'private' (for "
                "benchmarks only), or select to 'last', 'public' or 'federated'"
            )
        if self.score == "nearest" and (self.labels or self.dimension):
            raise ValueError("popri.score = 'nearest' takes neither popri.labels nor dimension")
        if not self.examples and not self.instruction:
            raise ValueError("popri.examples = 0 needs popri.instruction, the prompt itself")
        return self

    def adapter_rank(self, config: CommonConfig) -> int:
        return self.lora_rank

    def evaluates_on_nodes(self, config: CommonConfig) -> bool:
        return self.select == "federated"

    def check(self, config: CommonConfig) -> None:
        """What POPri needs of the other tables."""
        if self.checkpoint == "private" and not config.benchmark:
            raise ValueError(
                "popri.checkpoint = 'private' chooses by private text without noise, which epsilon "
                "does not cover: for benchmarks only (benchmark = true); set 'last' or 'public'"
            )
        config.models.check_shared("popri.batch-size", self.batch_size)
        public = "public" in (self.checkpoint, self.select)
        if public and config.data.public_validation < 2:
            raise ValueError(
                f"data.public-validation = {config.data.public_validation}: choosing by public "
                "text (popri.checkpoint, popri.select) needs at least 2 texts"
            )
        if self.labels and not config.data.labelled:
            raise ValueError("popri.labels needs data.label-column, where a text's class stands")
        if config.generation.backend == "openai":
            raise ValueError(
                "generation.backend = 'openai' has no way to load the adapters that "
                f"{config.method} trains: set 'huggingface', or 'vllm' with base-url for a server "
                "that takes LoRA adapters"
            )
        if config.generation.chat and config.generation.backend != "huggingface":
            raise ValueError(
                f"generation.chat = true, generation.backend = {config.generation.backend!r}: "
                f"{config.method} trains in the chat template with 'huggingface' alone; set that, "
                "or chat = false with the model's template in popri.instruction"
            )
        if self.select == "federated" and config.evaluation.task != "next-token":
            raise ValueError(
                "popri.select = 'federated' measures next tokens with models.downstream, and "
                f"evaluation.task = {config.evaluation.task!r} names another kind of model: set "
                "popri.select to 'last' or 'public'"
            )


METHODS = (MethodEntry("popri", SYNTHETIC, PopriConfig, order=3, title="POPri (Hou et al. 2025)"),)
