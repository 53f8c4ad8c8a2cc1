"""Text becomes markup in the templates alone, by Jinja2, which escapes whatever it is given.

What steers a terminal or turns the direction of writing around is written out before
(`terminal.escaped`), so that a text can neither hide a part of itself nor reorder what stands
beside it. No Python code here puts a tag together.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup

from privsyn_flower.app.report.html.library import library as library  # the page's, too
from privsyn_flower.common.terminal import escaped

# They end in .md because Flower packs no other kind of text file into an app.
TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
_SURROGATES = re.compile("[\ud800-\udfff]")  # JSON may hold half of a pair; UTF-8 may not
# In a script element: what would end it, or begin a comment in it, is written as JSON escapes it.
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


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

    remark: what has to be known with it, epsilon above all. draw: makes the chart's Vega-Lite
    specification, called only where there is something to draw it; None: no chart.
    """

    title: str
    remark: str
    table: Table
    draw: Callable[[], dict[str, Any]] | None


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


# Numbers -----------------------------------------------------------------------------------
#
# A summary may have been written by another version, or by hand: what is no number is shown as it
# is, never taken for one.


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object, {} in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_triple(values: object) -> TypeGuard[Sequence[float]]:
    """Whether a JSON value is [value, low, high]."""
    return isinstance(values, list | tuple) and len(values) == 3 and all(map(is_number, values))


def number(value: object, form: str = ",.4g") -> str:
    """A number in the given form; a dash for None, and other values as they are."""
    if value is None:
        return "-"
    if not is_number(value):
        return str(value)
    if form == ",.4g" and float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return format(value, form)


def percent(value: object) -> str:
    """A share in words."""
    return f"{value:.1%}" if is_number(value) else number(value)


def size(value: object) -> str:
    """Bytes in words."""
    if not is_number(value):
        return number(value)
    amount = float(value)
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(amount) >= scale:
            return f"{amount / scale:.3g} {unit}"
    return f"{amount:,.0f} bytes"


def seconds(value: object) -> str:
    """A time in words."""
    if not is_number(value):
        return number(value)
    amount = float(value)
    if amount >= 5400:
        return f"{amount / 3600:.1f} h"
    if amount >= 90:
        return f"{amount / 60:.1f} min"
    return f"{amount:.3g} s"


def interval(values: object, *, sign: bool = False) -> str:
    """[value, low, high] as a figure with the ends of its interval."""
    if not is_triple(values):
        return number(values)
    form = "+.4f" if sign else ".4f"
    value, low, high = (format(one, form) for one in values)
    return f"{value} [{low}, {high}]"
