"""Public text alone (c4-only in PrE-Text, App. D.2 (1)): the result is the public text itself."""

from __future__ import annotations

from typing import Any

from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.baseline import PublicAlone
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.synthesis import BaselineRecipe
from privsyn_flower.server_apps.public_text import labels_of
from privsyn_flower.text.prompts import LabelledText


class PublicOnlyRecipe(BaselineRecipe):
    """Epsilon 0: what a model learns from the public pool, whole."""

    @classmethod
    def baseline(cls, config: RunConfig, **facts: Any) -> PublicAlone:
        return PublicAlone(**facts)

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        """Classes can be measured without: by the most frequent one, which needs no text."""
        if config.evaluation.task == "classification":
            return "", 0
        return "data.public-pool", config.data.public_pool

    @classmethod
    def texts(cls, config: RunConfig) -> int:
        return config.data.public_pool

    def unusable(self, samples: int) -> list[str]:
        """Nothing is written, and classes need no text."""
        return []

    def strategy(self, folder: RunFolder) -> list[str]:
        return self.models.public.pool

    def write(self, strategy: list[str], purpose: str) -> list[LabelledText]:
        """The pool as the other methods' candidates are: distinct, cut to `data.sample-words`.

        With their classes where the public text has any.
        """
        federation = self.models.public.federation
        labels = {} if federation is None else labels_of(federation, self.config)
        return [LabelledText(text, labels.get(text, "")) for text in strategy]


RECIPE = PublicOnlyRecipe
