"""Public names of a package that are imported when first asked for (PEP 562).

A device starts a fresh process for every message: what an answer does not use, it must not load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_of(homes: Mapping[str, str], *more: str) -> list[str]:
    """The `__all__` of a package with these public names, and those that it imports at once."""
    return sorted([*" ".join(homes.values()).split(), *more])


def on_demand(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`. homes: module in it -> the public names that it has.

    No name may be a module's of the package too: who imports that module first would get it.
    """
    modules = {name: home for home, names in homes.items() for name in names.split()}

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # from now on without this function
        return value

    return attribute
