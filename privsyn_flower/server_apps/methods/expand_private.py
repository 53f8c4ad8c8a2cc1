"""Expand-private (PrE-Text, section 4 (2), App. D.2 (2)): Expand on the private text itself.

NO PRIVACY: an upper bound for comparison, in a simulation with `benchmark = true`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from privsyn_flower.app.benchmark.private import private_texts
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy.baseline import NoPrivacy
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.expand_only import ExpandOnlyRecipe
from privsyn_flower.server_apps.public_text import candidates
from privsyn_flower.text.serving.http_client import is_loopback

logger = logging.getLogger("privsyn_flower")


class ExpandPrivateRecipe(ExpandOnlyRecipe):
    """Epsilon infinite: each prompt shows random texts of the users."""

    @classmethod
    def baseline(cls, config: RunConfig, **facts: Any) -> NoPrivacy:
        return NoPrivacy(**facts)

    @classmethod
    def first_texts(cls, config: RunConfig) -> tuple[str, int]:
        """No public ones."""
        return "", 0

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        yield from super().faults(config)
        if not config.benchmark:
            yield (
                "method = 'expand-private' shows private text to the generator, without privacy: "
                "for comparison in a simulation only, with benchmark = true"
            )
        if config.expand.releases_seeds:
            yield (
                f"expand.include-seeds = {str(config.expand.include_seeds).lower()} and "
                f"expand.samples = {config.expand.samples}: with method = 'expand-private' the "
                "seeds are the private texts, and the result must not be these: set them to false "
                "and above 0"
            )
        where = config.generation
        if where.backend != "huggingface" and not all(map(is_loopback, where.addresses)):
            yield (
                f"generation.base-url = {where.base_url!r}: with method = 'expand-private' prompts "
                "hold the users' own texts, which must not leave this machine: name a server on "
                "it, as http://127.0.0.1:8000/v1, or set generation.backend = 'huggingface'"
            )

    def strategy(self, folder: RunFolder) -> list[str]:
        """The users' texts, distinct, cut to `data.sample-words` as other methods' seeds. PRIVATE.

        Raises ConfigError as `faults` tells.
        """
        for fault in self.faults(self.config):
            raise ConfigError(fault)
        logger.warning("NO PRIVACY: the generator is shown the users' own texts, epsilon infinite")
        users = private_texts(self.config, self.run.federation())
        return candidates([text for own in users.values() for text in own], self.config)


RECIPE = ExpandPrivateRecipe
