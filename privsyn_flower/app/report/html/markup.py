"""Text becomes markup in the templates alone, by Jinja2, which escapes whatever it is given.

What steers a terminal or turns the direction of writing around is written out before
(`terminal.escaped`), so that a text can neither hide a part of itself nor reorder what stands
beside it. No Python code here puts a tag together.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader, TemplateError
from markupsafe import Markup

from privsyn_flower.app.report.guarantee import TEMPLATES
from privsyn_flower.app.report.html.library import library as library  # the page's, too
from privsyn_flower.app.report.summaries import number, percent, seconds, size
from privsyn_flower.common.terminal import escaped, without_places

logger = logging.getLogger("privsyn_flower")

_SURROGATES = re.compile("[\ud800-\udfff]")  # JSON may hold half of a pair; UTF-8 may not
# In a script element: what would end it, or begin a comment in it, is written as JSON escapes it.
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
MOST_ROWS = 60  # of a table of releases or rounds

Context = Mapping[str, object]  # what a section's macro is called with
Draw = Callable[[], dict[str, Any]]  # makes a chart's Vega-Lite specification


@dataclass(frozen=True)
class Table:
    """rows: of cells that are shown as text. words: leading columns that are text; the others are
    aligned as numbers. stacked: for long texts: on a narrow screen its cells stand one below the
    other, each with its heading. code: the first column holds names of keys."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    words: int = 1
    stacked: bool = False
    code: bool = False


@dataclass(frozen=True)
class Figure:
    """A chart with its table folded up beside it, or the table alone.

    remark: what has to be known with it, epsilon above all. draw: called only where there is
    something to draw it; None: no chart.
    """

    title: str
    remark: str
    table: Table
    draw: Draw | None = None


@dataclass(frozen=True)
class Part:
    """A section of the page. id: its address in the page."""

    id: str
    title: str
    body: Markup


def section(id_: str, title: str, macro: str, context: Callable[[], Context]) -> Part:
    """A part of the page; one that cannot be made of what a folder says is no reason to show
    nothing of the others."""
    try:
        return Part(id_, title, render(macro, **context()))
    except (
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError, TemplateError,
    ) as error:  # fmt: skip
        logger.warning("report page, %r: %s: %s", title, type(error).__name__, error)
        why = without_places(f"This part cannot be shown: {type(error).__name__}: {error}")
        return Part(id_, title, render("failed", why=why))


def axis_name(text: str, most: int = 60) -> str:
    """A name for an axis: one line, not longer than it can be read."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}\u2026"


def spread(rows: Sequence[Any]) -> list[Any]:
    """At most MOST_ROWS, evenly spread, the first and the last among them."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    return [rows[n * (len(rows) - 1) // (MOST_ROWS - 1)] for n in range(MOST_ROWS)]


def few(listed: int, of: int) -> str:
    """What to say beside a table that does not have all rows."""
    return f" ({number(listed)} of {number(of)}, evenly spread)" if listed < of else ""


def plain(value: object) -> str:
    """A value as text that shows all of itself."""
    return _SURROGATES.sub("\ufffd", escaped(str(value)))


def render(macro: str, /, **context: object) -> Markup:
    """A macro of sections.html.md, as markup."""
    made: Markup = getattr(_environment().get_template("sections.html.md").module, macro)(**context)
    return made


def render_page(**context: object) -> str:
    """The whole document."""
    return _environment().get_template("page.html.md").render(context)


def data_script(value: object) -> Markup:
    """A JSON value as the text of a script element that no browser runs."""
    return Markup(json.dumps(value, ensure_ascii=True, allow_nan=False).translate(_IN_SCRIPT))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=ChainableUndefined,  # a summary may have been written by another version
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["library"] = lambda: library()
    made.filters |= {"json": data_script, "plain": plain}
    made.filters |= {one.__name__: _or_none(one) for one in (number, size, seconds, percent)}
    return made


def _finalized(value: object) -> object:
    """Of whatever a template shows: None is nothing, and only markup stands as it is."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else plain(value)


def _or_none(form: Callable[[object], str]) -> Callable[[object], str | None]:
    """A filter that leaves out what is not there."""
    return lambda value: (
        None if value is None or isinstance(value, ChainableUndefined) else form(value)
    )
