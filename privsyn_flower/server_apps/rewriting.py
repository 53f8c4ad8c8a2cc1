"""More text of what a run released, by other settings: opens no private text and sends no query."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from privsyn_flower.common.progress import Progress
from privsyn_flower.config import ConfigError, RunConfig, absolute_paths, cache_folder
from privsyn_flower.config.changes import changeable, entry_of
from privsyn_flower.config.section import Scalar
from privsyn_flower.data.federation import prepared_key
from privsyn_flower.runs import RunFolder
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.methods.synthesis import Writing, state_of
from privsyn_flower.server_apps.models import Models
from privsyn_flower.server_apps.public_text import PublicText, is_deployment, public_text
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.text.prompts import LabelledText, TooFewTextsError
from privsyn_flower.text.tiny.assets import embedded

PURPOSE = "generate"  # of the randomness


def with_settings(config: RunConfig, folder: Path, settings: Mapping[str, Scalar]) -> RunConfig:
    """A run's configuration with others for its text. Raises ConfigError for keys by which it was
    asked."""
    held = recipe_of(config).asks_with(config, released=True)
    for key in settings:
        if not changeable(key) or entry_of(key, held):
            raise ConfigError(
                f"--set {key}: the run was asked by it; only keys of what is made of its releases "
                "may differ (generation, expand, models.generator and others, docs/runs.md)"
            )
    return absolute_paths(RunConfig.from_flat({**config.flat(), **settings}), folder)


def rewrite(
    config: RunConfig, released: Path, *, samples: int, seed: int, progress: Progress
) -> tuple[list[LabelledText], str]:
    """At most `samples` texts, and why there are fewer ("" when there are not).

    Raises ConfigError for a method that has nothing to write of, and where it needs public text
    that is here no more.
    """
    state_of(RunFolder(released))  # there is something
    flat = {"expand.samples": samples, "expand.include-seeds": False, "seed": seed}
    config = RunConfig.from_flat({**config.flat(), **flat})
    with _recipe(config, progress) as recipe:
        try:
            return recipe.rewritten(RunFolder(released), PURPOSE), ""
        except TooFewTextsError as error:
            return error.texts, str(error)


@contextmanager
def _recipe(config: RunConfig, progress: Progress) -> Iterator[Writing[Any]]:
    """The method over a folder that is gone afterwards: nothing of the run is changed."""
    public = _public(config, progress)
    with tempfile.TemporaryDirectory(prefix="privsyn-") as name:
        folder = RunFolder(Path(name))
        retrieves = recipe_of(config).retrieves(config)
        models = Models(config, public, folder, progress, retrieves=retrieves)
        run = SimpleNamespace(config=config, folder=folder, progress=progress)
        try:
            yield cast(Any, recipe_of(config))(run, models)
        finally:
            models.close()


def _public(config: RunConfig, progress: Progress) -> PublicText:
    """Public text, where the method or a tiny generator needs any: a simulation's only from its
    cache, since it would be made anew beside the users' text."""
    tiny = embedded("generator", config.models.generator) is not None
    if not tiny and not config.owns(PopriConfig):
        return PublicText([], None)
    if not is_deployment(config):
        folder = cache_folder(config) / "data" / prepared_key(config.data)[:24]
        if not folder.is_dir():
            raise ConfigError(
                f"{folder} is gone, where the run's public text was, and to make it again would "
                "read the users' text: `privsyn run --resume` does that, or name a "
                "models.generator that is not tiny"
            )
    return public_text(config, progress)
