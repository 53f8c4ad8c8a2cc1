"""Expand-only (PrE-Text, section 4 (1), App. D.2 (1)): Expand on public seeds, no user asked."""

from __future__ import annotations

from typing import Any

from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.baseline import Baseline, PublicAlone
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.stages import Task, expansion
from privsyn_flower.server_apps.methods.synthesis import BaselineRecipe
from privsyn_flower.text.prompts import LabelledText


class ExpandOnlyRecipe(BaselineRecipe):
    """Epsilon 0: each prompt shows random texts of the whole public pool."""

    @classmethod
    def baseline(cls, config: RunConfig, **facts: Any) -> Baseline:
        return PublicAlone(**facts)

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        return super().loads(config) | ({"generator"} if config.expand.samples else set())

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        return "expand.seeds-per-prompt", config.expand.seeds_per_prompt

    @classmethod
    def writing(cls, config: RunConfig) -> list[Task]:
        return expansion(config)

    @classmethod
    def texts(cls, config: RunConfig) -> int:
        options = config.expand
        pool = config.data.public_pool if options.releases_seeds else 0
        return options.samples + pool

    def strategy(self, folder: RunFolder) -> list[str]:
        return self.models.public.pool

    def write(self, strategy: list[str], purpose: str) -> list[LabelledText]:
        return self.expanded(strategy, purpose)


RECIPE = ExpandOnlyRecipe
