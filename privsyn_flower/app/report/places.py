"""A configuration as others may read it: keys and values that are not passed on, and the rest.

A page and a published folder go to others. Both ask here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from privsyn_flower.common.terminal import last_part, without_places
from privsyn_flower.config import RunConfig, Scalar, flat_defaults, toml_value

# Of the machine, or of whoever ran it: where things lie, whose they are, which servers and keys
# were used. They may be relative paths and names of hosts, which no pattern knows.
HERE = (
    "run-folder",
    "cache",
    "assets",
    "ledger",
    "population-name",
    "data.path",
    "data.public-path",
    "data.public-emails",
    "models.accelerate-arguments",
    "generation.base-url",
    "generation.api-key-env",
    "generation.vllm-python",
    "generation.vllm-arguments",
)
HIDDEN = "(set, not shown)"
_PLACE = re.compile(r"(?:^|[\s,=:])((?:~|[A-Za-z]:)?[/\\][^\s,]+)")
_WHOLE = re.compile(r"([\w.-]*=)?((?:~|[A-Za-z]:)?[/\\].*)")  # an item that is one path


def places(value: Scalar) -> list[str]:
    """The absolute paths in a value, which may be a list of NAME=PATH."""
    if not isinstance(value, str) or "://" in value:
        return []
    return _PLACE.findall(value)


def shareable(key: str, value: Scalar) -> Scalar:
    """A value as others may read it: HIDDEN for what is in HERE, and of paths the last part."""
    hub = isinstance(value, str) and value.startswith("hub:")  # everybody's
    if key in HERE and value != flat_defaults().get(key) and not hub:
        return HIDDEN
    if not isinstance(value, str):
        return value
    return ",".join(map(_item, value.split(",")))


def dataset_name(dataset: object) -> str:
    """`dataset` of a summary; of `files:PATH` the file's name alone."""
    source, colon, path = str(dataset).partition(":")
    return f"{source}:{last_part(path)}" if colon and _WHOLE.fullmatch(path) else str(dataset)


def _item(text: str) -> str:
    """One of a list, or all of a value; a path may hold spaces here."""
    whole = _WHOLE.fullmatch(text)
    return f"{whole[1] or ''}{last_part(whole[2])}" if whole else without_places(text)


def settings(config: RunConfig) -> str:
    """TOML of the method and of the keys that are not at their defaults; those that name places
    are left out."""
    left_out, top, tables = [], list[str](), dict[str, list[str]]()
    defaults = RunConfig.from_flat(flat_defaults()).flat()
    for key, value in config.flat().items():
        if value == defaults[key] and key != "method":
            continue
        if shareable(key, value) != value or places(value):
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
