"""node.log: what a device's owner reads of its node. Readable by nobody else, and sent nowhere."""

from __future__ import annotations

import contextlib
import json
import logging
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from privsyn_flower.common.files import PRIVATE_FILE, private_folder

LOG_FILE = "node.log"
MOST_BYTES = 1 << 20  # then it becomes node.log.1, and the one before that goes
FORMATS = ("text", "json")  # of the node config's `log-format`


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
