"""What a device notes for its owner: node.log, and counts. Readable by nobody else, sent nowhere.

The counts (`counts.json` in the node's folder) are of what the server knows as well: answers, and
refusals by their code. `gaussian` and `distance` add up the costs of all answered questions, so
they bound what any one user has spent, whoever took part: this is what monitoring may see, where
the records' own figures would tell who did. Simulated nodes keep no counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import PRIVATE_FILE, locked, private_folder, replace_private
from privsyn_flower.common.terminal import escaped
from privsyn_flower.protocol.question import Ticket

LOG_FILE = "node.log"
MOST_BYTES = 1 << 20  # then it becomes node.log.1, and the one before that goes
FORMATS = ("text", "json")  # of the node config's `log-format`
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


def node_logger(folder: Path, form: str = "text") -> logging.Logger:
    """The logger that writes to a node's folder, in one of FORMATS.

    The data package writes to the same logger, so open the log before the users' text.
    """
    logger = logging.getLogger("privsyn_flower.node")
    path = str(folder.absolute() / LOG_FILE)
    if [getattr(handler, "baseFilename", "") for handler in logger.handlers] != [path]:
        private_folder(folder)
        Path(path).touch(mode=PRIVATE_FILE)
        Path(path).chmod(PRIVATE_FILE)
        for old in logger.handlers:  # a simulated worker is one node after the other
            old.close()
        handler = _NodeLog(path, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8")
        text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        handler.setFormatter(_JsonLines() if form == "json" else text)
        logger.handlers = [handler]
        logger.propagate = False  # nothing reaches Flower's log, which the server may read
        logger.setLevel(logging.INFO)
    return logger


class _NodeLog(RotatingFileHandler):
    """A log that cannot be written is given up: its failure must change nothing else."""

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        super().doRollover()
        Path(self.baseFilename).chmod(PRIVATE_FILE)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # a closed one opens its file again, maybe in no folder
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        return


class _JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC, ISO 8601), level, message, and error, a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)


def note_answer(
    folder: Path, ticket: Ticket, cost: tuple[float, float], form: str = "text"
) -> None:
    """That a device answers a question of this cost (`lifetime.cost`); before the answer leaves.
    Raises nothing: a full disk is no answer. form: of its log."""

    def counted(counts: dict[str, Any]) -> None:
        counts["answers"] += 1
        counts["gaussian"] += cost[0]
        counts["distance"] += cost[1]
        counts["last_cost"], counts["last_answer"] = list(cost), round(time.time())

    with contextlib.suppress(Exception):
        node_logger(folder, form).info(
            "answered: %s of run %r, round %d, attempt %d",
            *(ticket.query, ticket.run, ticket.round, ticket.attempt),
        )
        _change(folder, counted)


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
