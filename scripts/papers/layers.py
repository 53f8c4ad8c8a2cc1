"""How a paper's configuration is written: layers of TOML, laid over each other.

A layer has the source of each number beside it; its comment lines go into the file's header. Of
two lines with the same key, the later layer's stays. `$words` are a file's own numbers, from the
rows of its paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

from privsyn_flower.config import flat_defaults

# DP-FTRL's files.
TRUSTED = """
# The noise is a TRUSTED aggregator's, who sees the sums without it: never to be ranked beside noise
# of the nodes without saying so.
method = "dp-ftrl"
[training]
noise = "aggregator"
"""


def laid(layers: Sequence[str], numbers: Mapping[str, str]) -> str:
    """The layers as one file: the header, then keys in the schema's order.

    Raises KeyError for a `$word` without a number, ValueError for an unknown key.
    """
    header, lines = [], {}
    for layer in layers:
        table = ""
        for line in Template(layer).substitute(numbers).strip().splitlines():
            if line.startswith("#"):
                header.append(line)
            elif line.startswith("["):
                table = line.strip("[]") + "."
            else:
                lines[table + line.partition(" = ")[0]] = line
    known = flat_defaults()
    if unknown := lines.keys() - known:
        raise ValueError(f"unknown keys: {sorted(unknown)}")
    blocks = {"": header}
    for key in known:
        if key in lines:
            table = key.rpartition(".")[0]
            blocks.setdefault(table, [f"[{table}]"]).append(lines[key])
    return "\n\n".join("\n".join(block) for block in blocks.values()) + "\n"
