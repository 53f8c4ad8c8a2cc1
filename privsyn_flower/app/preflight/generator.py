"""The generator of a run on somebody's own text that names none: one that can write, where its
package is installed and the public text is English."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from privsyn_flower.common.files import DataError
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.config.section import Scalar
from privsyn_flower.config.toml import read_flat
from privsyn_flower.server_apps.own_text import WRITER, WRITER_MODULES
from privsyn_flower.server_apps.readiness import missing, used_models
from privsyn_flower.strategies.baselines.config import DPPromptConfig
from privsyn_flower.text.spelling import MOST_TOKENS, spelling
from privsyn_flower.text.tiny.assets import shipped_model

from .data import public_preview

KEY = "models.generator"
ENGLISH = "small-generator"  # has read English alone: what its tokenizer knows is English


def default_generator(
    path: Path | None, overrides: Mapping[str, Scalar]
) -> tuple[dict[str, Scalar], str]:
    """What to set beside a configuration file and its overrides, and a line that says why; nothing
    and "" where a generator is named, or there is no choice. Only public text is read."""
    if KEY in {**read_flat(path), **overrides} or missing(*WRITER_MODULES):
        return {}, ""
    config = load_config(path, {**overrides, KEY: WRITER})
    if not _writes_here(config):
        return {}, ""
    try:
        seen = public_preview(config)
    except (DataError, OSError):  # the checks of the run say it
        return {}, ""
    found = spelling(shipped_model(ENGLISH), seen.texts) if seen else None
    stays = f"{KEY} stays {RunConfig().models.generator!r}: {WRITER!r} writes English, and"
    if found is None:
        return {}, f"{stays} the language of data.public-path cannot be told here"
    told = f"{found.tokens_per_word:.1f} tokens a word, of English at most {MOST_TOKENS:g}"
    if found.foreign:
        return {}, f"{stays} data.public-path is not ({told})"
    return {KEY: WRITER}, f"{KEY} = {WRITER!r}: it is here, and data.public-path English ({told})"


def _writes_here(config: RunConfig) -> bool:
    """Whether a causal model in this process would write for users who are not the demos'."""
    own, here = config.data.source == "files", config.generation.backend == "huggingface"
    return own and here and "generator" in used_models(config) and not config.owns(DPPromptConfig)
