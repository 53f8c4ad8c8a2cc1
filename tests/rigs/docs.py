"""What several tests share about docs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


DOCS = ROOT / "docs"


FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    """(name, code) of every fenced block in that language."""
    found = [(p.name, FENCE.findall(text_of(p))) for p in PAGES]
    return [
        (f"{name}:{number}", code)
        for name, fences in found
        for number, (kind, code) in enumerate(fences, start=1)
        if kind == language
    ]


def metrics_of_the_page() -> set[str]:
    page = text_of(ROOT / "docs" / "run-folder.md")
    section = page.partition("\n## Metrics")[2].partition("\n## ")[0]
    firsts = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}
