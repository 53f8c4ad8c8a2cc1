"""What all pictures share: no display, two colours, and the same bytes for the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BLUE, GREY = "#1f5fa8", "#b8b8b8"


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path) -> Path:
    """Write a figure as a PNG and close it."""
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date in the file: the same run gives the same bytes.
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot().close(figure)
    return path
