"""What of a configuration a tracker may be told: by a key's type, never by its value."""

from __future__ import annotations

from typing import Literal, get_origin

from privsyn_flower.app.tracking.public import Value
from privsyn_flower.config import RunConfig, Section
from privsyn_flower.config.schema import METHODS

TABLES = frozenset(
    name for entry in METHODS.values() for name in entry.tables
)  # of some methods alone


def public_settings(config: RunConfig) -> dict[str, Value]:
    """Key -> value of the numbers, switches and choices, in the tables that the method uses.

    A key whose value is any text (a path, a prompt, a model, a list) is left out.
    """
    found = _plain(config, "")
    for name in type(config).model_fields:
        table = getattr(config, name)
        if isinstance(table, Section) and (name not in TABLES or config.uses(name)):
            found |= _plain(table, f"{name.replace('_', '-')}.")
    return found


def _plain(table: Section, prefix: str) -> dict[str, Value]:
    plain = {}
    for name, field in type(table).model_fields.items():
        chosen = get_origin(field.annotation) is Literal and getattr(table, name) != ""
        if chosen or field.annotation in (bool, int, float):
            plain[prefix + name.replace("_", "-")] = getattr(table, name)
    return plain
