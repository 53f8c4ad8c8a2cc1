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

import pytest

import privsyn_flower
from privsyn_flower.config import Section
from tests.test_docs import DOCS, ROOT, text_of

PUBLIC = [name for name in privsyn_flower.__all__ if name != "__version__"]


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
    ours = {name for name in found if name.startswith("privsyn_flower")}
    assert len(ours) <= 4, ours


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
