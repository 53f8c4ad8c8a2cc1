"""Python packages: one spelling of a name, how a Python that we start runs this package, and where
the files that come with it lie."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

HOLDER = Path(__file__).resolve().parents[2]  # the folder that the running package lies in


def canonical(name: str) -> str:
    """A distribution's normalised name (PEP 503), so that one package has one spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def finding_us(environment: Mapping[str, str], holder: Path = HOLDER) -> dict[str, str]:
    """The environment, with the package's folder first in PYTHONPATH and the rest of it kept.

    The package may be a Flower bundle's, which is not installed, or beside another that is. Where
    all packages are installed, a Python looks anyway: put first, it would hide the standard
    library's modules.
    """
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    if holder in installed:
        return dict(environment)
    # An empty entry would be the folder that the process is in.
    folders = [str(holder), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


PACKAGE = Path(__file__).parent.parent


def asset(name: str) -> Path | None:
    """A file or folder among the package's assets, None for no such: beside this code, or in the
    installed package, which an app that Flower carried here (a FAB holds code alone) stands
    before."""
    for root in (str(PACKAGE.parent), *sys.path):
        path = Path(root) / PACKAGE.name / "assets" / name
        if path.exists():
            return path
    return None
