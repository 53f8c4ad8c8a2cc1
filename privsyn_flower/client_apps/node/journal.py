"""What a device notes of the questions it was asked: a line in node.log, and counts for its owner.

The counts (`counts.json` in the node's folder) are of what the server knows as well: answers, and
refusals by their code. `gaussian` and `distance` add up the costs of all answered questions, so
they bound what any one user has spent, whoever took part: this is what monitoring may see, where
the records' own figures would tell who did. Simulated nodes keep no counts.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.node_log import node_logger
from privsyn_flower.common.files import locked, private_folder, replace_private
from privsyn_flower.common.terminal import escaped
from privsyn_flower.protocol.question import Ticket

COUNTS_FILE = "counts.json"
LONGEST = 500  # characters of a refusal's text, which quotes the server
NOTHING: Mapping[str, Any] = {
    "answers": 0,
    "gaussian": 0.0,
    "distance": 0.0,
    "last_cost": [0.0, 0.0],
    "last_answer": None,
    "refusals": {},
}


def note_answer(node: Node, ticket: Ticket, cost: tuple[float, float]) -> None:
    """That a device answers a question of this cost (`records.cost`); before the answer leaves.
    Raises nothing: a full disk is no answer."""

    def counted(counts: dict[str, Any]) -> None:
        counts["answers"] += 1
        counts["gaussian"] += cost[0]
        counts["distance"] += cost[1]
        counts["last_cost"], counts["last_answer"] = list(cost), round(time.time())

    with contextlib.suppress(Exception):
        node.log().info(
            "answered: %s of run %r, round %d, attempt %d",
            *(ticket.query, ticket.run, ticket.round, ticket.attempt),
        )
        _change(node.cache, counted)


def note_refusal(folder: Path, code: str, text: str, form: str = "text") -> None:
    """That a device refused, and why. code: one of `Refusal` or of `secagg.Code`. Raises nothing.

    form: of its log.
    """

    def counted(counts: dict[str, Any]) -> None:
        counts["refusals"][code] = counts["refusals"].get(code, 0) + 1

    with contextlib.suppress(Exception):
        node_logger(folder, form).warning("refused: %s", escaped(" ".join(text.split()))[:LONGEST])
        _change(folder, counted)


def read_counts(folder: Path) -> dict[str, Any]:
    """The counts of a node's folder; zeros where there are none, or none that can be read."""
    found: dict[str, Any] = json.loads(json.dumps(NOTHING))
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads((folder / COUNTS_FILE).read_text(encoding="utf-8"))
        found |= kept if isinstance(kept, dict) and set(kept) == set(found) else {}
    return found


def _change(folder: Path, change: Any) -> None:
    private_folder(folder)
    with locked(folder / "counts.lock"):
        counts = read_counts(folder)
        change(counts)
        replace_private(folder / COUNTS_FILE, json.dumps(counts).encode())
