"""Python packages: one spelling of a name, how a Python that we start runs this package, and where
the files that ship with it lie."""

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
MODELS = "privsyn-flower-models"  # a package of files alone, too large for ours (packages/models)


def asset(name: str) -> Path | None:
    """A file or folder among the assets, None for no such: beside this code, in the installed
    package, which an app that Flower carried here (a FAB holds code alone) stands before, or in
    the package of larger models."""
    for root in (str(PACKAGE.parent), *sys.path):
        for folder in (f"{PACKAGE.name}/assets", MODELS.replace("-", "_")):
            path = Path(root) / folder / name
            if path.exists():
                return path
    return None


def lacking(setting: str) -> str:
    """One line for who lacks the package of larger models. setting: a key with its value."""
    from privsyn_flower import __version__

    wheel = f"{MODELS.replace('-', '_')}-{__version__}"
    return (
        f"{setting} is in the package {MODELS} {__version__}, not installed: `pip install "
        f"./packages/models` in a clone, else {wheel}-py3-none-any.whl of this release"
    )
