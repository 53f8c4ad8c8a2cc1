"""docs/report/report.md with its numbers, figures and references, as HTML and PDF (`make report`).

    python -m scripts.report [build/report]

A number of the report is a marker that is resolved here from what is kept, or it stands on a page
that its section names (`% from: PAGE.md ...`); anything else is an error. Markers:

    {{chats/NAME.json benchmark.accuracy.synthetic .4f}}     a value of docs/results, formatted
    {{rows correlated-noise.md | Mechanisms | name; RMSE}}   columns of a page's table
    {{accuracy}}                                             the grid on chats
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import matplotlib

from scripts.report_figures import DOCS, EPSILONS, ROOT, chats, draw, measured, page_table, summary

SOURCE = DOCS / "report"
PAGES = range(8, 13)  # of the PDF
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FACES = {"": "", "Bol": "font-weight: bold", "Italic": "font-style: italic"}  # of matplotlib's STIX
MARKER = re.compile(r"\{\{(.+?)\}\}")
NUMBER = re.compile(r"(?<![\w.])(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e-?\d+)?")
# No figures: where a part of the report is, exponents and indices, code, references, 0, 1 and 2.
STRUCTURE = re.compile(
    r"(?:Figure|Table|Section|Theorem) \d+|[\^_]\{?-?\d+\}?|^```.*?^```"
    r"|^(?:%|#|\[\^\w+\]:).*?$|\[\^\w+\]",
    re.MULTILINE | re.DOTALL,
)
SMALL = {0.0, 1.0, 2.0}
# Of a page's cell: links but for their words, places on the page, what intervals and rows are of.
ASIDES = re.compile(r" \(\[below\]\(.+?\)\)| \(runs of [^()]*\)|users~ |\[([^\]]+)\]\([^)]+\)")


def value(name: str, key: str, form: str) -> str:
    """A number of a kept summary. key: names and positions, with dots between them."""
    steps = [int(step) if step.isdigit() else step for step in key.split(".")]
    return format(reduce(lambda inner, step: inner[step], steps, summary(name)), form)


def markdown(table: list[list[str]]) -> str:
    """A table without links and asides; columns of numbers are set to the right."""
    head, *body = [[ASIDES.sub(r"\1", cell) for cell in row] for row in table]
    columns = zip(*body, strict=True)
    numeric = [any(of) and all(re.match(r"[-+]?\d|$", cell) for cell in of) for of in columns]
    rows = [head, ["---:" if right else "---" for right in numeric], *body]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return re.sub(r"(\[[-+\d.]+), ", "\\1,\N{NO-BREAK SPACE}", text)  # an interval is one word


def accuracy() -> str:
    """What each method of the grid on chats came to; a curator's users send their text once, so
    that a round has no bytes of theirs."""

    def cell(runs: Sequence[dict[str, Any]], name: str = "") -> str:
        return "{:.4f} [{:.4f}, {:.4f}]".format(*measured(runs, name))

    heads = [f"epsilon {epsilon}" for epsilon in EPSILONS]
    table = [["", "trusted", "seeds", *heads, "kB down", "kB up"]]
    for label, kept in chats():
        runs = kept[EPSILONS[0]]
        who, count = trusted(runs[0]), min(map(len, kept.values()))
        cells = [cell(kept[e]) if e in kept else "" for e in EPSILONS]
        sent = [runs[0].get(f"bytes_{way}_per_user_round") or 0 for way in ("down", "up")]
        kilobytes = [f"{one / 1000:,.0f}" if one and who != "curator" else "" for one in sent]
        table.append([label, who, str(count), *cells, *kilobytes])
    _, runs = next(chats())[1].popitem()  # of public text: it was run once
    for said, name in ("the start of all rows", "start"), ("private text, no privacy", "private"):
        table.append([said, "", str(len(runs)), cell(runs, name), "", "", ""])
    return markdown(table)


def trusted(one: dict[str, Any]) -> str:
    """Who has sums without the guaranteed noise, or all text."""
    if not one["epsilon"]:
        return "(nobody asked)"
    if one["claim"]["aggregation"] == "plain":
        return "curator"
    return "aggregator" if one["claim"]["noise_source"] == "aggregator" else "nobody"


def resolved(source: str) -> str:
    """The source with its markers' values. Raises ValueError for what resolves to nothing."""

    def one(match: re.Match[str]) -> str:
        words = match[1].strip()
        try:
            if words == "accuracy":
                return accuracy()
            if words.startswith("rows "):
                page, heading, names = words.removeprefix("rows ").split(" | ")
                return markdown(page_table(page, heading, [n.strip() for n in names.split(";")]))
            return value(*words.split())
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{match[0]}: {error!r}") from None

    return MARKER.sub(one, source)


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def check_numbers(source: str) -> int:
    """How many numbers are typed. Raises ValueError for one that no page of its section has."""
    count = 0
    for section in re.split(r"^(?=##? )", source, flags=re.MULTILINE):
        named = re.search(r"^% from: (.+)$", section, re.MULTILINE)
        pages = named[1].split() if named else []
        known = {one for page in pages for one in numbers((DOCS / page).read_text("utf-8"))}
        typed = numbers(STRUCTURE.sub("", MARKER.sub("", section)))
        if strange := sorted(set(typed) - known - SMALL):
            raise ValueError(f"{section.splitlines()[0]}: {strange} on none of {pages}")
        count += len(typed)
    return count


def html(folder: Path) -> Path:
    """report.html in the folder, beside its figures. Raises ValueError, and docutils' errors."""
    from docutils.core import publish_parts
    from myst_parser.parsers.docutils_ import Parser

    source = (SOURCE / "report.md").read_text(encoding="utf-8")
    check_numbers(source)
    draw(folder)
    settings = {
        "myst_enable_extensions": ["dollarmath", "colon_fence"],
        "math_output": "MathML",
        "footnote_references": "brackets",
        "halt_level": 2,  # a warning is an error
    }
    parts = publish_parts(
        resolved(source), parser=Parser(), writer="html5", settings_overrides=settings
    )
    drawing = (SOURCE / "round.svg").read_text(encoding="utf-8")  # inside the page it has its fonts
    body = re.sub(r'<img [^>]*src="round.svg"[^>]*>', lambda _: drawing, parts["html_body"])
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"  # the same on every machine
    style = (SOURCE / "report.css").read_text(encoding="utf-8")
    for face, how in FACES.items():
        file = (fonts / f"STIXGeneral{face}.ttf").as_uri()
        style += f"@font-face {{ font-family: STIX; src: url({file}); {how} }}\n"
    target = folder / "report.html"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{style}</style>'
    target.write_text(f"{head}{body}</html>", encoding="utf-8")
    return target


def pdf(page: Path) -> Path:
    """The page as PDF beside it. Raises ValueError without Chromium, or for its length."""
    found = [os.environ.get("PRIVSYN_BROWSER"), *map(shutil.which, BROWSERS)]
    if not (browser := next(filter(None, found), None)):
        raise ValueError("no Chromium here: make browser installs one, PRIVSYN_BROWSER names one")
    target = page.with_name("privsyn-flower-report.pdf")
    how = ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={target}"]
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none
    subprocess.run([browser, *how, *sandbox, page.as_uri()], check=True, timeout=300)
    count = len(re.findall(rb"/Type\s*/Page\b", target.read_bytes()))
    if count not in PAGES:
        raise ValueError(f"{target} has {count} pages, not {PAGES.start} to {PAGES.stop - 1}")
    print(f"{target}: {count} pages")
    return target


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "report").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    pdf(html(folder))
