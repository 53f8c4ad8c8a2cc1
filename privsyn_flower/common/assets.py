"""Where the files that come with the package lie."""

from __future__ import annotations

import sys
from pathlib import Path

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
