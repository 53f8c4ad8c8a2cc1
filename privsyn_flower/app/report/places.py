"""What a configuration says of a machine and its owner: keys and values that are not passed on.

A page and a published folder go to others. Both ask here.
"""

from __future__ import annotations

import re

from privsyn_flower.config import Scalar, flat_defaults
from privsyn_flower.terminal import last_part, without_places

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


def passed_on(key: str, value: Scalar) -> Scalar:
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
