"""`[measure]`: models whose accuracy on the users' text is the result (`method = "evaluation"`)."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, field_validator

from privsyn_flower.config.common import (
    MEASURING,
    CommonConfig,
    MethodEntry,
    MethodTable,
    Place,
)
from privsyn_flower.config.section import split_list

MOST_MODELS = 16  # in one question: nodes take no more
CAUSAL = ("downstream", "generator", "conditional")  # keys of [models] that name a causal LM


class MeasureConfig(MethodTable):
    """`[measure]`: given models, measured on the users' text in one release."""

    table: ClassVar[str] = "measure"

    models: str = Field(
        "",
        description="NAME=MODEL, ...: 1 to 16 models over models.downstream; a folder (a whole "
        "model or a LoRA adapter), a hub name, or downstream, generator, conditional: that of "
        "[models]",
    )
    max_tokens: int = Field(
        0, ge=0, le=1 << 20, description="predicted tokens of a user that count, the first ones; "
        "0: data.samples-per-user x evaluation.sequence-length"
    )  # fmt: skip
    max_loss: float = Field(10.0, gt=0, description="nats of a token that count, at most")
    gap: float = Field(
        0.0, ge=0, le=1, description="above 0: models after the first are told as differences "
        "from it, cut at this share, with 1 / gap times less noise; 0.1 for near-alike ones"
    )  # fmt: skip

    @field_validator("models")
    @classmethod
    def _named_once(cls, value: str) -> str:
        pairs = [part.partition("=") for part in split_list(value)]
        names = [name.strip() for name, _, _ in pairs]
        if not all(sign and name.strip() and model.strip() for name, sign, model in pairs):
            raise ValueError("must be NAME=MODEL pairs with commas between them")
        if len(set(names)) < len(names) or len(names) > MOST_MODELS:
            raise ValueError(f"must have distinct names, and {MOST_MODELS} of them at most")
        return value

    @property
    def named(self) -> dict[str, str]:
        """NAME -> MODEL, in order."""
        pairs = (part.partition("=") for part in split_list(self.models))
        return {name.strip(): model.strip() for name, _, model in pairs}

    @property
    def kinds(self) -> set[str]:
        """The keys of `[models]` that are named, instead of a folder."""
        return set(self.named.values()) & set(CAUSAL)

    def relocated(self, path: Place, model: Place) -> Self:
        """A key of `[models]` stays."""
        moved = (
            f"{name}={own if own in CAUSAL else model(own)}" for name, own in self.named.items()
        )
        return self.model_copy(update={"models": ", ".join(moved)})

    def tokens(self, config: CommonConfig) -> int:
        """Predicted tokens of one user that count, at most."""
        length = config.evaluation.sequence_length
        return self.max_tokens or config.data.samples_per_user * length

    def check(self, config: CommonConfig) -> None:
        """What only the models' evaluation cannot go with."""
        if config.benchmark:
            raise ValueError(
                "benchmark = true with method = 'evaluation', which makes nothing that could be "
                "compared: set it to false"
            )


METHODS = (
    MethodEntry("evaluation", MEASURING, MeasureConfig, order=7, product="Summary statistics"),
)
