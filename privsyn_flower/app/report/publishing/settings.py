"""A run's configuration as others may read it: what differs from the defaults, and no places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from privsyn_flower.app.report.places import passed_on, places
from privsyn_flower.config import RunConfig, flat_defaults, toml_value


def settings(config: RunConfig) -> str:
    """TOML of the method and of the keys that are not at their defaults; those that name places
    are left out."""
    left_out, top, tables = [], list[str](), dict[str, list[str]]()
    defaults = RunConfig.from_flat(flat_defaults()).flat()
    for key, value in config.flat().items():
        if value == defaults[key] and key != "method":
            continue
        if passed_on(key, value) != value or places(value):
            left_out.append(key)
            continue
        table, _, name = key.rpartition(".")
        (tables.setdefault(table, []) if table else top).append(f"{name} = {toml_value(value)}")
    head = ["# The method, and the keys that are not at their defaults."]
    if left_out:
        head.append(f"# Left out, as they name places: {', '.join(left_out)}")
    blocks = ["\n".join([*head, *top])]
    blocks += ["\n".join([f"[{table}]", *lines]) for table, lines in tables.items()]
    return "\n\n".join(blocks) + "\n"


def local_places(config: RunConfig, run: Path) -> Iterator[str]:
    """Paths of this machine that nothing published may name."""
    yield from (str(run), str(Path.home()))
    for value in config.flat().values():
        yield from places(value)


def named_places(text: str, known: Iterator[str]) -> list[str]:
    """Those of the known paths that a text names."""
    return sorted(
        place
        for place in {one.rstrip("/\\") for one in known}
        if len(place) > 1 and re.search(rf"(?<![\w./-]){re.escape(place)}(?![\w-])", text)
    )
