"""What the rows of the papers' tables share whose users answer nothing: no phases, no ledger.

Their recipe's `strategy` is the list of texts that they begin with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from privsyn_flower.app.benchmark.feedback import Feedback
from privsyn_flower.app.benchmark.names import RANDOM_PUBLIC
from privsyn_flower.app.benchmark.private import Private
from privsyn_flower.common.arrays import F32
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.server_apps.methods.stages import Task, private_texts
from privsyn_flower.server_apps.methods.synthesis import Writing


class BaselineRecipe(Writing[list[str]]):
    """A row without rounds. Its `baseline` says what it claims."""

    controls = (RANDOM_PUBLIC,)

    @classmethod
    def question(cls, config: RunConfig) -> tuple[str, dict[str, Any]]:
        """There is none. Raises ConfigError."""
        raise ConfigError(f"method = {config.method!r} asks no user anything: there is no answer")

    @classmethod
    def phases(cls, config: RunConfig) -> list[Phase]:
        return []

    @classmethod
    def loads(cls, config: RunConfig) -> set[str]:
        """The embedder measures distances for the benchmark."""
        return {"embedder"} if config.benchmark else set()

    @classmethod
    def work(cls, config: RunConfig) -> list[Task]:
        """And the users' texts, which no round has embedded before the benchmark."""
        own = super().work(config)
        if config.benchmark:
            what = "embedding the users' texts"
            own.append(replace(private_texts(config), stage="benchmark", what=what, nodes=False))
        return own

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        if config.evaluation.rival:
            yield (
                f"evaluation.rival = {config.evaluation.rival!r} is simulated at a run's noise, "
                f"and method = {config.method!r} has none: set it to ''"
            )

    def feedback(self, strategy: list[str], private: Private, held_out: F32) -> Feedback:
        """Nobody answered."""
        return {}, []
