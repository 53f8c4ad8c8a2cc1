"""`[pe]`: the keys of private evolution."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from privsyn_flower.config.common import SYNTHETIC, CommonConfig, MethodEntry, MethodTable
from privsyn_flower.config.evolution import LABEL, EvolutionConfig


class PeConfig(EvolutionConfig, MethodTable):
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

    def check(self, config: CommonConfig) -> None:
        """And there is no rival beside it."""
        self.check_labels(config.data)
        if config.evaluation.rival:
            raise ValueError(
                f"evaluation.rival = {config.evaluation.rival!r} is simulated beside method = "
                "'popri', not beside 'pe': set it to '', and run the other method by itself"
            )


METHODS = (
    MethodEntry(
        "pe",
        SYNTHETIC,
        PeConfig,
        ("sft",),
        order=2,
        title="private evolution (Lin et al. 2024, Xie et al. 2024)",
    ),
)
