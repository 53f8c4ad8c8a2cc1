"""A run folder as one HTML file that needs no network: what a person reads of a run.

Everything on it comes from the run folder and the ledger that it names, and is public, but for what
stands under `benchmark` in the summary and for the texts of expand-private, which are marked where
they are shown. No private text is opened.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

from privsyn_flower import __version__
from privsyn_flower.app.report.html import markup
from privsyn_flower.app.report.html.compared import comparison, names_of
from privsyn_flower.app.report.html.course import cost, went
from privsyn_flower.app.report.html.good import good, what_was_checked
from privsyn_flower.app.report.html.learned import learned
from privsyn_flower.app.report.html.library import INSTALL
from privsyn_flower.app.report.html.overview import benchmark_notice, overview
from privsyn_flower.app.report.html.parts import Context, Part, section
from privsyn_flower.app.report.html.private import private
from privsyn_flower.app.report.html.settings import settings
from privsyn_flower.app.report.reading import RunFolder, read_run
from privsyn_flower.app.report.summaries import read_summary
from privsyn_flower.common.files import replace_private

REPORT = "report.html"  # in a run folder
LIVE_EVERY = 4  # seconds between two looks of a page that follows a run
SECTIONS: dict[str, tuple[str, Callable[[RunFolder], Context]]] = {
    "learned": ("What was learned", learned),
    "private": ("How private it is", private),
    "good": ("How good it is", good),
    "what_was_checked": ("What was checked", what_was_checked),
    "cost": ("What it cost", cost),
    "went": ("How it went", went),
    "settings": ("Configuration", settings),
}


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
        header = markup.render("compared", count=len(runs), found=benchmark_notice(runs))
        return _document(" / ".join(names_of(runs))[:200], header, comparison(runs))
    (run,) = runs
    parts = [
        section(id_, title, id_, functools.partial(context, run))
        for id_, (title, context) in SECTIONS.items()
    ]
    header = markup.render("overview", **overview(run))
    return _document(run.name, header, parts, live=live and run.state != "finished")


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
    return RunFolder(folder.with_suffix(""), summary=read_summary(folder))


def _document(title: str, header: Markup, parts: Sequence[Part], *, live: bool = False) -> str:
    """Head, policy, navigation, parts, and the scripts that the page carries."""
    style, script = (_asset(name) for name in ("style.css.md", "script.js.md"))
    scripts = [Markup(text) for text in (markup.library(), script) if text]
    return markup.render_page(
        title=title,
        header=header,
        parts=parts,
        live=LIVE_EVERY if live else None,
        policy=_policy(style, scripts, live),
        style=style,
        scripts=scripts,
        version=__version__,
        install=INSTALL,
    )


@functools.cache
def _asset(name: str) -> Markup:
    """The style sheet or the script, as it stands in the page."""
    return Markup((markup.TEMPLATES / name).read_text(encoding="utf-8"))


def _policy(style: str, scripts: Sequence[str], live: bool) -> str:
    """No network, no frames, no forms; of scripts, those of this document by their digests."""
    own = " ".join(_digest(text) for text in scripts)
    follow = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; script-src {own}; style-src {_digest(style)}{follow}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
