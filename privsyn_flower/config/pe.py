"""`[pe]` and `[sft]`: private evolution, and fine-tuning on what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from privsyn_flower.config.pretext import LABEL, PreTextConfig
from privsyn_flower.config.section import Section

if TYPE_CHECKING:
    from privsyn_flower.config.schema import RunConfig


class PeConfig(PreTextConfig):
    """`[pe]`: private evolution (Lin et al. 2024), and Aug-PE (Xie et al. 2024).

    The keys of PrE-Text, and those in which the two differ from it.
    """

    table: ClassVar[str] = "pe"

    selection: Literal["probability", "rank"] = Field(
        "probability", description="survivors: drawn by votes (PE), or those of most (Aug-PE)"
    )
    copies: int = Field(
        1, ge=1, description="L: candidates for each survivor, L x population in a round; above "
        "1 the survivor itself and L - 1 variations"
    )  # fmt: skip
    initial: Literal["public", "model"] = Field(
        "public", description="first candidates: public texts, or written by models.generator"
    )
    prompt: str = Field(
        "", description="initial = model: what the generator is asked for; {label}: the class"
    )

    @property
    def candidates(self) -> int:
        """L x N_syn, of which N_syn survive."""
        return self.population * self.copies

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        if self.selection == "rank" and self.copies == 1:
            raise ValueError(
                "pe.selection = 'rank' with pe.copies = 1 would let every candidate survive: "
                "raise pe.copies (Aug-PE: 7), or set selection = 'probability'"
            )
        if (self.initial == "model") != bool(self.prompt.strip()):
            raise ValueError(
                f"pe.initial = {self.initial!r} with pe.prompt = {self.prompt!r}: 'model' needs a "
                "prompt, and nothing else reads one"
            )
        if self.initial == "model" and bool(self.labels.strip()) != (LABEL in self.prompt):
            raise ValueError(
                f"pe.prompt = {self.prompt!r} must hold {LABEL} when pe.labels names classes, and "
                f"not otherwise (pe.labels = {self.labels!r})"
            )
        return self


class SftConfig(Section):
    """`[sft]`: the generator learns the survivors before it writes (POPri, section 3: PE+SFT)."""

    epochs: int = Field(0, ge=0, description="passes over the survivors; 0: no fine-tuning")
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's peak")
    batch_size: int = Field(24, ge=1, description="survivors of one optimiser step")
    micro_batch_size: int = Field(8, ge=1, description="survivors in memory at once")
    lora_rank: int = Field(4, ge=1, description="of the adapter, on all projections")
    lora_alpha: float = Field(8.0, gt=0, description="its scale is alpha / rank")

    def check(self, config: RunConfig) -> None:
        """What the fine-tuning needs of the text that follows, and of the generator."""
        if not self.epochs:
            return
        config.models.check_shared("sft.batch-size", self.batch_size)
        if config.evolution.labels:
            table = config.evolution.table
            raise ValueError(
                f"sft.epochs = {self.epochs} with {table}.labels: the fine-tuning knows no "
                f"classes; set sft.epochs = 0, or {table}.labels to ''"
            )
        if not config.expand.samples:
            raise ValueError(
                f"sft.epochs = {self.epochs} with expand.samples = 0: the tuned generator would "
                "write nothing; raise expand.samples, or set sft.epochs = 0"
            )
        if config.generation.backend == "openai" or config.generation.chat:
            raise ValueError(
                f"sft.epochs = {self.epochs} with generation.backend = "
                f"{config.generation.backend!r} and generation.chat = {config.generation.chat}: "
                "the adapter is trained on bare prompts and must be loaded: set 'huggingface' or "
                "'vllm', and chat = false"
            )
