"""`[proximity]`: public text chosen by the model that was trained on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from privsyn_flower.config.section import Section

if TYPE_CHECKING:
    from privsyn_flower.config.schema import RunConfig


class ProximityConfig(Section):
    """`[proximity]`: after a training, its model filters the public pool (Gboard, section 5)."""

    filter: bool = Field(
        False, description="write the public texts that the trained model keeps: proximity.jsonl"
    )
    most_unknown: float = Field(
        0.6, ge=0, le=1, description="largest share of words outside of the vocabulary"
    )
    least_score: float = Field(
        -5.0, ge=-1e6, le=0, description="least mean log-likelihood of a token by the trained "
        "model, nats; the paper's 5, of its 30,000 words"
    )  # fmt: skip
    least_quantile: float = Field(
        0.0, ge=0, lt=1, description="above 0: the least score is this quantile of the public "
        "texts' scores before the training"
    )  # fmt: skip
    gain: bool = Field(True, description="keep no text that the training made less likely")

    def check(self, config: RunConfig) -> None:
        """There must be public text to choose from."""
        data = config.data
        if not self.filter:
            return
        if data.source != "docstrings" and not data.public_path:
            raise ValueError(
                "proximity.filter = true chooses from public text, and data.public-path is empty: "
                "name it, or set proximity.filter = false"
            )
