"""Token ids of many texts, four bytes a token: two million short texts are 0.5 GB, not 5; what a
long evaluation of them has finished, so that a run that was killed does not do it again.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from privsyn_flower.common.arrays import I64
from privsyn_flower.common.files import private_folder, replace_private
from privsyn_flower.text.models.batches import SpecialTokens, encode

Rows = Sequence[Sequence[int]]

AT_ONCE = 4096  # texts tokenised together


class TokenRows(Sequence[list[int]]):
    """Rows of ids in one array. A slice is another of the same kind."""

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        ids, ends = array("i"), array("q", [0])
        for row in rows:
            ids.extend(row)
            ends.append(len(ids))
        self._ids = np.frombuffer(ids, dtype=np.int32) if ids else np.zeros(0, dtype=np.int32)
        self._ends = np.frombuffer(ends, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> list[int]: ...

    @overload
    def __getitem__(self, place: slice) -> TokenRows: ...

    def __getitem__(self, place: int | slice) -> list[int] | TokenRows:
        if isinstance(place, slice):
            return TokenRows(self[i] for i in range(*place.indices(len(self))))
        i = range(len(self))[place]
        found: list[int] = self._ids[self._ends[i] : self._ends[i + 1]].tolist()
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash((self._ids.tobytes(), self._ends.tobytes()))

    def save(self, path: Path) -> None:
        """Into an .npz file (0600)."""
        memory = io.BytesIO()
        np.savez(memory, ids=self._ids, ends=self._ends)
        replace_private(path, memory.getvalue())

    @classmethod
    def load(cls, path: Path) -> TokenRows:
        """What `save` wrote."""
        rows = cls(())
        with np.load(path) as stored:
            rows._ids, rows._ends = stored["ids"], stored["ends"]
        return rows

    @property
    def lengths(self) -> I64:
        """Tokens of each row (n,)."""
        return np.diff(self._ends)


def row_lengths(rows: Rows) -> I64:
    """Tokens of each row (n,)."""
    if isinstance(rows, TokenRows):
        return rows.lengths
    return np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))


def encoded(
    tokenizer: Any, texts: Sequence[str], length: int, special_tokens: SpecialTokens = "tokenizer"
) -> TokenRows:
    """Texts -> token ids as `batches.encode` has them; those without a token to predict are left
    out."""
    pieces = (texts[first : first + AT_ONCE] for first in range(0, len(texts), AT_ONCE))
    rows = (row for some in pieces for row in encode(tokenizer, some, length, special_tokens))
    return TokenRows(row for row in rows if len(row) > 1)


Compute = Callable[[Path | None], Any]


class Work:
    """Values by name, and a folder of checkpoints for each while it is made. PRIVATE (0700): a
    checkpoint may be of a model that was tuned on private text.

    root: a folder of this evaluation alone; None: nothing is kept.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root

    def once(self, name: str, about: Sequence[Any], compute: Compute) -> Any:
        """`compute(folder for checkpoints)`, or what it returned before for the same `about`.

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
