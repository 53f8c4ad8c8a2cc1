"""The training methods as Flower's `Strategy`: what is the same, and what cannot be."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from privsyn_flower.config import AveragingConfig

logger = logging.getLogger("flwr")  # the log that Flower shows in every app


class SecureStrategy(Strategy):
    """A Flower strategy whose rounds are sums under secure aggregation.

    `start` and `summary` are Flower's interface. The four hooks of Flower's own loop raise
    NotImplementedError: they are handed the reply of every node by itself, and only the sum of all
    of them may be read.
    """

    config: AveragingConfig

    def summary(self) -> None:
        """Log the settings that differ from their defaults, as Flower's strategies do."""
        logger.info("\t├──> %s settings:", type(self).__name__)
        for name, value in self.settings().items():
            logger.info("\t│\t├── %s: %s", name, value)
        logger.info("\t└──> Aggregation: sums over nodes; no reply is read by itself")

    def settings(self) -> dict[str, Any]:
        """What `summary` logs: the bound of an update, the server's step, who adds the noise."""
        always = {"clip_norm", "server_optimizer", "server_learning_rate", "noise"}
        shown = always | self.config.model_dump(exclude_defaults=True).keys()
        return {name: value for name, value in self.config.model_dump().items() if name in shown}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("configure_train")

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("configure_evaluate")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("aggregate_evaluate")

    def _refuse(self, hook: str) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__}.{hook} is not supported: a single reply must not be aggregated "
            "outside of the secure sum. Call start(grid, ...), and wrap this strategy in no other "
            "(clipping and noise are its own)"
        )
