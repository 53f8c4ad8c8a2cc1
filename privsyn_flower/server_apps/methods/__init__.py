"""The recipe of a method: `RECIPE` in the file of its name, imported when it is first used.

A new file is found, and listed nowhere. Whoever needs to know something of a run's method asks its
recipe (`recipe.py` says what there is to ask).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from privsyn_flower.app.benchmark.names import MINORITY_PUBLIC, knows_minority
from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.server_apps.methods.recipe import Recipe


def recipe_named(name: str) -> type[Recipe[Any]]:
    """The recipe of the method of this name."""
    recipe: type[Recipe[Any]] = import_module(f"{__name__}.{name.replace('-', '_')}").RECIPE
    return recipe


def recipe_of(config: RunConfig) -> type[Recipe[Any]]:
    """The recipe of the configured method."""
    return recipe_named(config.method)


def check_controls(config: RunConfig) -> None:
    """Raises ConfigError for a name in `evaluation.controls` that the method has no control of, and
    for a benchmark of a method that has none."""
    known = [
        name
        for name in recipe_of(config).controls
        if name != MINORITY_PUBLIC or knows_minority(config)
    ]
    if config.benchmark and not recipe_of(config).is_compared():
        raise ConfigError(f"benchmark = true: method = {config.method!r} has none")
    for name in config.evaluation.controls_named:
        if name not in known:
            raise ConfigError(
                f"evaluation.controls = {config.evaluation.controls!r}: {name!r} is none of "
                f"{config.method}'s, which are {', '.join(known)}; name some of them, 'all', or "
                "nothing for none"
            )
