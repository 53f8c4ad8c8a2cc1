"""A grid file of `privsyn compare`: methods x axes x seeds, checked like any configuration.

    title = "..."
    seeds = [0, 1, 2]
    against = "dp-fedavg"           # what differences are taken to; empty: the first method

    [set]                           # for every run: keys as in a configuration
    benchmark = true

    [axes]
    epsilon = [1.29, 7.58]          # a key and its values
    users = [                       # or a name, and what each value sets
      { name = "250", set = { "data.users" = 250 } },
      { name = "1000", set = { "data.users" = 1000 } },
    ]

    [[methods]]
    name = "pretext"
    config = "docstrings-demo.toml"  # beside the grid file

A later layer wins: configuration, [set], the method's `set`, the axes in their order, `at`, seed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from privsyn_flower.config.schema import flat_defaults
from privsyn_flower.config.section import (
    ConfigError,
    Scalar,
    Section,
    check_known,
    explain,
    flatten,
)
from privsyn_flower.config.toml import read_toml

Settings = dict[str, Scalar]
Reference = Literal[
    "pretrained", "majority", "start", "random_public", "minority_public", "private"
]
Point = dict[str, str]  # axis -> the name of its value
NAME = re.compile(r"[\w.+-]+")  # of methods, axes and values: they are in the names of files
OWN = ("seed", "run-folder")  # keys that the command sets itself


def _checked(settings: object) -> Settings:
    """Nested or dotted keys -> dotted ones. Raises ValueError for one that is unknown."""
    if not isinstance(settings, Mapping):
        raise ValueError("expected a table of configuration keys")
    flat = flatten(settings)
    for key, value in flat.items():
        if key in OWN:
            raise ValueError(f"{key} = {value!r}: leave it out, the command sets it for every run")
        check_known(key, flat_defaults())
    return flat


class _Named(Section):
    name: str = Field(description="letters, digits and . _ + -")

    @field_validator("name")
    @classmethod
    def _fit_for_files(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("a name has letters, digits, '.', '_', '+' and '-' only")
        return name


class _Setting(Section):
    set: dict[str, Scalar] = Field(default_factory=dict, description="keys and their values")

    @field_validator("set", mode="before")
    @classmethod
    def _known_keys(cls, value: object) -> Settings:
        return _checked(value)


class AxisValue(_Named, _Setting):
    """One value of an axis."""


class Special(_Setting):
    """What one method needs at some points: `where` axis -> value name, and what is set there."""

    where: dict[str, str] = Field(description="axis -> name of its value")


class GridMethod(_Named, _Setting):
    """One method of a grid: a configuration, and what its tables show."""

    label: str = Field("", description="in tables; empty: the name")
    config: str = Field(description="TOML file of a run, beside the grid file")
    seeds: list[int] = Field(default_factory=list, description="instead of the grid's")
    only: dict[str, list[str]] = Field(
        default_factory=dict, description="axis -> the values that this method is run at"
    )
    at: list[Special] = Field(default_factory=list, description="settings at some points")
    needs: Literal["", "gpu"] = Field("", description="what a machine has to have to run it")
    references: list[Reference] = Field(
        default_factory=list, description="of its benchmark: rows of their own in the tables"
    )
    rows: dict[str, str] = Field(
        default_factory=dict, description="its own table: name in the benchmark -> text"
    )
    differences: dict[str, str] = Field(
        default_factory=dict, description="its own table: what the result is compared with -> text"
    )

    @property
    def title(self) -> str:
        """What tables call it."""
        return self.label or self.name


class GridConfig(_Setting):
    """A whole grid."""

    title: str = Field("", description="over the tables")
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1)
    against: str = Field("", description="method that the others are subtracted from; the first")
    archive: str = Field("", description="folder for summaries that stay, beside the grid file")
    axes: dict[str, list[AxisValue]] = Field(default_factory=dict)
    methods: list[GridMethod] = Field(default_factory=list)

    @field_validator("axes", mode="before")
    @classmethod
    def _values(cls, axes: object) -> dict[str, list[Any]]:
        if not isinstance(axes, Mapping):
            raise ValueError("expected a table: a key, or a name, and a list of values")
        return {name: _axis(name, values) for name, values in _lists(axes)}

    @model_validator(mode="after")
    def _across(self) -> Self:
        _distinct("methods", [method.name for method in self.methods])
        _distinct("seeds", self.seeds)
        for axis, values in self.axes.items():
            _distinct(f"axes.{axis}", [value.name for value in values])
        for method in self.methods:
            _distinct(f"methods.{method.name}.seeds", method.seeds)
            for axis, names in method.only.items():
                for name in names:
                    self._known(f"methods.{method.name}.only", axis, name)
            for exception in method.at:
                for axis, name in exception.where.items():
                    self._known(f"methods.{method.name}.at.where", axis, name)
        names = [method.name for method in self.methods]
        if self.against and names and self.against not in names:
            raise ValueError(f"against = {self.against!r} is none of the methods {names}")
        return self

    def _known(self, key: str, axis: str, value: str) -> None:
        names = [one.name for one in self.axes.get(axis, [])]
        if value not in names:
            raise ValueError(
                f"{key}: {axis} = {value!r} is no value of an axis; axes has "
                f"{axis} = {names}" if names else f"{key}: there is no axis {axis!r}"
            )  # fmt: skip

    def points(self, method: GridMethod) -> Iterator[Point]:
        """Every combination of the values that the method is run at; the last axis is fastest."""
        choices = [
            [value.name for value in values if value.name in method.only.get(axis, [value.name])]
            for axis, values in self.axes.items()
        ]
        for names in itertools.product(*choices):
            yield dict(zip(self.axes, names, strict=True))

    def settings(self, method: GridMethod, point: Point, given: Settings) -> Settings:
        """The overrides of one point. given: `--set`, over the file's own and under the axes."""
        found: Settings = {**self.set, **method.set, **given}
        for axis, name in point.items():
            found |= next(value.set for value in self.axes[axis] if value.name == name)
        for exception in method.at:
            if exception.where.items() <= point.items():
                found |= exception.set
        return found

    def varying_keys(self) -> frozenset[str]:
        """Keys that differ between the points."""
        of_axes = {key for values in self.axes.values() for value in values for key in value.set}
        return frozenset(of_axes | {k for m in self.methods for own in m.at for k in own.set})


def _lists(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of the lists in nested tables."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _lists(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _axis(name: str, values: object) -> list[Any]:
    """One axis: tables with names, or plain values of the key that it is called by."""
    if not NAME.fullmatch(name):
        raise ValueError(f"axis {name!r}: a name has letters, digits, '.', '_', '+' and '-' only")
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} = {values!r} in a grid: expected a list of values")
    if all(isinstance(value, Mapping) for value in values):
        return values
    return [{"name": _named(value), "set": {name: value}} for value in values]


def _named(value: object) -> str:
    """A value as a name: 7.58, true, or a text with other characters taken out."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return "-".join(NAME.findall(text)) or "empty"


def _distinct(key: str, names: Sequence[object]) -> None:
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{key}: {', '.join(twice)} stands there twice")


def load_grid(path: Path, configs: Sequence[Path] = ()) -> GridConfig:
    """A grid file; configs: run with it instead of its own methods, each named by its file.

    Raises ConfigError that names file, key and value.
    """
    tree = read_toml(path)
    if configs:
        tree["methods"] = [{"name": one.stem, "config": str(one.absolute())} for one in configs]
        tree.pop("against", None)
    try:
        grid = GridConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}") from None
    if not grid.methods:
        raise ConfigError(f"{path} names no [[methods]]: add some, or give --config FILE.toml")
    return grid
