"""The configuration: of one run what differs from the defaults, and all of it on demand; of several
what differs between them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence

from privsyn_flower.app.report.html.markup import Context, Table
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
PLACES = {"run-folder", "cache", "assets", "ledger"}  # keys that differ for every run


def settings(run: RunFolder) -> Context:
    """What the section's macro takes: keys, values, defaults and what they mean."""
    try:
        stored = flatten(run.stored)
    except ConfigError as error:
        return {"problem": without_places(f"config.toml cannot be shown: {error}")}
    if not stored:
        return {"problem": "The folder has no config.toml."}
    defaults, meanings = flat_defaults(), _meanings()
    different = [key for key in stored if key not in defaults or stored[key] != defaults[key]]
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


def settings_compared(named: Sequence[tuple[str, RunFolder]]) -> Context:
    """The keys in which the runs differ."""
    known = [(name, values) for name, run in named if (values := _flat(run))]
    keys = list(dict.fromkeys(key for _, values in known for key in values))
    different = [
        key
        for key in keys
        if key not in PLACES and len({json.dumps(values.get(key)) for _, values in known}) > 1
    ]
    rows = [
        [key, *(value_text(key, values[key]) if key in values else "-" for _, values in known)]
        for key in different
    ]
    headings = ["key", *(name for name, _ in known)]
    listing = Table("Values by run", headings, rows, words=len(headings), stacked=True, code=True)
    return {"known": len(known), "different": listing, "agree": len(keys) - len(different)}


def _flat(run: RunFolder) -> dict[str, Scalar]:
    """With the defaults of keys that are newer than the run; {} without a configuration."""
    try:
        return {**flat_defaults(), **flatten(run.stored)} if run.stored else {}
    except ConfigError:
        return {}


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
