"""The configuration: what differs from the defaults, and all of it on demand."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from privsyn_flower.app.report.html.markup import element, folded, joined, number, table
from privsyn_flower.app.report.html.parts import Part, paragraph, small
from privsyn_flower.app.report.places import HIDDEN, passed_on
from privsyn_flower.app.report.reading import RunFolder
from privsyn_flower.config import (
    ConfigError,
    RunConfig,
    Scalar,
    Section,
    flat_defaults,
    flatten,
    toml_value,
)
from privsyn_flower.terminal import without_places

LONGEST = 300  # characters of a value
REMARK = (
    "Of a path on the machine of the run, the last part alone is shown; where its files, servers "
    "and keys are, not at all."
)


def settings(run: RunFolder) -> Part:
    """Keys, values, defaults and what they mean."""
    title = "Configuration"
    try:
        stored = flatten(run.stored)
    except ConfigError as error:
        return Part(
            "settings", title, paragraph(without_places(f"config.toml cannot be shown: {error}"))
        )
    if not stored:
        return Part("settings", title, paragraph("The folder has no config.toml."))
    defaults, meanings = flat_defaults(), _meanings()
    different = differing(stored)
    rows = [
        [
            element("code", key),
            value_text(key, stored[key]),
            _default(key, defaults),
            meanings.get(key),
        ]
        for key in different
    ]
    body = [
        paragraph(f"{number(len(different))} of {number(len(stored))} keys differ from defaults."),
        table("Keys that differ from defaults", HEADINGS, rows, words=4, stacked=True),
    ]
    rest = [key for key in stored if key not in set(different)]
    same = [[element("code", key), value_text(key, stored[key])] for key in rest]
    listing = table("Keys at their defaults", ["key", "value"], same, words=2)
    body.append(folded(f"The other {number(len(same))} keys", listing))
    body.append(small(REMARK))
    return Part("settings", title, joined(body))


HEADINGS = ("key", "value", "default", "meaning")


def differing(stored: Mapping[str, Scalar]) -> list[str]:
    """The keys whose values are not the defaults, in their order."""
    defaults = flat_defaults()
    return [key for key, value in stored.items() if key not in defaults or value != defaults[key]]


def value_text(key: str, value: Scalar) -> str:
    """A key's value as TOML has it, without places and logins, for pages are passed on."""
    found = passed_on(key, value)
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
