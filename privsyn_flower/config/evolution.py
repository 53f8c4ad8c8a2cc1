"""Keys that PrE-Text and private evolution share, and `[sft]`: fine-tuning on what they found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from privsyn_flower.config.data import DataConfig
from privsyn_flower.config.section import Section, split_list

TEXT, STYLE = "{text}", "{style}"
LABEL = "{label}"  # in an instruction: the class of what is to be written
MOST_CLASSES = 1024  # in one question: nodes take no more


class EvolutionConfig(Section):
    """Keys of a population of texts that users vote on (PrE-Text, Algorithms 1 and 2)."""

    table: ClassVar[str] = "evolution"  # for errors
    arguments: ClassVar[Mapping[str, str]] = {
        "retrieval-neighbors": "Retrieval(neighbors)",
        "retrieval-share": "Mixed(share)",
    }

    population: int = Field(256, ge=2, description="N_syn: candidates in a round")
    lookahead: int = Field(
        2, ge=1, description="K: variations averaged per candidate; 1: the candidate itself"
    )
    clip: Literal["normalised", "worst-case", "sqrt-count"] = Field(
        "normalised", description="how one user's votes are bounded"
    )
    vote_bound: float = Field(1.0, gt=0, description="L2 bound of one user's votes")
    neighbors: int = Field(1, ge=1, description="candidates one sample votes for")
    metric: Literal["l2", "cosine", "ip"] = Field("l2", description="what nearest means")
    threshold: float = Field(1.0, ge=0, description="H: taken off every candidate's votes")
    threshold_unit: Literal["noise-std", "votes"] = Field(
        "noise-std", description="unit of H: std of the released noise, or votes (the paper)"
    )
    labels: str = Field(
        "", description="public class list: texts vote within their classes; empty: no classes"
    )
    variation: Literal["mask-fill", "retrieval", "mixed", "rewrite", "continue"] = Field(
        "mask-fill", description="how survivors are varied: masks filled, a public neighbour, "
        "either; by models.generator: written anew as told, or one more text like it"
    )  # fmt: skip
    retrieval_share: float = Field(0.5, ge=0, le=1, description="mixed: share retrieved")
    retrieval_neighbors: int = Field(16, ge=1, description="public neighbours to draw from")
    mask_fraction: float = Field(0.3, gt=0, lt=1, description="MASK%")
    mask_steps: int = Field(2, ge=1, description="W_steps")
    mask_passes: int = Field(
        1, ge=0, description="forward passes that fill one step's masks; 0: one mask at a time, "
        "as the authors' code does"
    )  # fmt: skip
    temperature: float = Field(1.0, gt=0, description="of the mask-fill")
    top_p: float = Field(1.0, gt=0, le=1, description="of the mask-fill")
    max_tokens: int = Field(64, ge=8, description="length of a candidate in tokens")
    rewrite: str = Field(
        "Write this text anew {style}, with the same subject and of the same kind, and answer "
        "with the new text alone: {text}",
        description="rewrite: the instruction; {text}: the survivor, {style}: one of styles, "
        "{label}: its class",
    )
    styles: str = Field(
        "in other words, in plain words, in formal words, in fewer words, in more detail, "
        "in another order",
        description="rewrite: comma-separated, one is drawn for each text; empty: none",
    )

    @property
    def candidates(self) -> int:
        """Texts that users vote on in a round."""
        return self.population

    @property
    def written_by_generator(self) -> bool:
        """Whether `models.generator` varies the survivors."""
        return self.variation in ("rewrite", "continue")

    @model_validator(mode="after")
    def _rewrites(self) -> Self:
        if self.variation == "rewrite":
            check_instruction(self.rewrite, bool(self.styles.strip()), f"{self.table}.rewrite")
            if LABEL in self.rewrite and not self.labels:
                raise ValueError(
                    f"{self.table}.rewrite = {self.rewrite!r} holds {LABEL}, and "
                    f"{self.table}.labels names no class"
                )
        return self

    @model_validator(mode="after")
    def _has_classes(self) -> Self:
        names = split_list(self.labels)
        if self.labels and not names:
            raise ValueError(
                f"{self.table}.labels = {self.labels!r} names no class: set it to '' for none"
            )
        if len(names) > MOST_CLASSES:
            raise ValueError(
                f"{self.table}.labels names {len(names)} classes: at most {MOST_CLASSES} can be "
                "asked about"
            )
        if len(set(names)) < len(names):
            raise ValueError(
                f"{self.table}.labels = {self.labels!r} has a class twice: name each once"
            )
        self.check_candidates_per_class(len(names))
        return self

    def check_candidates_per_class(self, classes: int) -> None:
        """Raises ValueError unless each of so many classes has candidates that a text can vote for;
        without classes (0) the population is one."""
        fewest = self.population // max(1, classes) * (self.candidates // self.population)
        if classes and fewest < self.neighbors:
            raise ValueError(
                f"{self.table}.population = {self.population} for {classes} classes "
                f"({self.table}.labels) leaves one with {fewest} candidates, and a text votes for "
                f"{self.table}.neighbors = {self.neighbors}: raise the population"
            )

    def check_labels(self, data: DataConfig) -> None:
        """What classes need of the data."""
        if self.labels and not data.labelled:
            raise ValueError(
                f"{self.table}.labels needs data.label-column, where a text's class stands"
            )


def check_instruction(instruction: str, styled: bool, key: str) -> None:
    """Raises ValueError for an instruction without its text, or with a style and none to draw."""
    if TEXT not in instruction or (STYLE in instruction) != styled:
        raise ValueError(
            f"{key} = {instruction!r} must hold {TEXT}, and {STYLE} if and only if there are styles"
        )


class SftConfig(Section):
    """`[sft]`: the generator learns the survivors before it writes (POPri, section 3: PE+SFT)."""

    epochs: int = Field(0, ge=0, description="passes over the survivors; 0: no fine-tuning")
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's peak")
    batch_size: int = Field(24, ge=1, description="survivors of one optimiser step")
    micro_batch_size: int = Field(8, ge=1, description="survivors in memory at once")
    lora_rank: int = Field(4, ge=1, description="of the adapter, on all projections")
    lora_alpha: float = Field(8.0, gt=0, description="its scale is alpha / rank")
