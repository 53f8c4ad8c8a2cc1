"""Virtual environments that hold, by links into ours, what a requirement needs and nothing else."""

from __future__ import annotations

import importlib.metadata
import re
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGE = "privsyn_flower"


def closure(requirement: str) -> dict[str, importlib.metadata.Distribution]:
    """The distributions here that pip would install for it, by their normalised names."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting, seen = [Requirement(requirement)], set()
    while waiting:
        asked = waiting.pop()
        name = re.sub(r"[-_.]+", "-", asked.name).lower()
        for extra in ("", *asked.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found[name] = importlib.metadata.distribution(name)
            for line in found[name].requires or ():
                further = Requirement(line)
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    waiting.append(further)
    return found


def linked(folder: Path, requirement: str) -> Path:
    """A new environment in `folder` with a requirement's closure and its commands; returns it.

    This package's code is the working tree's.
    """
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in closure(requirement).values():
        tops = {path.parts[0] for path in distribution.files or () if path.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            if not top.endswith(".pth") and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
        for command in distribution.entry_points.select(group="console_scripts"):
            program = folder / "bin" / command.name
            code = f"import sys\nfrom {command.module} import {command.attr}\n"
            program.write_text(f"#!{folder / 'bin' / 'python'}\n{code}sys.exit({command.attr}())\n")
            program.chmod(0o755)
    if not (packages / PACKAGE).exists():  # installed for development: its files lie elsewhere
        (packages / PACKAGE).symlink_to(ROOT / PACKAGE)
    return folder
