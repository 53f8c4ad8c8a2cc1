"""A run folder as one HTML file that needs no network: what a person reads of a run.

Everything on it comes from the run folder and the ledger that it names, and is public, but for what
stands under `benchmark` in the summary and for the texts of expand-private, which are marked where
they are shown. No private text is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privsyn_flower.app.report.html.document import comparison_document, run_document
from privsyn_flower.app.report.reading import RunFolder, read_run
from privsyn_flower.app.report.summaries import read_summary
from privsyn_flower.files import replace_private

REPORT = "report.html"  # in a run folder


def page(folders: Sequence[Path], *, live: bool = False) -> str:
    """One self-contained HTML document: of one run, or several compared by trust.

    folders: of runs, finished or not, or summaries of finished ones (JSON files). live: the page
    asks its own address for itself until the run has finished, and shows what is new; for
    `privsyn watch`, and one run alone. Raises ReportError for what is no run, ValueError without
    folders and for several with live.
    """
    if not folders or (live and len(folders) > 1):
        raise ValueError(
            f"{len(folders)} folders, live = {live}: name one, or several without live"
        )
    runs = [_read(folder) for folder in folders]
    if len(runs) > 1:
        return comparison_document(runs)
    return run_document(runs[0], live=live and runs[0].state != "finished")


def write_page(folders: Sequence[Path], path: Path) -> Path:
    """The page in a file, atomically; its owner alone may read it, for it may have a benchmark.

    Raises ReportError and ValueError as `page`, OSError where the file cannot be written.
    """
    replace_private(path, page(folders).encode())
    return path


def _read(folder: Path) -> RunFolder:
    """A run's folder, or nothing but its summary."""
    if folder.name == "summary.json" and folder.parent.is_dir():
        folder = folder.parent
    if folder.is_dir():
        return read_run(folder)
    summary = read_summary(folder)
    return RunFolder(
        folder=folder.with_suffix(""),
        config=None,
        stored={},
        summary=summary,
        promised={},
        statement="",
        metrics=[],
        evaluations={},
        progress=[],
        ledger=None,
        seconds={},
        error="",
        warnings=[],
        held=False,
        problems=[],
    )
