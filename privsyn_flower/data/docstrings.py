"""Docstrings of installed packages: a real federated text set that needs no download.

`data.source = "docstrings"`, and the general public text of other sources. A module is a user, its
docstrings' pieces are the user's texts, labelled by package. Packages are named by distribution
(`scikit-learn`), the standard library as `stdlib`. Nothing is imported: files are found
through the installed metadata and parsed in separate processes. A package is scanned once;
the result is kept as an Arrow file under the hash of its name, version and file list.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from privsyn_flower.common.files import DataError, build_file, locked
from privsyn_flower.common.python_path import canonical
from privsyn_flower.config import DataConfig, split_list

from . import docstring_worker
from .groups import Group, Reading, Source, chunk
from .tables import read_table, write_table
from .users import Sample

log = logging.getLogger(__name__)

STDLIB = "stdlib"
SCAN_VERSION = 1  # raise it when the worker's cleaning changes: cached scans are then redone
BATCH = 128  # files per worker call: start-up (40 ms) stays small beside the parsing
_TEST_FOLDERS = {"test", "tests", "idle_test", "_test", "site-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Module:
    """One module's cleaned docstrings, in source order."""

    package: str
    name: str
    docstrings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package as found on disk: (module name, file) pairs sorted by name."""

    name: str
    version: str
    files: tuple[tuple[str, Path], ...]

    @property
    def key(self) -> str:
        """Content address: name, version and every file's module name and size."""
        sizes = [(module, path.stat().st_size) for module, path in self.files]
        python = sys.version_info[:2]  # another Python may parse other files
        text = json.dumps([SCAN_VERSION, python, self.name, self.version, sizes])
        return hashlib.sha256(text.encode()).hexdigest()


def scan_packages(
    names: Sequence[str], cache: Path, *, progress: Callable[[str], None] = lambda _: None
) -> list[Module]:
    """Every module with docstrings of the named packages, by package then module name.

    Raises DataError for a package that is not installed.
    """
    modules: list[Module] = []
    for package in [find_package(name) for name in names]:
        path = cache / "docstrings" / f"{canonical(package.name)}-{package.key[:24]}.arrow"
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                progress(f"reading docstrings of {package.name} {package.version}")
                _scan_to(package, path)
        columns = read_table(path)
        modules += [
            Module(package.name, name, tuple(texts))
            for name, texts in zip(columns["module"], columns["docstrings"], strict=True)
        ]
    return modules


def find_package(name: str) -> Package:
    """Locate an installed distribution's Python files; DataError when it is not installed."""
    if name == STDLIB:
        return Package(STDLIB, platform.python_version(), tuple(sorted(_stdlib_files())))
    distribution = find_distribution(name)
    files = tuple(sorted(_distribution_files(distribution)))
    if not files:
        raise DataError(f"package {name!r} holds no Python source: remove it from data.*-packages")
    return Package(canonical(name), distribution.version, files)


def find_distribution(name: str) -> importlib.metadata.Distribution:
    """An installed distribution; DataError when it is not installed."""
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise DataError(_not_installed(name)) from None


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def scan_parallel(paths: Sequence[Path], workers: int) -> list[list[str] | None]:
    """Docstrings per file in the order given, computed by `workers` processes.

    The processes are plain subprocesses fed by threads: they neither fork this process nor
    import its `__main__`, so this works in scripts, notebooks, Flower and Ray workers alike.
    """
    batches = [[str(path) for path in paths[i : i + BATCH]] for i in range(0, len(paths), BATCH)]
    if workers <= 1 or len(batches) <= 1 or not sys.executable:
        return docstring_worker.scan_files([str(path) for path in paths])
    with ThreadPoolExecutor(min(workers, len(batches))) as pool:
        return [result for batch in pool.map(_run_worker, batches) for result in batch]


def _run_worker(batch: list[str]) -> list[list[str] | None]:
    command = [sys.executable, "-I", "-S", "-W", "ignore", docstring_worker.__file__]
    done = subprocess.run(command, input=json.dumps(batch).encode(), capture_output=True)
    if done.returncode:
        tail = done.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(f"the docstring scan failed with status {done.returncode}: {tail}")
    results: list[list[str] | None] = json.loads(done.stdout)
    return results


def _scan_to(package: Package, path: Path) -> None:
    results = scan_parallel([file for _, file in package.files], available_cores())
    unread = sum(result is None for result in results)
    if unread:
        log.info("%s: %d files are not readable as Python, left out", package.name, unread)
    rows = [(name, texts) for (name, _), texts in zip(package.files, results, strict=True) if texts]
    columns: dict[str, list[Any]] = {
        "module": [name for name, _ in rows],
        "docstrings": [texts for _, texts in rows],
    }
    build_file(path, lambda scratch: write_table(scratch, columns, rows_per_batch=1024))


def _distribution_files(
    distribution: importlib.metadata.Distribution,
) -> Iterator[tuple[str, Path]]:
    """(module, file) of a distribution, by its file list or, without one, its import folders."""
    listed = [file for file in distribution.files or [] if file.suffix == ".py"]
    for file in listed:
        if ".." not in file.parts and not _is_test(file):
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                yield _module_name(file), path
    if listed:
        return
    names = (distribution.read_text("top_level.txt") or distribution.metadata["Name"]).split()
    for name in names:
        spec = importlib.util.find_spec(name.replace("-", "_"))
        for folder in (spec.submodule_search_locations or []) if spec else []:
            yield from _folder_files(Path(folder), Path(folder).parent)


def _stdlib_files() -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in sys.stdlib_module_names:
        if (root / f"{name}.py").is_file():
            yield name, root / f"{name}.py"
        elif (root / name).is_dir() and name not in _TEST_FOLDERS:
            yield from _folder_files(root / name, root)


def _folder_files(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*.py"):
        relative = PurePosixPath(path.relative_to(root).as_posix())
        if not _is_test(relative):
            yield _module_name(relative), path


def _is_test(file: PurePosixPath) -> bool:
    stem = file.stem
    return (
        bool(_TEST_FOLDERS.intersection(file.parts[:-1]))
        or stem.startswith("test_")
        or stem.endswith("_test")
        or stem in ("conftest", "tests")
    )


def _module_name(file: PurePosixPath) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@functools.cache  # half a second: every file list of every distribution
def _installed() -> tuple[set[str], Mapping[str, list[str]]]:
    """Distributions by name, and by what they let import."""
    known = {canonical(d.metadata["Name"] or "") for d in importlib.metadata.distributions()}
    return known, importlib.metadata.packages_distributions()


def _not_installed(name: str) -> str:
    known, imports = _installed()
    near = imports.get(name) or difflib.get_close_matches(
        canonical(name), sorted(known), n=1, cutoff=0.5
    )
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"package {name!r} (a data.*-packages key) is not installed: install it, or name another "
        f"distribution{hint}"
    )


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
