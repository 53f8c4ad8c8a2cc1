"""HTML that cannot be forgotten to escape: text becomes markup here, and nowhere else.

A child that is a plain string is escaped; one of type `Html` stands as it is. What steers a
terminal or turns the direction of writing around is written out (`terminal.escaped`), so that a
text can neither hide a part of itself nor reorder what stands beside it.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from privsyn_flower.terminal import escaped

_SURROGATES = re.compile("[\ud800-\udfff]")  # JSON may hold half of a pair; UTF-8 may not
_EMPTY = {"meta", "input", "br", "link"}
# In a script element: what would end it, or begin a comment in it, is written as JSON escapes it.
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

Child = object  # an Html, or anything that is shown as its escaped text


class Html(str):
    """Markup that may stand in a page as it is."""

    __slots__ = ()


def plain(value: object) -> str:
    """A value as text that shows all of itself."""
    return _SURROGATES.sub("\ufffd", escaped(str(value)))


def shown(value: Child) -> Html:
    """A child as markup: escaped, unless it is markup already. None is nothing."""
    if value is None:
        return Html()
    return value if isinstance(value, Html) else Html(html.escape(plain(value)))


def joined(children: Iterable[Child]) -> Html:
    """Children one after the other."""
    return Html("".join(map(shown, children)))


def element(name: str, /, *children: Child, **attributes: object) -> Html:
    """<name attributes>children</name>. An attribute's trailing underscore is dropped and others
    become hyphens; None and False leave it out, True gives it no value."""
    told = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = key.rstrip("_").replace("_", "-")
        told += f" {written}" if value is True else f' {written}="{html.escape(plain(value))}"'
    if name in _EMPTY:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{joined(children)}</{name}>")


def data_script(value: object, class_: str) -> Html:
    """A JSON value in a script element that no browser runs."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False).translate(_IN_SCRIPT)
    return Html(f'<script type="application/json" class="{html.escape(class_)}">{text}</script>')


def table(
    caption: str,
    headings: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    *,
    words: int = 1,
    stacked: bool = False,
) -> Html:
    """A table in a box that scrolls by keyboard, too. words: leading columns that are text; the
    others are aligned as numbers. stacked: for long texts: on a narrow screen its cells stand one
    below the other, each with its heading."""

    def cells(row: Sequence[Child]) -> Html:
        first = element("th", row[0], scope="row")
        rest = [
            element(
                "td",
                cell,
                class_=None if place < words else "number",
                data_label=headings[place] if stacked else None,
            )
            for place, cell in enumerate(row[1:], start=1)
        ]
        return element("tr", first, *rest)

    head = [
        element("th", name, scope="col", class_=None if place < words else "number")
        for place, name in enumerate(headings)
    ]
    body = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *map(cells, rows)),
    )
    kind = "scroll stacked" if stacked else "scroll"
    return element("div", body, class_=kind, tabindex=0, role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[Child, Child]]) -> Html:
    """Terms and what they come to; a pair whose value is None is left out."""
    items = [
        element("div", element("dt", term), element("dd", value))
        for term, value in pairs
        if value is not None
    ]
    return element("dl", *items, class_="facts")


def bullets(items: Iterable[Child], class_: str | None = None) -> Html:
    """A list."""
    return element("ul", *(element("li", item) for item in items), class_=class_)


def folded(summary: Child, *children: Child, open_: bool = False) -> Html:
    """What is shown on demand; by keyboard, and without JavaScript, too."""
    return element("details", element("summary", summary), *children, open=open_)


# Numbers -----------------------------------------------------------------------------------
#
# A summary may have been written by another version, or by hand: what is no number is shown as it
# is, never taken for one.


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: object, form: str = ",.4g") -> str:
    """A number in the given form; a dash for None, and other values as they are."""
    if value is None:
        return "-"
    if not is_number(value):
        return str(value)
    if form == ",.4g" and float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return format(value, form)


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


def is_triple(values: object) -> TypeGuard[Sequence[float]]:
    """Whether a JSON value is [value, low, high]."""
    return isinstance(values, list | tuple) and len(values) == 3 and all(map(is_number, values))
