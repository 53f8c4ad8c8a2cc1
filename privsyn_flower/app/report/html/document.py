"""The whole document: head, policy, navigation, parts, and the scripts that it carries."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Sequence

from privsyn_flower import __version__
from privsyn_flower.app.report.html.charts import INSTALL
from privsyn_flower.app.report.html.compared import comparison, names_of
from privsyn_flower.app.report.html.cost import cost
from privsyn_flower.app.report.html.good import good
from privsyn_flower.app.report.html.learned import learned
from privsyn_flower.app.report.html.library import library
from privsyn_flower.app.report.html.markup import Html, element, joined
from privsyn_flower.app.report.html.overview import benchmark_notice, overview
from privsyn_flower.app.report.html.parts import Part, guarded, paragraph, part
from privsyn_flower.app.report.html.private import private
from privsyn_flower.app.report.html.script import SCRIPT
from privsyn_flower.app.report.html.settings import settings
from privsyn_flower.app.report.html.style import STYLE
from privsyn_flower.app.report.html.went import went
from privsyn_flower.app.report.reading import RunFolder

LIVE_EVERY = 4  # seconds between two looks of a page that follows a run
SECTIONS: dict[str, tuple[str, Callable[[RunFolder], Part]]] = {
    "learned": ("What was learned", learned),
    "private": ("How private it is", private),
    "good": ("How good it is", good),
    "cost": ("What it cost", cost),
    "went": ("How it went", went),
    "settings": ("Configuration", settings),
}


def run_document(run: RunFolder, *, live: bool = False) -> str:
    """The page of one run."""
    parts = [
        guarded(id_, title, functools.partial(make, run)) for id_, (title, make) in SECTIONS.items()
    ]
    return _document(run.name, overview(run), parts, live=live)


def comparison_document(runs: Sequence[RunFolder]) -> str:
    """The page of several runs."""
    header = element(
        "header",
        element("p", "privsyn-flower", class_="kicker"),
        element("h1", f"{len(runs)} runs compared"),
        *benchmark_notice(runs),
        paragraph(
            "Runs stand beside each other by the kind of trust that they ask for: figures of "
            "different kinds are no race."
        ),
    )
    return _document(" / ".join(names_of(runs))[:200], header, comparison(runs))


def _document(title: str, header: Html, parts: Sequence[Part], *, live: bool = False) -> str:
    links = [element("li", element("a", one.title, href=f"#{one.id}")) for one in parts]
    scripts = [Html(text) for text in (library(), SCRIPT) if text]
    body = element(
        "body",
        element("a", "Skip to the first section", href=f"#{parts[0].id}", class_="skip"),
        element(
            "div",
            header,
            element("nav", element("ul", *links), aria_label="Sections"),
            element("main", *map(part, parts)),
            _footer(),
            class_="page",
        ),
        *(Html(f"<script>{text}</script>") for text in scripts),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts, live)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{title} - privsyn-flower"),
        Html(f"<style>{STYLE}</style>"),
    )
    page = element("html", head, body, lang="en", data_live=LIVE_EVERY if live else None)
    return f"<!doctype html>\n{page}\n"


def _footer() -> Html:
    told = [
        paragraph(
            f"Written by privsyn-flower {__version__} from the run folder and its ledger. This "
            "file loads nothing and sends nothing."
        )
    ]
    if not library():
        told.append(paragraph(f"Tables only: for charts too, {INSTALL}, and write the page again."))
    return element("footer", joined(told))


def _policy(scripts: Sequence[str], live: bool) -> str:
    """No network, no frames, no forms; of scripts, those of this document by their digests."""
    own = " ".join(_digest(text) for text in scripts)
    follow = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; script-src {own}; style-src {_digest(STYLE)}{follow}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
