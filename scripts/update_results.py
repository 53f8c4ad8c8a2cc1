"""The measured parts of docs/results.md, docs/results/measured.md and README.md, from what
`privsyn compare` found.

    python -m scripts.update_results      (`make results` runs the grid first)

A method's part is written when all of its runs are there, finished or kept in docs/results; the
comparisons of methods as far as they are there.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from privsyn_flower.app.cli.compare.cells import Outcome, cells_of, look
from privsyn_flower.app.cli.compare.details import details, introduction, training_texts
from privsyn_flower.app.cli.compare.estimates import (
    completed,
    differences,
    lines_of,
    load_pairs,
    place,
)
from privsyn_flower.app.cli.compare.figures import draw
from privsyn_flower.app.cli.compare.tables import measured, not_run, point_label
from privsyn_flower.app.report.tables import report
from privsyn_flower.config.grid import GridConfig, GridMethod, load_grid
from scripts.expectations import expectations

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
GRID = CONFIGS / "compare-results.toml"
RUNS = ROOT / "results" / GRID.stem
COMPARED = {  # grid, and marker of its part -> its picture
    "compare-demo": "accuracy-epsilon.png",
    "compare-users": "accuracy-users.png",
    "compare-ctcl": "accuracy-epsilon.png",
    "compare-dp-rft": "accuracy-epsilon.png",
    "compare-classes": "accuracy.png",
}
PAGE, IMAGES = ROOT / "docs" / "results" / "measured.md", ROOT / "docs" / "images"
FRONT, RESULTS = ROOT / "README.md", ROOT / "docs" / "results.md"
CHATS = "compare-chats"  # the grid of the first section: its accuracies stand on docs/results.md
MADE_BY = "make results"
PLACES = {  # method -> marker of its part, and what its pictures' names begin with
    "pretext": ("results", ""),
    "popri": ("popri-results", "popri-"),
    "ctcl": ("ctcl-results", "ctcl-"),
    "dp-fedavg": ("dp-fedavg-results", "dp-fedavg-"),
    "dp-ftrl": ("dp-ftrl-results", "dp-ftrl-"),
}
PICTURES = {  # of the first run
    "pretext": {
        "accuracy.png": "Next-token accuracy by training text",
        "candidates.png": "Candidates and held-out text in two principal directions",
    },
    "popri": {
        "accuracy.png": "Next-token accuracy by training text",
        "candidates.png": "Responses and held-out text in two principal directions",
        "distances.png": "Frechet distance of the responses by round",
    },
    "ctcl": {"topics.png": "Shares of the largest topics, as released and true"},
}


def here() -> tuple[GridConfig, list[Outcome]]:
    """The grid of the demos, and what there is of it."""
    grid = load_grid(GRID)
    return grid, [look(cell) for cell in cells_of(grid, GRID, RUNS)]


def blocks(grid: GridConfig, outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Marker -> text, for the methods whose runs are all there, and all of them side by side."""
    lines, found = lines_of(grid, outcomes), dict[str, str]()
    for method in grid.methods:
        own = [outcome for outcome in outcomes if outcome.cell.method is method]
        if missing := [outcome.cell.says for outcome in own if outcome.summary is None]:
            print(f"{method.title}: its part stays, not here are {'; '.join(missing)}")
            continue
        marker, prefix = PLACES[method.name]
        shown = PICTURES.get(method.name, {})
        links = [f"![{text}](../images/{prefix}{name})" for name, text in shown.items()]
        found[marker] = "\n\n".join([details(method, lines, MADE_BY), *links])
    if len(found) == len(grid.methods):
        found["compare"] = report(_first_runs(outcomes))
    return found


def compared_block(name: str, images: Path | None = None) -> str:
    """The figures of a grid as far as they are kept, the same wherever they are written. images:
    folder for its picture."""
    path = CONFIGS / f"{name}.toml"
    grid = load_grid(path)
    cells = cells_of(grid, path, path / "no runs")
    done = [one for one in map(look, cells) if one.summary is not None]
    lines = lines_of(grid, done)
    found = completed(differences(grid, lines), load_pairs(place(grid, path)))
    picture = COMPARED[name]
    if images is not None:
        with TemporaryDirectory() as folder:
            draw(grid, lines, found, Path(folder))
            shutil.copyfile(Path(folder) / picture, images / f"{name}-{picture}")
    told = f"Measured: {len(done)} of the {len(cells)} runs of [{name}](../../configs/{name}.toml)."
    link = f"![{grid.title}](../images/{name}-{picture})"
    deeper = [part.replace("## ", "### ", 1) for part in measured(grid, lines, found)]
    return "\n\n".join([told, link, *filter(None, deeper)])


def chats_blocks() -> tuple[str, str]:
    """What the grid on chats came to, as far as its summaries are kept: what was expected of it and
    whether it holds, accuracies, and what was not run; then all other figures."""
    path = CONFIGS / f"{CHATS}.toml"
    grid = load_grid(path)
    cells = cells_of(grid, path, path / "no runs")
    done = [one for one in map(look, cells) if one.summary is not None]
    lines = lines_of(grid, done)
    found = completed(differences(grid, lines), load_pairs(place(grid, path)))
    told = f"Measured: {len(done)} of the {len(cells)} runs of [{CHATS}](../configs/{CHATS}.toml)."
    expected = "\n".join(f"- {one.sentence()}" for one in expectations(grid, found, lines))
    parts = measured(grid, lines, found) if lines else not_run(grid, lines)
    deeper = [part.replace("## ", "### ", 1) for part in parts if part]
    cut = next((n for n, part in enumerate(deeper) if part.startswith("### loss")), len(deeper))
    shown = [told, "### What was expected, with 95 % intervals", expected, *deeper[:cut]]
    return "\n\n".join(shown), "\n\n".join(deeper[cut:])


def front_block(grid: GridConfig, outcomes: Sequence[Outcome]) -> str:
    """README.md's one table: the first method at the first epsilon."""
    method = grid.methods[0]
    line = next(one for one in lines_of(grid, outcomes) if one.method is method)
    shown = {point_label(line.point): [run.summary or {} for run in line.runs]}
    return "\n".join([introduction(shown, MADE_BY), "", *training_texts(method, shown)])


def _first_runs(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Each method's first summary."""
    found: dict[str, dict[str, object]] = {}
    for outcome in outcomes:
        if outcome.summary is not None:
            found.setdefault(outcome.cell.method.name, dict(outcome.summary))
    return list(found.values())


def copy_pictures(method: GridMethod, outcomes: Sequence[Outcome]) -> None:
    """Pictures of a method's first run into docs/images, where the run itself is here."""
    first = next(outcome for outcome in outcomes if outcome.cell.method is method)
    for name in PICTURES.get(method.name, {}):
        if first.folder is not None and (first.folder / name).exists():
            shutil.copyfile(first.folder / name, IMAGES / f"{PLACES[method.name][1]}{name}")


def fill(page: Path, marker: str, text: str) -> None:
    """Put a text between its markers. Raises ValueError for a page without them."""
    start, end = f"<!-- {marker}:start -->", f"<!-- {marker}:end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{page} must hold {start} and {end}")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Fill the pages."""
    grid, outcomes = here()
    for method in grid.methods:
        copy_pictures(method, outcomes)
    found = blocks(grid, outcomes)
    for marker, text in found.items():
        fill(PAGE, marker, text)
    if PLACES[grid.methods[0].name][0] in found:
        fill(FRONT, "result", front_block(grid, outcomes))
    for name in COMPARED:
        fill(PAGE, name, compared_block(name, IMAGES))
    shown, rest = chats_blocks()
    fill(RESULTS, CHATS, shown)
    fill(PAGE, CHATS, rest)


if __name__ == "__main__":
    main()
