"""Docstrings: what is read, what is dropped, and that the number of processes does not matter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from privsyn_flower.data import DataError, docstrings
from privsyn_flower.data.docstring_worker import clean, docstrings_of, scan_files
from privsyn_flower.data.docstrings import find_package, scan_packages, scan_parallel

SOURCE = b'''# -*- coding: latin-1 -*-
"""Module text, na\xefve."""

import does_not_exist_and_is_never_imported

class Thing:
    "Class text."

    async def run(self):
        """Method text."""
        if True:
            def inner():
                """Inner text."""

def last():
    x = """no docstring"""
'''


def test_docstrings_in_source_order_with_the_declared_encoding() -> None:
    found = docstrings_of(SOURCE)
    assert found == ["Module text, naïve.", "Class text.", "Method text.", "Inner text."]


def test_clean_keeps_prose_and_drops_code_and_tables() -> None:
    text = """Compute a sum.

    Parameters
    ----------
    x : array_like
        The   numbers
        to add.

    .. note:: Not in place.

    .. code-block:: python

        total = dropped(x)

    Written as follows::

        dropped_too(x)

    +------+------+
    | a    | b    |
    +------+------+
    ```python
    fenced = dropped
    ```
    >>> add([1, 2])
    3

    Examples end. \ud83d
    """
    assert clean(text) == (
        "Compute a sum. Parameters x : array_like The numbers to add. Not in place. "
        "Written as follows: Examples end. ?"
    )


def test_files_that_are_no_python_are_none(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text('"""Good."""')
    (tmp_path / "template.py").write_text("{% if x %}")
    (tmp_path / "zero.py").write_bytes(b"\0")
    names = ["template.py", "good.py", "zero.py", "absent.py"]
    results = scan_files([str(tmp_path / name) for name in names])
    assert results == [None, ["Good."], None, None]


def test_parallel_equals_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstrings, "BATCH", 5)
    paths = [path for _, path in find_package("numpy").files[:40]]
    serial = scan_parallel(paths, 1)
    assert scan_parallel(paths, 3) == serial
    assert any(serial)


def test_a_worker_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "worker.py"
    broken.write_text("raise SystemExit('no luck')")
    monkeypatch.setattr(docstrings, "BATCH", 1)
    monkeypatch.setattr(docstrings.docstring_worker, "__file__", str(broken))
    with pytest.raises(RuntimeError, match="no luck"):
        scan_parallel([broken, broken], 2)


def test_works_without_a_main_guard_and_in_a_daemonic_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "from pathlib import Path\n"
        "from privsyn_flower.data import docstrings\n"
        "docstrings.BATCH = 5\n"
        "def work():\n"
        "    files = [path for _, path in docstrings.find_package('click').files]\n"
        "    assert any(docstrings.scan_parallel(files, 2))\n"
        "work()\n"
        "process = multiprocessing.get_context('fork').Process(target=work, daemon=True)\n"
        "process.start(); process.join(); sys.exit(process.exitcode)\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)


def test_scanned_once_and_the_same_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    first = scan_packages(["Click", "packaging"], tmp_path, progress=lines.append)
    monkeypatch.setattr(docstrings, "_scan_to", None)  # any second scan would fail
    assert scan_packages(["click", "packaging"], tmp_path) == first
    assert len(lines) == 2
    assert {module.package for module in first} == {"click", "packaging"}
    assert "click.core" in [module.name for module in first]
    assert first == sorted(first, key=lambda module: (module.package, module.name))


def test_the_cache_follows_the_files(tmp_path: Path) -> None:
    package = find_package("click")
    grown = tmp_path / "core.py"
    grown.write_text('"""New."""')
    changed = docstrings.Package(package.name, package.version, (("click.core", grown),))
    assert changed.key != package.key
    other = docstrings.Package(package.name, "0", package.files)
    assert other.key != package.key
    assert find_package("Click").key == package.key


def test_standard_library_without_tests_or_site_packages() -> None:
    names = [name for name, _ in find_package("stdlib").files]
    assert "json.decoder" in names
    assert "argparse" in names
    assert not [n for n in names if "test" in n.split(".")[:-1] or n.startswith("site-packages")]
    assert "numpy" not in {name.split(".")[0] for name in names}


def test_tests_are_skipped_but_testing_tools_are_not() -> None:
    names = [name for name, _ in find_package("numpy").files]
    assert not [name for name in names if ".tests." in name or name.endswith("conftest")]
    assert "numpy.testing._private.utils" in names


def test_a_distribution_without_a_file_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare_thing").mkdir()
    (tmp_path / "bare_thing" / "__init__.py").write_text('"""Bare."""\nraise RuntimeError')
    info = tmp_path / "bare_thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bare-thing\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [name for name, _ in find_package("bare-thing").files] == ["bare_thing"]


@pytest.mark.parametrize(("name", "hint"), [("sklearn", "scikit-learn"), ("nump", "numpy")])
def test_a_package_that_is_not_installed_is_named(name: str, hint: str) -> None:
    with pytest.raises(DataError, match=rf"{name}.*{hint}"):
        find_package(name)


def test_cores_are_at_least_one() -> None:
    assert 1 <= docstrings.available_cores() <= (os.cpu_count() or 1)
