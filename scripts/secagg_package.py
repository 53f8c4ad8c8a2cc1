"""Write the package privsyn-secagg: the secure sum alone, from the files of this repository.

    python scripts/secagg_package.py build/secagg && python -m build build/secagg

The folder gets `privsyn_flower/summation.py` and every module that it imports, inside functions
too, as the package `privsyn_secagg`, so that both can be installed side by side. Their text is the
same but for that name; the `__init__.py` of inner packages are left empty. Its README is
docs/secure-sum.md.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS, NAME, TOP = "privsyn_flower", "privsyn_secagg", "privsyn_flower.summation"
LIBRARIES = ("flwr", "numpy", "cryptography")
INIT = '''"""A secure sum of any vector, with device noise, over Flower messages."""

from importlib import import_module
from typing import Any

__version__ = "{version}"
_HOMES = {{"SecaggError": "secagg.cohort", "secure_sum": "summation", "secure_vector": "summation"}}
__all__ = ["SecaggError", "__version__", "secure_sum", "secure_vector"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    return getattr(import_module(f"{{__name__}}.{{_HOMES[name]}}"), name)
'''
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "privsyn-secagg"
version = "{version}"
description = "A secure sum of any vector, with device noise, over Flower messages."
readme = "README.md"
requires-python = "{python}"
license = "Apache-2.0"
authors = [{{ name = "The privsyn-flower authors" }}]
dependencies = {dependencies}

[tool.hatch.build]
packages = ["privsyn_secagg"]

[tool.hatch.build.targets.wheel]
core-metadata-version = "2.4"

[tool.hatch.build.targets.sdist]
core-metadata-version = "2.4"
"""


def module_file(module: str, root: Path = ROOT) -> Path:
    """Where a module's file would lie."""
    return root.joinpath(*module.split(".")).with_suffix(".py")


def imported(module: str) -> Iterator[str]:
    """Modules of ours that one imports, wherever in it."""
    for node in ast.walk(ast.parse(module_file(module).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{OURS}."):
            names = (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))
            yield from (name for name in names if module_file(name).is_file())


def closure(top: str = TOP) -> list[str]:
    """A module of ours and all that it needs."""
    modules, waiting = set[str](), [top]
    while waiting:
        if (module := waiting.pop()) not in modules:
            modules.add(module)
            waiting += imported(module)
    return sorted(modules)


def renamed(text: str) -> str:
    """For the other package."""
    return text.replace(OURS, NAME)


def write(folder: Path) -> None:
    """The package's folder, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for module in closure():
        path = module_file(renamed(module), folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(renamed(module_file(module).read_text("utf-8")), "utf-8")
        for inner in path.relative_to(folder).parents[:-1]:
            (folder / inner / "__init__.py").touch()
    (folder / NAME / "py.typed").touch()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    about = {"version": project["version"], "python": project["requires-python"]}
    needed = [row for row in project["dependencies"] if re.split(r"\W", row)[0] in LIBRARIES]
    (folder / NAME / "__init__.py").write_text(INIT.format(**about), "utf-8")
    (folder / "pyproject.toml").write_text(PROJECT.format(**about, dependencies=needed), "utf-8")
    shutil.copy(ROOT / "LICENSE", folder)
    page = (ROOT / "docs" / "secure-sum.md").read_text("utf-8")
    links_to_pages = re.compile(r"\[([^\]]+)\]\([^)#\s]+\.md[^)]*\)")
    (folder / "README.md").write_text(renamed(links_to_pages.sub(r"\1", page)), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
