"""The table of methods: a name -> its recipe, imported when it is first asked for.

The only place that knows all names. Whoever needs to know something of a run's method asks the
recipe (`recipe.py` says what there is to ask).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privsyn_flower.config import ConfigError, RunConfig

if TYPE_CHECKING:
    from privsyn_flower.server_apps.methods.recipe import Recipe

FILES = {  # of this room; each has its recipe under the name RECIPE
    "pretext": "pretext",
    "pe": "pe",
    "popri": "popri",
    "dp-fedavg": "dp_fedavg",
    "dp-ftrl": "dp_ftrl",
    "ctcl": "ctcl",
    "evaluation": "evaluation",
    "public-only": "public_only",
    "expand-only": "expand_only",
    "expand-private": "expand_private",
    "dp-prompt": "dp_prompt",
}


def recipe_named(name: str) -> type[Recipe[Any]]:
    """The recipe of the method of this name."""
    found: type[Recipe[Any]] = import_module(f"{__name__}.{FILES[name]}").RECIPE
    return found


def recipe_of(config: RunConfig) -> type[Recipe[Any]]:
    """The recipe of the configured method."""
    return recipe_named(config.method)


def check_controls(config: RunConfig) -> None:
    """Raises ConfigError for a name in `evaluation.controls` that the method has no control of."""
    known = recipe_of(config).controls
    for name in config.evaluation.controls_named:
        if name not in known:
            raise ConfigError(
                f"evaluation.controls = {config.evaluation.controls!r}: {name!r} is none of "
                f"{config.method}'s, which are {', '.join(known)}; name some of them, 'all', or "
                "nothing for none"
            )
