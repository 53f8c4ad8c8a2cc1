"""The minority of the public text alone, which is like the users': what a text's domain is worth
without anybody's answers (Public text alone, PrE-Text, App. D.2 (1), has all of the pool)."""

from __future__ import annotations

from collections.abc import Iterator

from privsyn_flower.app.benchmark.names import knows_minority
from privsyn_flower.config import RunConfig
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods.public_only import PublicOnlyRecipe
from privsyn_flower.server_apps.public_text import candidates


class MinorityOnlyRecipe(PublicOnlyRecipe):
    """Epsilon 0: `public-only` without the pool's general text."""

    @classmethod
    def faults(cls, config: RunConfig) -> Iterator[str]:
        yield from super().faults(config)
        data = config.data
        if not knows_minority(config):
            yield (
                "method = 'minority-only': no public text is known to be like the users' "
                f"(data.source = {data.source!r}, data.minority-share = {data.minority_share:g}, "
                f"evaluation.task = {config.evaluation.task!r}): name a source with a minority, "
                "a share above 0 and 'next-token', or method = 'public-only'"
            )

    @classmethod
    def texts(cls, config: RunConfig) -> int:
        return round(config.data.public_pool * config.data.minority_share)

    def strategy(self, folder: RunFolder) -> list[str]:
        return candidates(self.run.federation().public_minority(), self.config)


RECIPE = MinorityOnlyRecipe
