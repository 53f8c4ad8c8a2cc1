"""Charts by Altair, drawn in the browser by a library that stands in the page itself.

The extra `report` brings both; without it every chart is the table that stands beside it anyway.
Colours are the page's own variables, so that a chart follows dark and light mode and print.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from privsyn_flower.app.report.html.markup import plain
from privsyn_flower.app.report.summaries import is_number

Rows = Sequence[Mapping[str, Any]]
LABEL, LINE_PX = 28, 14  # characters of a line of an axis' label, its height
INK, MUTED, LINE, OWN, OTHER = (f"var(--{name})" for name in ("ink", "muted", "line", "own", "bar"))
# Told apart without colour, too.
DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])
SERIES = (OWN, OTHER, "var(--third)", MUTED)
ENDS = ("value", "low", "high")


def by_round(metrics: Rows, key: str, series: str) -> list[dict[str, Any]]:
    """Rows of `lines`, of the rounds that have a number under the key."""
    return [
        {"x": row["round"], "value": row[key], "series": series}
        for row in metrics
        if is_number(row.get("round")) and is_number(row.get(key))
    ]


def spanned(ends: Sequence[float], **row: Any) -> dict[str, Any]:
    """A row with a value and the ends of its interval. ends: [value, low, high]."""
    return {**row, **dict(zip(ENDS, ends, strict=True))}


def bars(rows: Rows, *, value: str, label: str = "", upright: bool = False) -> dict[str, Any]:
    """Bars of rows {"name", "value"}, in their order: lying, a name on each, or upright."""
    import altair as alt

    named, names, tall = _named(rows)
    if upright:
        named, names = _shown(rows), alt.Axis(title=label or None, labelAngle=0)
    own = alt.condition("datum.own", alt.value(OWN), alt.value(OTHER))
    plain = alt.value(OWN)
    base = alt.Chart(alt.Data(values=named)).mark_bar(cornerRadiusEnd=2)
    name = {"shorthand": "name:N", "sort": None, "axis": names}
    length = {"shorthand": "value:Q", "axis": alt.Axis(title=value, tickCount=5)}
    x, y = (alt.X(**name), alt.Y(**length)) if upright else (alt.X(**length), alt.Y(**name))
    chart = base.encode(
        x=x,
        y=y,
        color=own if any("own" in row for row in rows) else plain,
        tooltip=[alt.Tooltip("name:N", title=label or "of"), alt.Tooltip("value:Q", title=value)],
    )
    return _finished(chart.properties(height=220 if upright else tall))


def intervals(rows: Rows, *, value: str, zero: bool = False) -> dict[str, Any]:
    """Points with intervals of rows {"name", "value", "low", "high", "own"}, one below the other.

    zero: with a line at 0, for differences.
    """
    import altair as alt

    named, names, tall = _named(rows)
    data = alt.Data(values=named)
    colour = alt.condition("datum.own", alt.value(OWN), alt.value(OTHER))
    y = alt.Y("name:N", sort=None, axis=names)
    scale = alt.Scale(zero=zero)
    lines = (
        alt.Chart(data)
        .mark_rule(strokeWidth=3)
        .encode(
            x=alt.X("low:Q", scale=scale, axis=alt.Axis(title=value, tickCount=5)),
            x2="high:Q",
            y=y,
            color=colour,
        )
    )
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=alt.X("value:Q", scale=scale),
            y=y,
            color=colour,
            tooltip=["name:N", *(alt.Tooltip(f"{key}:Q", format=".4f") for key in ENDS)],
        )
    )
    layers = [lines, points]
    if zero:
        at = alt.Chart(alt.Data(values=[{"at": 0}]))
        layers.insert(0, at.mark_rule(strokeDash=[4, 3], color=MUTED).encode(x="at:Q"))
    return _finished(alt.layer(*layers).properties(height=tall))


def lines(
    rows: Rows, *, value: str, label: str = "round", budget: float | None = None, zero: bool = True
) -> dict[str, Any]:
    """Lines of rows {"x", "value", "series"}, with {"low", "high"} as bands where they have them.

    budget: drawn as a level line.
    """
    import altair as alt

    data = alt.Data(values=_shown(rows))
    names = list(dict.fromkeys(str(row["series"]) for row in _shown(rows)))
    several = alt.Legend(orient="top", title=None, labelLimit=260, symbolStrokeWidth=2)
    domain, used = names, (SERIES * len(names))[: len(names)]
    legend = several if len(names) > 1 else None
    colour = alt.Color("series:N", scale=alt.Scale(domain=domain, range=list(used)), legend=legend)
    dashes = alt.StrokeDash(
        "series:N",
        scale=alt.Scale(
            domain=domain, range=[list(d) for d in (DASHES * len(names))[: len(names)]]
        ),
        legend=legend,
    )
    places = sorted({row["x"] for row in rows})
    # Named one by one where they are few: at two or three rounds Vega also marks the halves.
    whole: dict[str, Any] = {"format": "d", "tickMinStep": 1}
    whole |= {"values": places} if len(places) <= 10 else {}
    steps = whole if label == "round" else {}
    x = alt.X("x:Q", axis=alt.Axis(title=label, **steps), scale=alt.Scale(nice=False))
    y = alt.Y("value:Q", axis=alt.Axis(title=value, tickCount=5), scale=alt.Scale(zero=zero))
    tips = [alt.Tooltip("x:Q", title=label), "series:N", alt.Tooltip("value:Q", format=",.4g")]
    few = len(rows) <= 40 * len(names)
    mark = alt.Chart(data).mark_line(point={"size": 45} if few else False, strokeWidth=2)
    layers: list[Any] = [mark.encode(x=x, y=y, color=colour, strokeDash=dashes, tooltip=tips)]
    if all("low" in row for row in rows):
        band = alt.Chart(data).mark_area(opacity=0.2)
        layers.insert(0, band.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour))
    if budget is not None:
        level = alt.Chart(alt.Data(values=[{"at": budget}]))
        layers.insert(0, level.mark_rule(strokeDash=[4, 3], color=MUTED).encode(y="at:Q"))
    return _finished(alt.layer(*layers).properties(height=220))


def _shown(rows: Rows) -> list[dict[str, Any]]:
    """Rows whose texts cannot reorder what stands beside them, as elsewhere on the page."""
    return [
        {key: plain(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    ]


def _wrapped(name: str) -> list[str]:
    """A name's lines; of one that is too long for any chart, its beginning and its end."""
    parts = [
        part if len(part) <= 5 * LABEL else f"{part[: 3 * LABEL]}\u2026{part[-2 * LABEL :]}"
        for part in name.split("\n")
    ]
    return [line for part in parts for line in textwrap.wrap(part, LABEL) or [""]]


def _named(rows: Rows) -> tuple[list[dict[str, Any]], Any, int]:
    """As `_shown`, each name whole, in as many lines as it needs; an axis that has room for them,
    and the height of all rows. A number: with a step, Vega-Lite warns of every chart."""
    import altair as alt

    own = _shown(rows)
    wrapped = {row["name"]: _wrapped(row["name"]) for row in own}
    most = max(map(len, wrapped.values()), default=1)
    # An axis centres the first line of a label, here all of them: the shorter begin further down.
    names = {
        name: "\n" * ((most - len(cut)) // 2) + "\n".join(cut) for name, cut in wrapped.items()
    }
    axis = alt.Axis(
        title=None,
        labelAngle=0,
        labelLimit=0,
        labelExpr="split(datum.label, '\\n')",
        labelLineHeight=LINE_PX,
        labelOffset=-LINE_PX * (most - 1) / 2,
    )
    tall = (25 + LINE_PX * (most - 1)) * len(names) + 10
    return [{**row, "name": names[row["name"]]} for row in own], axis, tall


def _finished(chart: Any) -> dict[str, Any]:
    """The specification, as wide as the page lets it be."""
    import altair as alt

    text = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
    spec: dict[str, Any] = (
        chart.properties(
            width="container",
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
        .configure(
            font="system-ui, sans-serif",
            background="transparent",
        )
        .configure_axis(
            **text,
            titleFontWeight="normal",
            gridColor=LINE,
            domainColor=LINE,
            tickColor=LINE,
            labelFlush=False,
            labelOverlap=True,
            labelSeparation=8,
        )
        .configure_legend(labelColor=INK, labelFontSize=12)
        .configure_view(stroke=None)
        .to_dict()
    )
    return spec
