"""What the tables of the configuration share: names outside and inside, flat keys, errors."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

SectionType = TypeVar("SectionType", bound="Section")
Scalar = bool | int | float | str


class ConfigError(ValueError):
    """A key or value of the run configuration is wrong; the text names it and its bound."""


@contextmanager
def config_errors(place: str = "") -> Iterator[None]:
    """A ValueError inside is a ConfigError: its text names the keys. place: before that text."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{place}{error}") from None


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


def checked(section: SectionType) -> SectionType:
    """The section again, with all checks: `model_copy` makes none. Raises ValueError."""
    return type(section).model_validate(section.model_dump(exclude_unset=True))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Nested tables -> dotted keys; a list or a date is refused with its key."""
    flat: dict[str, Scalar] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            flat[f"{prefix}{key}"] = value
        else:
            raise ConfigError(
                f"{prefix}{key} = {value!r}: only booleans, numbers and strings are allowed "
                "(write a list as one comma-separated string)"
            )
    return flat


def nested(flat: Mapping[str, Scalar], known: Collection[str]) -> dict[str, Any]:
    """Dotted keys -> tables. Raises ConfigError for one that is not known, with its neighbour."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        check_known(key, known)
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return tree


def check_known(key: str, known: Collection[str]) -> None:
    """Raises ConfigError for a key that is none of these, with its neighbour."""
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown configuration key {key!r}{hint}")


def split_list(text: str) -> list[str]:
    """A comma-separated value -> its non-empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]


def explain(error: ValidationError) -> str:
    """Every wrong key with its value and bound, on one line."""
    lines = []
    for item in error.errors():
        key = ".".join(str(part).replace("_", "-") for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        whole = isinstance(item["input"], Mapping | BaseModel)  # a rule across a table's keys
        lines.append(message if whole or not key else f"{key} = {item['input']!r}: {message}")
    return "; ".join(lines)
