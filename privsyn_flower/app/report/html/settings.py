"""The configuration: what differs from the defaults, and all of it on demand."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from privsyn_flower.app.report.html.markup import Table
from privsyn_flower.app.report.html.parts import Context
from privsyn_flower.app.report.places import HIDDEN, shareable
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.common.terminal import without_places
from privsyn_flower.config import (
    ConfigError,
    RunConfig,
    Scalar,
    Section,
    flat_defaults,
    flatten,
    toml_value,
)

LONGEST = 300  # characters of a value
HEADINGS = ("key", "value", "default", "meaning")


def settings(run: RunFolder) -> Context:
    """Keys, values, defaults and what they mean."""
    try:
        stored = flatten(run.stored)
    except ConfigError as error:
        return {"problem": without_places(f"config.toml cannot be shown: {error}")}
    if not stored:
        return {"problem": "The folder has no config.toml."}
    defaults, meanings = flat_defaults(), _meanings()
    different = differing(stored)
    rows = [
        [key, value_text(key, stored[key]), _default(key, defaults), meanings.get(key)]
        for key in different
    ]
    same = [[key, value_text(key, stored[key])] for key in stored if key not in set(different)]
    title = "Keys that differ from defaults"
    return {
        "count": len(stored),
        "different": Table(title, HEADINGS, rows, words=4, stacked=True, code=True),
        "same": Table("Keys at their defaults", ["key", "value"], same, words=2, code=True),
    }


def differing(stored: Mapping[str, Scalar]) -> list[str]:
    """The keys whose values are not the defaults, in their order."""
    defaults = flat_defaults()
    return [key for key, value in stored.items() if key not in defaults or value != defaults[key]]


def value_text(key: str, value: Scalar) -> str:
    """A key's value as TOML has it, without places and logins, for pages are passed on."""
    found = shareable(key, value)
    if found == HIDDEN:
        return HIDDEN
    # Of what it shortened, TOML would write the ellipsis as an escape.
    text = toml_value(value) if found == value else f'"{found}"'
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} \u2026"


def _default(key: str, defaults: Mapping[str, Scalar]) -> str:
    return toml_value(defaults[key]) if key in defaults else "(no key of this version)"


@functools.cache
def _meanings() -> Mapping[str, str]:
    """Key -> what it is for."""
    found = {}
    for name, field in RunConfig.model_fields.items():
        key, kind = name.replace("_", "-"), field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for own, inner in kind.model_fields.items():
                found[f"{key}.{own.replace('_', '-')}"] = inner.description or ""
        else:
            found[key] = field.description or ""
    return found
