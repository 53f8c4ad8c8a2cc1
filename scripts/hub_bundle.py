"""Write the Flower Hub bundle of this clone, look it over, and build and load it.

    python scripts/hub_bundle.py build/hub/privsyn-flower

The bundle is code and words: what git tracks of the package, the configurations and the docs, but
no shipped models, which the hub does not take. A run of it trains its own tiny models, once, as
plain `flwr run` does. Its dependencies are all that a simulation needs, because the hub installs
what `dependencies` names and knows no extras. `flwr app publish FOLDER` then uploads it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAME = "privsyn-flower"
# The hub's rules; a test compares them with the installed Flower's.
MOST_FILES, MOST_BYTES, MOST_OF_A_FILE, DEEPEST = 1000, 10 * 2**20, 2**20, 10
SUFFIXES = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
LONGEST = 200  # characters of a description
TOP = ("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PACKAGE = "privsyn_flower/"
LEFT_OUT = f"{PACKAGE}assets/"  # a part of a model would be a damaged one
NOTE = """
> This bundle holds code and no models: its first run trains the tiny ones, from public docstrings,
> into the cache (`models.train-seconds` each). The shipped `small` models and the embedder
> `minilm-int8` are in privsyn-flower-models; a folder of them may be named by `assets`.
"""
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import privsyn_flower
assert privsyn_flower.__file__.startswith(sys.argv[1]), privsyn_flower.__file__
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from privsyn_flower.client_apps.main import app as client
from privsyn_flower.server_apps.main import app as server
assert isinstance(client, ClientApp) and isinstance(server, ServerApp)
"""


def tracked(root: Path) -> list[str]:
    """Regular files that git tracks, links left out; CalledProcessError outside of a clone."""
    command = ["git", "-C", str(root), "ls-files", "--stage", "-z"]
    found = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    rows = (line.partition("\t") for line in found.split("\0") if line)
    return [name for about, _, name in rows if about.startswith("100")]


def wanted(names: Iterable[str]) -> list[str]:
    """Those that go into the bundle."""
    kept = []
    for name in names:
        path = PurePosixPath(name)
        code = name.startswith(PACKAGE) and not name.startswith(LEFT_OUT)
        words = path.parts[0] == "configs" or (path.parts[0] == "docs" and len(path.parts) == 2)
        if name in TOP or ((code or words) and path.suffix in SUFFIXES):
            kept.append(name)
    return sorted(kept)


def pyproject(root: Path) -> str:
    """The bundle's: the app's keys as they are, the licence as a file, and one list of what a
    simulation needs."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (root / "app" / "pyproject.toml").read_text(encoding="utf-8")
    (target,) = re.findall(
        r"(?m)^flwr==(\S+)$", (root / "constraints.txt").read_text(encoding="utf-8")
    )
    keys = {
        "name": NAME,
        "version": project["version"],
        "description": project["description"],
        "readme": "README.md",
        "requires-python": project["requires-python"],
        "keywords": project["keywords"],
        "dependencies": dependencies(project),
    }
    app = {"publisher": tomllib.loads(text)["tool"]["flwr"]["app"]["publisher"]}
    about = {"fab-format-version": 1, "flwr-version-target": target, "fab-include": packed(root)}
    parts = text.partition("[tool.flwr.app.components]")
    config = parts[1] + parts[2].partition("# End of the generated part")[0]
    head = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    flower = [f"{key} = {json.dumps(value)}" for key, value in (app | about).items()]
    lines = ["[project]", *head, 'license = { file = "LICENSE" }', "", "[tool.flwr.app]", *flower]
    return "\n".join(lines) + "\n\n" + config.rstrip() + "\n"


def packed(root: Path) -> list[str]:
    """Patterns of what `flwr build` takes of the bundle: code, its data and the licence."""
    own = [PurePosixPath(name) for name in wanted(tracked(root)) if name.startswith(PACKAGE)]
    data = sorted({f"{path.parent}/*{path.suffix}" for path in own if path.suffix != ".py"})
    return [f"{PACKAGE}**/*.py", *data, "/LICENSE"]


def dependencies(project: dict[str, Any], extra: str = "simulation") -> list[str]:
    """Of an extra, with those of the extras that it names; Flower is named once."""
    found, waiting, seen = dict[str, str](), [extra], set[str]()
    rows = list(project["dependencies"])
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for row in project["optional-dependencies"][name]:
            own = re.fullmatch(rf"{NAME}\[(.+)\]", row)
            if own:
                waiting += own[1].split(",")
            else:
                rows.append(row)
    for row in rows:  # a later row of the same package says more: flwr, flwr[simulation]
        found[re.split(r"[\[<>=!~ ]", row)[0].lower()] = row
    return list(found.values())


def write(root: Path, folder: Path) -> None:
    """The bundle of a clone; a folder of an earlier call is replaced, any other is refused."""
    readme = folder / "README.md"
    ours = readme.is_file() and NOTE.partition(":")[0] in readme.read_text(encoding="utf-8")
    if folder.exists() and not ours and any(folder.iterdir()):
        sys.exit(f"{folder} is not of an earlier call: remove it, or name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    for name in wanted(tracked(root)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, folder / name)
    (folder / "pyproject.toml").write_text(pyproject(root), encoding="utf-8")
    title, rest = (folder / "README.md").read_text(encoding="utf-8").split("\n", 1)
    (folder / "README.md").write_text(f"{title}\n{NOTE}{rest}", encoding="utf-8")


def problems(folder: Path) -> list[str]:
    """What the hub would refuse, or leave out; empty when all is well."""
    found, total, count = [], 0, 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found.append(f"{name} is a link")
        elif path.is_file():
            size = path.stat().st_size
            count, total = count + 1, total + size
            if name != "LICENSE" and path.suffix not in SUFFIXES:
                found.append(f"{name} is of no kind that the hub takes")
            if size > MOST_OF_A_FILE:
                found.append(f"{name} has {size:,} bytes, more than {MOST_OF_A_FILE:,}")
            if name.count("/") + 1 > DEEPEST:
                found.append(f"{name} is deeper than {DEEPEST}")
            try:
                path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                found.append(f"{name} is not UTF-8")
    if count > MOST_FILES:
        found.append(f"{count} files are more than {MOST_FILES}")
    if total > MOST_BYTES:
        found.append(f"{total:,} bytes are more than {MOST_BYTES:,}")
    return found + _about(folder)


def _about(folder: Path) -> list[str]:
    """What is wrong with the bundle's name, description and licence."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    if folder.name != project["name"]:
        found.append(f"the folder {folder.name} has not the app's name, {project['name']}")
    if not 0 < len(project["description"]) <= LONGEST:
        found.append(f"the description has not 1 to {LONGEST} characters")
    if project["license"] != {"file": "LICENSE"} or not (folder / "LICENSE").is_file():
        found.append("the licence is no file of the bundle")
    return found


def build(folder: Path) -> tuple[str, list[str]]:
    """`flwr build` of the bundle, whose ServerApp and ClientApp are then loaded from what it
    packed, in a process of its own. Returns the FAB's name and files; CalledProcessError with
    Flower's reason on stderr.
    """
    with tempfile.TemporaryDirectory() as scratch:
        flwr = Path(sys.executable).with_name("flwr")
        quiet = {**os.environ, "FLWR_HOME": scratch, "FLWR_TELEMETRY_ENABLED": "0"}
        quiet |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([flwr, "build", "--app", folder], check=True, cwd=scratch, env=quiet)
        (fab,) = Path(scratch).glob("*.fab")
        opened = Path(scratch, "opened")
        with zipfile.ZipFile(fab) as archive:
            archive.extractall(opened)
            names = archive.namelist()
        command = [sys.executable, "-c", LOAD, str(opened)]
        subprocess.run(command, check=True, cwd=scratch, env=quiet)
        return fab.name, names


def main(folder: Path) -> None:
    folder = folder.absolute()
    write(ROOT, folder)
    if wrong := problems(folder):
        sys.exit(f"{folder}: " + "; ".join(wrong))
    fab, inside = build(folder)
    code = {name for name in wanted(tracked(ROOT)) if name.startswith(PACKAGE)}
    if lacking := sorted(code - set(inside)):
        sys.exit(f"{fab} lacks {', '.join(lacking)}")
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{folder}: {len(files)} files, {size:,} bytes; {fab} has {len(inside)} and loads")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
