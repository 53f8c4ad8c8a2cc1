"""What a run must be told of its result before anybody is asked."""

from __future__ import annotations

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.readiness import used_models
from privsyn_flower.text.models.packaged import INSTALL, SMOLLM2
from privsyn_flower.text.tiny.assets import embedded

WRITER = SMOLLM2.name  # a generator that can write English
WRITER_MODULES = (SMOLLM2.module, "gguf")  # its weights, and what reads them


def notes(config: RunConfig) -> list[str]:
    """For plan, terminal and report, a line each: the text will be no text like the users'.

    The models that come with the package have read docstrings, which only the demos learn.
    """
    found = []
    if config.data.canaries:
        found.append(
            f"{config.data.canaries:,} of the {config.data.users:,} users are made up for an audit "
            "(data.canaries), and half of them are empty: the result is for `privsyn inspect`, not "
            "for use"
        )
    if config.data.source == "docstrings":
        return found
    used = used_models(config)
    kinds = [kind for kind in ("generator", "conditional") if embedded(kind, used.get(kind, ""))]
    found += [
        f"models.{kind} = {used[kind]!r} is a very small model of English docstrings: it writes "
        f"fragments like them, and no text like your users'. {_way_out(kind)}"
        for kind in kinds
    ]
    if config.seeds_alone and not config.expand.samples:
        found.append(
            "expand.samples = 0: the result is the seeds, texts that the votes pick among the "
            f"candidates (seeds.jsonl), because models.generator = {config.models.generator!r} "
            f"would write fragments of English docstrings. {_way_out('generator')}"
        )
    return found


def _way_out(kind: str) -> str:
    own = f"{INSTALL} and set models.generator = '{WRITER}' (English), or "
    return f"To have real text: {own * (kind == 'generator')}name the folder of any causal model"
