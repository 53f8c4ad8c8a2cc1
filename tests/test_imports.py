"""No file of the package imports itself by way of others: imports inside functions and those that
only a type checker reads are included."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import privsyn_flower

Graph = dict[str, set[str]]


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, module: str) -> set[str]:
    """What a file's import statements name, wherever they stand, as absolute dotted names."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else []), *([node.module] if node.module else [])]
            found |= {".".join([*parts, name.name]) for name in node.names}
    return found


def opened(path: Path) -> set[str]:
    """Which of a federation's methods that open private or held-out text a file calls."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    named = {function.attr for function in called if isinstance(function, ast.Attribute)}
    return named & {"shard", "held_out"}


def graph_of(root: Path) -> Graph:
    """module -> the modules of the package that it imports; a name counts for its module."""
    paths = {module_name(path, root): path for path in root.rglob("*.py")}
    graph: Graph = {module: set() for module in paths}
    for module, path in paths.items():
        for name in imported(path, module):
            while name and name not in paths:
                name = name.rpartition(".")[0]
            graph[module] |= {name} - {"", module}
    return graph


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = graph_of(Path(privsyn_flower.__file__).parent)
    assert sum(map(len, graph.values())) > len(graph) > 100
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    "late",
    ["import house.first", "from .first import thing", "if TYPE_CHECKING: import house.first"],
)
def test_the_check_above_can_fail(tmp_path: Path, late: str) -> None:
    root = tmp_path / "house"
    (root / "room").mkdir(parents=True)
    (root / "__init__.py").touch()
    (root / "room" / "__init__.py").write_text("from ..second import other\n")
    (root / "first.py").write_text("from house import room\nfrom . import room as again\n")
    (root / "second.py").write_text(f"def other():\n    {late}\n")
    with pytest.raises(CycleError) as found:
        TopologicalSorter(graph_of(root)).prepare()
    assert set(found.value.args[1]) == {"house.first", "house.second", "house.room"}


def test_private_and_held_out_text_is_opened_in_these_files_alone() -> None:
    """Rule 4: on nodes, in simulation by the benchmark, and for its owner by an inspection."""
    root = Path(privsyn_flower.__file__).parent
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if opened(path)}
    assert found == {
        "app/benchmark/benchmark.py",
        "app/benchmark/fine_tunings.py",
        "app/benchmark/private.py",
        "app/inspect/texts.py",
        "client_apps/node/simulated.py",
    }


TRUSTED = ("privacy", "secagg", "queries")
HELPERS = {
    "common.arrays",
    "common.files",
    "common.on_demand",
}  # of our own, small and without others of ours
LIBRARIES = {"numpy", "scipy", "cryptography", "dp_accounting"}


def test_the_trusted_packages_import_little() -> None:
    """Whoever checks a claim reads these alone, and trusts these libraries."""
    root = Path(privsyn_flower.__file__).parent
    own = {f"privsyn_flower.{name}" for name in (*TRUSTED, *HELPERS)}
    files = [path for name in TRUSTED for path in (root / name).rglob("*.py")]
    for path in [*files, *(root.joinpath(*name.split(".")).with_suffix(".py") for name in HELPERS)]:
        for name in imported(path, module_name(path, root)):
            top, _, rest = name.partition(".")
            ours = top == "privsyn_flower" and rest
            known = any(f"{name}.".startswith(f"{one}.") for one in own) if ours else True
            library = top in LIBRARIES or top in sys.stdlib_module_names
            assert known and (top == "privsyn_flower" or library), f"{path} imports {name}"


@pytest.mark.parametrize(
    ("name", "most"),
    [("PrEText", 90), ("POPri", 90), ("DPFedAvg", 95), ("DPFTRL", 105), ("CTCL", 125)],
)
def test_a_strategy_loads_few_of_our_modules(name: str, most: int) -> None:
    """In a notebook or a foreign ServerApp. A voting device: tests/client_apps/test_main.py."""
    code = (
        f"import sys; from privsyn_flower.strategies import {name}\n"
        "found = [one for one in sys.modules if one.startswith('privsyn_flower')]\n"
        "assert not [one for one in found if one.startswith('privsyn_flower.app')]\n"
        "print(len(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= most
