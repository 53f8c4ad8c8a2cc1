"""Write the papers' configurations, configs/papers, from the tables of scripts/papers.

    python -m scripts.paper_configs       (`make paper-configs`)

Tests compare the files with the tables, and their numbers with the papers.
"""

from __future__ import annotations

from pathlib import Path

from scripts.papers import ctcl, gboard, pe, popri, pretext
from scripts.papers.layers import laid

FOLDER = Path(__file__).resolve().parent.parent / "configs" / "papers"
GENERATED = "# Generated: change scripts/papers, then run make paper-configs."


def texts() -> dict[str, str]:
    """Name of each file -> its text."""
    rows = [*pretext.rows(), *popri.rows(), *pe.rows(), *gboard.rows(), *ctcl.rows()]
    return {
        name: laid([*layers, GENERATED], {**numbers, "file": f"configs/papers/{name}.toml"})
        for name, layers, numbers in rows
    }


def main() -> None:
    wanted = texts()
    for path in FOLDER.glob("*.toml"):
        if path.stem not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / f"{name}.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
