"""`[pretext]`: the keys of PrE-Text."""

from __future__ import annotations

from typing import ClassVar

from privsyn_flower.config.common import SYNTHETIC, CommonConfig, MethodEntry, MethodTable
from privsyn_flower.config.evolution import EvolutionConfig


class PreTextConfig(EvolutionConfig, MethodTable):
    """`[pretext]`: PrE-Text, Algorithms 1 and 2 of the paper."""

    table: ClassVar[str] = "pretext"
    elsewhere: ClassVar[bool] = True  # as a rival

    def check(self, config: CommonConfig) -> None:
        """What classes need of the data."""
        self.check_labels(config.data)


METHODS = (
    MethodEntry(
        "pretext", SYNTHETIC, PreTextConfig, ("sft",), order=1, title="PrE-Text (Hou et al. 2024)"
    ),
)
