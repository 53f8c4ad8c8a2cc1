"""Write docs/results/papers-rows.md from scripts/papers/rows.toml.

python -m scripts.paper_rows       (`make paper-configs`)
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path(__file__).resolve().parent / "papers" / "rows.toml"
PAGE = ROOT / "docs" / "results" / "papers-rows.md"
PLACES = ("run here", "planned here", "not possible here", "not here yet")
HEAD = """# The papers' tables and figures, row by row

Each row of the four papers' tables and figures: what the paper says, our configuration (files of
`configs/papers`; braces list alternatives), the command, and whether it ran. *Run here*: this
repository has the numbers, by that command or a test. *Planned here*: the file is shipped, its
noise is priced and tested and `privsyn plan` knows its cost; the data, the models or a GPU were
not at hand, so nothing of full size ran. *Not possible here*: what it needs cannot be had. A
command names the first file; each other file has its own. Settings and differences:
[papers.md](papers.md), [papers line by line](../proofs/papers-line-by-line.md).

<!-- Generated: change scripts/papers/rows.toml, then run make paper-configs. -->
"""


@dataclass(frozen=True)
class Row:
    """One row of a paper's table or figure. files: names in configs/papers, braces opened;
    commands: as they are typed, one a file or one alone."""

    paper: str
    item: str
    about: str
    row: str
    says: str
    pattern: str
    files: tuple[str, ...]
    grid: str
    commands: tuple[str, ...]
    where: str
    note: str


def opened(pattern: str) -> list[str]:
    """`a-{b,c}` -> a-b and a-c, as a shell has it; of "" nothing."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)] if pattern else []
    return ["".join(chosen) for chosen in itertools.product(*parts)] if parts else []


def rows() -> Iterator[Row]:
    """All rows in their order. Raises ValueError for one without a command or a known place."""
    for item in tomllib.loads(SOURCE.read_text("utf-8"))["item"]:
        for own in item["rows"]:
            where = own.get("where", item.get("where", PLACES[1]))
            note = own.get("note", item.get("note", ""))
            files = tuple(opened(own.get("files", "")))
            grid = own.get("grid", "")
            command = own.get("command", _command(files, grid))
            if where not in PLACES or not (command or where in PLACES[2:]):
                raise ValueError(f"{item['paper']}, {item['name']}, {own['row']}: {where!r}")
            paths = [f"configs/papers/{name}.toml" for name in files] or [""]
            each = paths if "FILE" in command else [""]
            commands = tuple(command.replace("FILE", path) for path in each) if command else ()
            yield Row(
                item["paper"], item["name"], item["about"], own["row"], own["says"],
                own.get("files", ""), files, grid, commands, where, note,
            )  # fmt: skip


def _command(files: tuple[str, ...], grid: str) -> str:
    if not files:
        return ""
    return (
        f"privsyn compare configs/grids/{grid}.toml --config FILE" if grid else "privsyn run FILE"
    )


def page() -> str:
    """The page's text."""
    all_rows = list(rows())
    counts = Counter(row.where for row in all_rows)
    told = ", ".join(f"{counts[place]} {place}" for place in PLACES if counts[place])
    lines = [HEAD, f"{len(all_rows)} rows: {told}."]
    for paper, of_paper in itertools.groupby(all_rows, key=lambda row: row.paper):
        lines.append(f"\n## {paper}")
        for (item, about), own in itertools.groupby(of_paper, key=lambda r: (r.item, r.about)):
            lines += [f"\n### {paper}, {item}\n", f"{about[0].upper()}{about[1:]}.\n"]
            lines += ["| row | the paper says | configuration | command | here |"]
            lines += ["|---|---|---|---|---|", *map(_line, own)]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    grid = f"`{row.grid}` over " if row.grid else ""
    configuration = f"{grid}`{row.pattern}`" if row.pattern else ""
    command = f"`{row.commands[0]}`" if row.commands else ""
    here = f"{row.where}: {row.note}" if row.note else row.where
    return f"| {row.row} | {row.says} | {configuration} | {command} | {here} |"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
