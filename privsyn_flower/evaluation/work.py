"""What a long evaluation has finished, so that a run that was killed does not do it again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.files import private_folder, replace_private
from privsyn_flower.evaluation.rows import Rows

Compute = Callable[[Path | None], Any]


class Work:
    """Values by name, and a folder of checkpoints for each while it is made. PRIVATE (0700): a
    checkpoint may be of a model that was tuned on private text.

    root: a folder of this evaluation alone; None: nothing is kept.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root

    def once(self, name: str, about: Sequence[Any], compute: Compute) -> Any:
        """`make(folder for checkpoints)`, or what it returned before for the same `about`.

        The value and `about` are what JSON can hold; all that the value depends on belongs into
        `about`.
        """
        if self.root is None:
            return compute(None)
        key = hashlib.sha256(json.dumps([name, *about]).encode()).hexdigest()[:24]
        path = private_folder(self.root) / f"{key}.json"
        if path.is_file():
            return json.loads(path.read_text("utf-8"))
        folder = self.folder(key)
        value = compute(folder)
        replace_private(path, json.dumps(value).encode())
        shutil.rmtree(self.root / key)
        return value

    def folder(self, name: str) -> Path | None:
        """A folder of that name, for checkpoints."""
        return private_folder(private_folder(self.root) / name) if self.root else None

    def end(self) -> None:
        """All is done, and what was kept is removed."""
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)


def rows_digest(rows: Rows) -> str:
    """sha256 of the ids and the ends of rows."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.asarray([len(row), *row], dtype=np.int32).tobytes())
    return digest.hexdigest()
