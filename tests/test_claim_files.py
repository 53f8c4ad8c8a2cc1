"""The claim of a vote can be checked by reading a few files, and docs/verify.md lists them."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
MOST_WORDS = 1000


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts" / "claim_files.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_claim_is_read_in_few_files(script: ModuleType) -> None:
    files = script.claim_files()
    assert len(files) <= script.MOST_FILES == 20
    assert sum(map(script.lines_of, files)) <= script.MOST_LINES == 4500


def test_the_page_lists_them(script: ModuleType) -> None:
    page = script.PAGE.read_text("utf-8")
    assert page == script.page_with(script.section()), "run python scripts/claim_files.py --write"
    assert len(page.split()) <= MOST_WORDS


def test_what_is_left_out_is_there_and_would_be_found(script: ModuleType) -> None:
    imported = set().union(*(script.imported(module) for module in script.modules()))
    for module in script.LEFT_OUT:  # one that nothing imports needs no reason
        assert module in imported and script.path_of(module), module
    for module in script.NOT_FOLLOWED:
        assert any(name.startswith(module) for name in imported), module


def test_every_import_is_read_or_has_its_reason(script: ModuleType) -> None:
    read = script.modules()
    known = {*read, *script.LEFT_OUT, *script.PLAIN}
    for name in set().union(*(script.imported(module) for module in read)) - known:
        assert any(f"{name}.".startswith(f"{module}.") for module in script.NOT_FOLLOWED), name


def test_every_function_that_a_lemma_names_is_in_a_listed_file(script: ModuleType) -> None:
    listed = {
        path.relative_to(ROOT / script.PACKAGE).as_posix(): path for path in script.claim_files()
    }
    named = re.findall(r"`([\w/]+\.py)(?:::([\w.]+))?`", script.PAGE.read_text("utf-8"))
    named = [(path, name) for path, name in named if not path.startswith("tests/")]
    assert len(named) > 15
    for path, name in named:
        assert path in listed, path
        defined = rf"\b(def|class) {name.split('.')[-1]}\b"
        assert not name or re.search(defined, listed[path].read_text("utf-8")), (path, name)


def test_names_that_a_package_passes_on_are_followed(script: ModuleType) -> None:
    assert script.defined_in("privsyn_flower.privacy.ledger", "Ledger") == "privacy.ledger.ledger"
    assert script.defined_in("privsyn_flower.secagg", "keys") == "secagg.keys"
    assert "typing" not in {module.split(".")[0] for module in script.imported("privacy.release")}
    assert "privacy.ledger.ledger" not in script.imported("privacy.release")  # for types alone


def test_the_trusted_packages_import_these_alone() -> None:
    """They can be lifted out and read alone, with three small files that import nothing of ours."""
    libraries = {"numpy", "scipy", "cryptography", "dp_accounting"}
    own = {"privacy", "secagg", "queries", "common.arrays", "common.files", "common.on_demand"}
    package = ROOT / "privsyn_flower"
    paths = [
        path
        for folder in (package.joinpath(*name.split(".")) for name in own)
        for path in [folder.with_suffix(".py"), *folder.rglob("*.py")]
    ]
    for path in filter(Path.is_file, paths):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [str(node.module)]
            for name in names:
                first, *rest = name.split(".")
                known = first in libraries | sys.stdlib_module_names
                ours = first == package.name and {".".join(rest[:1]), ".".join(rest[:2])} & own
                assert known or ours, (path, name)
