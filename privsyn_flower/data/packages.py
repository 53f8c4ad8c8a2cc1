"""Docstrings of packages as groups: the source "docstrings", and the general public text of others.

A module is a group, its docstrings' pieces the samples, labelled by package.
"""

from __future__ import annotations

from collections.abc import Sequence

from privsyn_flower.common.files import DataError
from privsyn_flower.common.python_path import canonical
from privsyn_flower.config import DataConfig, split_list

from .chunks import chunk
from .docstrings import Module, find_package, scan_packages
from .groups import Group, Reading, Source
from .users import Sample


def load_docstrings(config: DataConfig, reading: Reading) -> Source:
    """Modules of the private packages, and of the public ones."""
    private, public, minority = package_lists(config)
    # The minority comes first: text it shares with a general package stays with the minority,
    # so that the general text really does not hold it.
    open_text = package_groups(minority, config, reading, minority=True)
    open_text += package_groups(public, config, reading)
    return Source(package_groups(private, config, reading), open_text, docstring_identity(config))


def docstring_identity(config: DataConfig) -> dict[str, str]:
    """Package and version -> content address, for all three lists."""
    private, public, minority = package_lists(config)
    return package_identity([*private, *public, *minority])


def package_identity(names: Sequence[str]) -> dict[str, str]:
    """Package and version -> content address."""
    return {f"{p.name} {p.version}": p.key for p in map(find_package, names)}


def package_groups(
    names: Sequence[str], config: DataConfig, reading: Reading, *, minority: bool = False
) -> list[Group]:
    """The modules of installed packages that have any sample."""
    modules = scan_packages(names, reading.cache, progress=reading.progress)
    found = (_module_group(module, config.sample_words, minority) for module in modules)
    return [group for group in found if group.samples]


def package_lists(config: DataConfig) -> tuple[list[str], list[str], list[str]]:
    """Private, general public and minority packages; DataError when one is on two sides."""
    sides = {
        "private-packages": split_list(config.private_packages),
        "public-packages": split_list(config.public_packages),
        "minority-packages": split_list(config.minority_packages),
    }
    seen: dict[str, str] = {}
    for key, names in sides.items():
        for name in names:
            other = seen.setdefault(canonical(name), key)
            if other != key:
                raise DataError(f"package {name!r} is in data.{other} and data.{key}: keep one")
    for key in ("private-packages", "public-packages"):
        if not sides[key]:
            raise DataError(f"data.{key} is empty: name at least one installed package")
    private, public, minority = (list(dict.fromkeys(names)) for names in sides.values())
    return private, public, minority


def _module_group(module: Module, words: int, minority: bool) -> Group:
    texts = (text for docstring in module.docstrings for text in chunk(docstring, words))
    return Group(module.name, tuple(Sample(t, label=module.package) for t in texts), minority)
