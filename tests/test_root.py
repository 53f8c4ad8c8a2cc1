"""The public API: what `privsyn_flower` exports, lazily, and what documentation imports of it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import privsyn_flower
from privsyn_flower.config import Section
from tests.rigs.docs import DOCS, ROOT, blocks, text_of

PUBLIC = [name for name in privsyn_flower.__all__ if name != "__version__"]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))

# Imports from deeper than one level below the root, and why a page shows them.
DEEPER = {
    "privsyn_flower.app.public.asking": "the application's own, for public text",
    "privsyn_flower.app.tracking": "the application's own, for trackers",
    "privsyn_flower.app.local.simulation": "a notebook simulates in its own process",
}


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stdout))


def test_importing_the_root_loads_nothing_heavy() -> None:
    found = loaded("import privsyn_flower")
    assert not found & {"torch", "flwr", "numpy", "pydantic", "scipy", "importlib.metadata"}
    # Not even a module of ours: two threads that import different parts would wait for each other.
    assert {name for name in found if name.startswith("privsyn_flower")} == {"privsyn_flower"}


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("PrEText", ("torch", "transformers", "dp_accounting", "scipy")),
        ("DPFedAvg", ("torch", "transformers", "dp_accounting", "scipy")),
        ("private_training", ("torch", "transformers", "dp_accounting", "scipy")),
        ("Query", ("torch", "transformers", "flwr.serverapp")),
        ("calibrate", ("torch", "flwr", "dp_accounting")),
        ("load_embedder", ("torch", "flwr", "transformers")),
    ],
)
def test_a_name_loads_what_it_needs(name: str, absent: tuple[str, ...]) -> None:
    assert not loaded(f"from privsyn_flower import {name}") & set(absent)


@pytest.mark.parametrize("name", privsyn_flower.__all__)
def test_every_public_name_is_there_once(name: str) -> None:
    assert getattr(privsyn_flower, name) == getattr(privsyn_flower, name)
    assert name in dir(privsyn_flower)


def test_what_a_start_raises_has_a_public_name() -> None:
    from privsyn_flower import strategies
    from privsyn_flower.strategies.engine import cohort, node_failures, rounds

    for module, name in (
        (cohort, "TooFewNodes"),
        (node_failures, "AllNodesFailed"),
        (rounds, "NoRelease"),
        (rounds, "NothingLearned"),
    ):
        own = getattr(module, name)
        assert getattr(privsyn_flower, name) is getattr(strategies, name) is own


def test_an_unknown_name_is_an_error_of_the_module() -> None:
    with pytest.raises(AttributeError, match="'privsyn_flower' has no attribute 'PreText'"):
        _ = privsyn_flower.PreText  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'PreText'"):
        exec("from privsyn_flower import PreText")


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(text_of(ROOT / "privsyn_flower" / "__init__.pyi"))
    stub = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name  # else it is private to the stub
                stub[alias.name] = str(node.module)
    assert sorted(stub) == sorted(PUBLIC)
    for name, module in stub.items():
        assert getattr(importlib.import_module(module), name) is getattr(privsyn_flower, name)


def test_the_page_of_the_api_has_every_public_name() -> None:
    page = text_of(DOCS / "api.md").partition("\n## Public\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.+) \|$", page, re.MULTILINE)
    named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(named) == sorted(PUBLIC)
    assert all(len(meaning) <= 160 for _, meaning in rows)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_docstring_says_arguments_and_errors(name: str) -> None:
    value = getattr(privsyn_flower, name)
    page = inspect.getdoc(value) or ""
    assert page.partition("\n")[0].endswith((".", ":", ",")) or "\n" in page
    if not inspect.isclass(value):
        assert re.search(r"\b[Rr]aise", page), f"{name} does not say what it raises"
        return
    if issubclass(value, Section | BaseException) or dataclasses.is_dataclass(value):
        return  # the keys of a section are explained in docs/configuration.md
    if "__init__" in value.__dict__:
        parameters = list(inspect.signature(value).parameters.values())
        named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        missing = [one for one in named if not re.search(rf"\b{one}\b", page)]
        assert not missing, f"{name} does not explain {missing}"
    for method, function in value.__dict__.items():
        if inspect.isfunction(function) and not method.startswith("_"):
            assert inspect.getdoc(function), f"{name}.{method} has no docstring"


def imports_of(code: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of the package that code imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("privsyn_flower"):
            yield str(node.module), [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((a.name, []) for a in node.names if a.name.startswith("privsyn_flower"))


def shown() -> Iterator[tuple[str, str]]:
    """(where, code) of all Python that a reader is shown: pages, examples, notebooks."""
    yield from blocks("python")
    for path in EXAMPLES:
        yield path.relative_to(ROOT).as_posix(), text_of(path)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(text_of(path))["cells"]
        for number, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                lines = [line for line in cell["source"] if line[0] not in "!%"]
                yield f"{path.name}:{number}", "".join(lines)


def test_documentation_imports_from_the_root_or_one_level_below() -> None:
    used = set()
    for where, code in shown():
        for module, names in imports_of(code):
            used.add(module)
            assert module.count(".") <= 1 or module in DEEPER, f"{where}: {module}"
            found = importlib.import_module(module)
            if module.count(".") == 1 and not module.startswith("privsyn_flower.app"):
                exported = {*found.__all__, "main"}  # client_apps.main: the shipped handlers
                assert set(names) <= exported, f"{where}: {module} exports no {names}"
                assert not set(names) & set(PUBLIC), f"{where}: {names} are in the root"
    assert used >= set(DEEPER) | {"privsyn_flower"}
