"""Where the files that come with the package lie."""

from __future__ import annotations

import sys
from pathlib import Path

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
