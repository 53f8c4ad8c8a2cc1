"""What a run's configuration and a node's policy share: a table, its error, what it says."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """A key or value of the run configuration is wrong; the text names it and its bound."""


class Section(BaseModel):
    """One table of the configuration; kebab-case outside, snake_case inside."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        populate_by_name=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
    )


def explain(error: ValidationError) -> str:
    """Every wrong key with its value and bound, on one line."""
    lines = []
    for item in error.errors():
        key = ".".join(str(part).replace("_", "-") for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        whole = isinstance(item["input"], Mapping | BaseModel)  # a rule across a table's keys
        lines.append(message if whole or not key else f"{key} = {item['input']!r}: {message}")
    return "; ".join(lines)
