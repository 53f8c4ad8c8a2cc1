"""A run folder as one HTML file that needs no network: what a person reads of a run, or of several
side by side, by the kind of trust that they ask for.

Everything on it comes from the run folder and the ledger that it names, and is public, but for what
stands under `benchmark` in the summary and for the texts of expand-private, which are marked where
they are shown. No private text is opened.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from privsyn_flower import __version__
from privsyn_flower.app.report.guarantee import TEMPLATES
from privsyn_flower.app.report.html import markup
from privsyn_flower.app.report.html.charts import intervals, spanned
from privsyn_flower.app.report.html.course import cost, went
from privsyn_flower.app.report.html.good import OVER_USERS, good, what_was_checked
from privsyn_flower.app.report.html.learned import learned
from privsyn_flower.app.report.html.library import INSTALL
from privsyn_flower.app.report.html.markup import Context, Figure, Part, Table, section
from privsyn_flower.app.report.html.overview import (
    benchmark_notice,
    delta,
    epsilon,
    method_of,
    notices,
    overview,
    short_claim,
)
from privsyn_flower.app.report.html.private import private
from privsyn_flower.app.report.html.settings import settings, settings_compared
from privsyn_flower.app.report.reading import RunFolder, read_run
from privsyn_flower.app.report.summaries import (
    RESULTS,
    TRUSTS,
    interval,
    is_triple,
    mapping,
    read_summary,
    trust_of,
    verdict_lines,
)
from privsyn_flower.app.report.tables import column, differing
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
CLAIMS, SETTINGS = "What each run claims, and came to", "Configuration: what differs"
ALIKE = "Whether their figures can be compared"
PUBLIC = ("method", "epsilon", "delta", "accountant", "rounds / of one user",
          "down, user and round", "up, user and round", "signal / noise")  # fmt: skip
MEASURED = ("method", "epsilon", "accuracy", "gained over public text", "loss", "perplexity",
            "client CPU, user and round", "client CPU, user and run", "server, run")  # fmt: skip


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
        section(id_, title, id_, partial(context, run))
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


@cache
def _asset(name: str) -> Markup:
    """The style sheet or the script, as it stands in the page."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


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


# Several runs ---------------------------------------------------------------------------------


def names_of(runs: Sequence[RunFolder]) -> list[str]:
    """A name for each run that no other has."""
    names = [run.name for run in runs]
    counts = {name: names.count(name) for name in names}
    several = [
        f"{run.folder.absolute().parent.name}/{name}" if counts[name] > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]
    return [
        f"{name} ({place})" if several.count(name) > 1 else name
        for place, name in enumerate(several, start=1)
    ]


def comparison(runs: Sequence[RunFolder]) -> list[Part]:
    """The sections of a page of several runs."""
    named = list(zip(names_of(runs), runs, strict=True))
    finished = [run.summary for run in runs if run.summary]
    parts = [section("differs", ALIKE, "alike", lambda: {"unequal": differing(finished)})]
    for place, title in enumerate([*TRUSTS.values(), None]):
        own = [(name, run) for name, run in named if _trust(run) == title]
        if own:
            heading, make = title or "No result yet", partial(_trusted, own)
            parts.append(section(f"trust-{place}", heading, "trusted", make))
    return [
        *parts,
        section("claims", CLAIMS, "claims", lambda: {"runs": [_claim(*one) for one in named]}),
        section("settings", SETTINGS, "settings_compared", partial(settings_compared, named)),
    ]


def _trust(run: RunFolder) -> str | None:
    return trust_of(run.summary) if run.summary else None


def _trusted(own: Sequence[tuple[str, RunFolder]]) -> Context:
    finished = [(name, run) for name, run in own if run.summary]
    measured = [(name, run) for name, run in finished if run.benchmark]
    return {
        "waiting": [f"{name}: {method_of(run)}, {run.state}" for name, run in own],
        "runs": _columns("Runs", PUBLIC, finished) if finished else None,
        "gains": _gains(measured),
        "measured": _columns("Figures of each run", MEASURED, measured) if measured else None,
    }


def _columns(title: str, names: Sequence[str], own: Sequence[tuple[str, RunFolder]]) -> Table:
    rows = []
    for name, run in own:
        seed = "-" if run.seed is None else str(run.seed)
        rows.append([name, seed, *(_cell(one, run.summary) for one in names)])
    return Table(title, ["run", "seed", *names], rows, stacked=True)


def _cell(name: str, summary: Mapping[str, Any]) -> str:
    """A column of `privsyn report`, and what claims nothing says so."""
    if name == "epsilon":
        return epsilon(summary)
    if name == "delta":
        return delta(summary) or "-"
    return column(name, summary)


def _gains(own: Sequence[tuple[str, RunFolder]]) -> Figure | None:
    """Paired differences of each run's result and every control."""
    rows, data = [], []
    for name, run in own:
        pairs = mapping(run.benchmark.get("accuracy_difference"))
        for pair, ends in pairs.items():
            one, _, other = str(pair).partition("-")
            if one not in RESULTS or not is_triple(ends):
                continue
            at, control = epsilon(run.summary), other.replace("_", " ")
            rows.append([name, at, control, interval(ends, sign=True)])
            over = f"{name}\n\u03b5\u00a0{at}, over {control}"
            data.append(spanned(ends, name=over, own=True))
    if not rows:
        return None
    title = "Accuracy gained over each control"
    remark = f"Paired differences, each run with its epsilon. {OVER_USERS}."
    headings = ["run", "epsilon", "over", "difference [95 %]"]
    listing = Table("Accuracy gained", headings, rows, stacked=True)
    draw = partial(intervals, data, value="accuracy gained", zero=True)
    return Figure(title, remark, listing, draw)


def _claim(name: str, run: RunFolder) -> Context:
    return {
        "title": f"{name}: {method_of(run)}",
        "notices": notices(run),
        "claim": short_claim(run),
        "verdict": verdict_lines(run.summary),
    }
