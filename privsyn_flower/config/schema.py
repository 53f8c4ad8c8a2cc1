"""The run configuration: every key of every method, typed, bounded and explained.

Flower knows only flat keys with bool, number or string values, and only keys that the app
declares; so tables are flattened with dots (`pretext.population`), lists are comma-separated
strings, and `[tool.flwr.app.config]` in app/pyproject.toml is generated from these keys
(`scripts/update_app_config.py`) and compared with them in a test.

A method is whatever has an entry in `METHODS` of `strategies/NAME/config.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, create_model, model_validator

from privsyn_flower.common.files import default_cache
from privsyn_flower.config.checks import check_run
from privsyn_flower.config.common import KINDS, CommonConfig, MethodEntry
from privsyn_flower.config.section import Scalar


def _entries() -> Iterator[MethodEntry]:
    """Those of all folders, in no order. A new folder is found, and listed nowhere."""
    strategies = import_module(f"{__package__.rpartition('.')[0]}.strategies")
    for place in sorted(Path(strategies.__path__[0]).glob("*/config.py")):
        yield from import_module(f"{strategies.__name__}.{place.parent.name}.config").METHODS


METHODS = {entry.name: entry for entry in sorted(_entries(), key=lambda entry: entry.order)}


class _Checked(CommonConfig):
    """With the table of methods, and all that keys of different tables need of each other."""

    methods: ClassVar[dict[str, MethodEntry]] = METHODS

    @model_validator(mode="after")
    def _across_keys(self) -> Self:
        check_run(self)
        return self


def _described() -> str:
    named = {
        kind: ", ".join(name for name, entry in METHODS.items() if entry.kind == kind)
        for kind in KINDS
    }
    return "; ".join(f"{kind}: {names}" for kind, names in named.items() if names)


def _fields() -> dict[str, Any]:
    """`method`, and the tables of methods."""
    method = Field(next(iter(METHODS)), description=_described())
    owned = {entry.own.table: entry.own for entry in METHODS.values() if entry.own}
    tables = {name: (own, Field(default_factory=own)) for name, own in owned.items()}
    return {"method": (Literal[tuple(METHODS)], method), **tables}


if TYPE_CHECKING:
    RunConfig = CommonConfig
else:
    RunConfig = create_model(
        "RunConfig",
        __base__=_Checked,
        __module__=__name__,
        __doc__="The whole configuration; top-level keys hold for every method.",
        **_fields(),
    )


def cache_folder(config: CommonConfig) -> Path:
    """Where caches live: the configured folder or the user's cache folder."""
    return Path(config.cache).expanduser() if config.cache else default_cache()


def flat_defaults() -> dict[str, Scalar]:
    """Every known key with its default."""
    return RunConfig().flat()
