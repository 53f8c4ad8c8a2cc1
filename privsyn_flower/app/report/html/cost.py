"""What it cost: bytes and computing of a user, the server's time, by stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privsyn_flower.app.report.html.charts import bars, figure
from privsyn_flower.app.report.html.markup import (
    Html,
    element,
    facts,
    is_number,
    joined,
    number,
    seconds,
    size,
    table,
)
from privsyn_flower.app.report.html.parts import OUTSIDE, Part, mapping, paragraph, small
from privsyn_flower.app.report.reading import RunFolder


def cost(run: RunFolder) -> Part:
    """Measured figures alone: what nobody measured is left out."""
    summary = run.summary or {}
    costs = mapping(mapping(summary.get("benchmark")).get("costs"))
    rows = run.metrics or [row for own in run.evaluations.values() for row in own]
    down, up = (
        summary.get(f"bytes_{way}_per_user_round", _largest(rows, f"bytes_{way}_per_node"))
        for way in ("down", "up")
    )
    pairs = [
        ("down to a user in a round", size(down) if down is not None else None),
        ("up from a user in a round", size(up) if up is not None else None),
        ("down to all nodes", _size(summary.get("bytes_down_all_nodes"))),
        ("up from all nodes", _size(summary.get("bytes_up_all_nodes"))),
        ("wall time", _time(summary.get("wall_seconds"))),
    ]
    body = [facts(pairs), *_stages(run)]
    if costs:
        body.append(_benchmark(costs))
    elif not any(value is not None for _, value in pairs):
        body.insert(0, paragraph("No cost is known yet."))
    return Part("cost", "What it cost", joined(body))


def _benchmark(costs: Mapping[str, Any]) -> Html:
    """What stands under `benchmark`: the time that private text took."""
    own = facts(
        [
            (
                "device CPU, a user in a round",
                _time(costs.get("client_cpu_seconds_per_user_round")),
            ),
            ("device CPU, a user in the run", _time(costs.get("client_cpu_seconds_per_user"))),
            ("server, without the exchange", _time(costs.get("server_wall_seconds"))),
            ("releases", number(costs["releases"]) if "releases" in costs else None),
        ]
    )
    told = small("Device times are of simulated nodes on this machine: no device tells its own.")
    mark = element("p", OUTSIDE, class_="mark")
    return element(
        "div", element("h3", "Computing, of the benchmark"), mark, own, told, class_="outside"
    )


def _largest(rows: list[dict[str, object]], key: str) -> object:
    return max((row[key] for row in rows if is_number(row.get(key))), default=None)  # type: ignore[type-var]


def _size(value: object) -> str | None:
    return size(value) if value is not None else None


def _time(value: object) -> str | None:
    return seconds(value) if value is not None else None


def _stages(run: RunFolder) -> list[Html]:
    """Wall seconds by stage."""
    stored = mapping((run.summary or {}).get("stage_seconds")) or run.seconds
    spent = {str(name): value for name, value in stored.items() if is_number(value)}
    if not spent:
        return []
    data = [{"name": name.replace("_", " "), "value": value} for name, value in spent.items()]
    whole = sum(spent.values())
    rows = [
        [str(one["name"]), seconds(one["value"]), f"{value / whole:.1%}" if whole else "-"]
        for one, value in zip(data, spent.values(), strict=True)
    ]
    remark = f"{seconds(whole)} together."
    listing = table("Wall time by stage", ["stage", "time", "share"], rows)
    return [figure("Wall time by stage", remark, listing, lambda: bars(data, value="seconds"))]
