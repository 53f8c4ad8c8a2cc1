"""Embeddings kept between messages: a device starts a fresh process for each one.

Private embeddings can be inverted to text: their folder is the owner's only (0700), a row is
deleted as soon as the user's text changes or the user is forgotten, and SQLite overwrites what
it deletes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .storage import PRIVATE_FILE, make_private, write_atomic

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Embed = Callable[[list[str]], npt.NDArray[np.floating]]
Content = tuple[tuple[str, tuple[str, ...]], ...]

BATCH = 1024  # texts embedded between two commits: what an interruption can cost
MEMO_BYTES = 512 * 2**20  # embeddings kept in this process, the latest first
_SCHEMA = """CREATE TABLE IF NOT EXISTS embeddings (
    user TEXT NOT NULL, model TEXT NOT NULL, texts BLOB NOT NULL,
    rows INTEGER NOT NULL, vectors BLOB NOT NULL, PRIMARY KEY (user, model))"""


class EmbeddingCache:
    """A node's private embeddings on disk, per user, by (embedder, user's texts in order).

    folder: made 0700, its files 0600. fingerprint: the embedder's content hash. Two processes
    may use one folder at once; both may then compute a missing row, and either result stays.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self._path = self.folder / "embeddings.sqlite"

    def get(self, users: Mapping[str, Sequence[str]], embed: Embed) -> tuple[Floats, Ints]:
        """users' texts (PRIVATE) -> rows (n, d) float32 and each row's user index (n,) int32.

        Rows follow the order of users and texts; index i is the i-th key of `users`. Only what
        is missing is embedded: embed(texts) -> (len(texts), d). Both arrays are read-only: a
        repeat in this process returns them again. Raises ValueError for another shape.
        """
        content: Content = tuple((user, tuple(texts)) for user, texts in users.items())
        key = (str(self.folder), self.fingerprint, content)
        with _memo_lock:
            known = _memo.get(key)
            if known is not None:
                _memo.move_to_end(key)
                return known
        result = self._assemble(content, embed)
        with _memo_lock:
            _memo[key] = result
            while len(_memo) > 1 and sum(rows.nbytes for rows, _ in _memo.values()) > MEMO_BYTES:
                _memo.popitem(last=False)
        return result

    def forget(self, user_id: str) -> bool:
        """Erase a user's embeddings of every model; whether there were any."""
        with _memo_lock:
            for key in [key for key in _memo if key[0] == str(self.folder)]:
                if any(user == user_id for user, _ in key[2]):
                    del _memo[key]
        if not self._path.exists():
            return False
        with self._open() as database, database:
            return (
                database.execute("DELETE FROM embeddings WHERE user = ?", (user_id,)).rowcount > 0
            )

    def _assemble(self, content: Content, embed: Embed) -> tuple[Floats, Ints]:
        wanted = {user: texts_hash(texts) for user, texts in content if texts}
        with self._open() as database:
            found = self._read(database, wanted)
            missing = [(user, texts) for user, texts in content if texts and user not in found]
            for batch in _batches(missing):
                fresh = _embed_users(batch, embed)
                self._store(database, fresh, wanted)
                found |= fresh
        blocks = [found[user] for user, texts in content if texts]
        # When nobody has text, any text tells the width, so that callers need no branch.
        width = (blocks or [_checked(embed([" "]), 1)])[0].shape[1]
        if any(block.shape[1] != width for block in blocks):
            raise ValueError(
                f"cached embeddings of {self.fingerprint!r} have different widths: "
                "the fingerprint must change with the model"
            )
        rows = np.concatenate(blocks) if blocks else np.empty((0, width), dtype=np.float32)
        owner = np.repeat(np.arange(len(content), dtype=np.int32), [len(t) for _, t in content])
        rows.flags.writeable = owner.flags.writeable = False
        return rows, owner

    def _read(self, database: sqlite3.Connection, wanted: dict[str, bytes]) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        names = list(wanted)
        for start in range(0, len(names), 500):  # SQLite allows 999 parameters
            part = names[start : start + 500]
            marks = ",".join("?" * len(part))
            query = (
                "SELECT user, texts, rows, vectors FROM embeddings "
                f"WHERE model = ? AND user IN ({marks})"
            )
            for user, texts, rows, vectors in database.execute(query, [self.fingerprint, *part]):
                if texts == wanted[user]:
                    found[user] = np.frombuffer(vectors, dtype=np.float32).reshape(rows, -1)
        return found

    def _store(
        self, database: sqlite3.Connection, fresh: dict[str, Floats], wanted: dict[str, bytes]
    ) -> None:
        with database:
            for user, block in fresh.items():
                # Rows of text the user no longer has go, whichever model made them.
                database.execute(
                    "DELETE FROM embeddings WHERE user = ? AND (texts != ? OR model = ?)",
                    (user, wanted[user], self.fingerprint),
                )
                if np.isfinite(block).all():  # a fault of the model is not worth keeping
                    database.execute(
                        "INSERT INTO embeddings VALUES (?, ?, ?, ?, ?)",
                        (user, self.fingerprint, wanted[user], len(block), block.tobytes()),
                    )

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        make_private(self.folder)
        # Made first with the mode that SQLite then gives to its journal too.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE))
        self._path.chmod(PRIVATE_FILE)
        database = sqlite3.connect(self._path, timeout=120)
        try:
            database.execute("PRAGMA secure_delete = ON")
            database.execute(_SCHEMA)
            yield database
        finally:
            database.close()


def cached_embeddings(folder: Path, fingerprint: str, texts: Sequence[str], embed: Embed) -> Floats:
    """Embeddings (n, d) float32 of public texts, kept as .npy by content and embedder.

    embed: called once with all texts when they are not there yet. Read-only.
    """
    name = hashlib.sha256(fingerprint.encode() + b"\0" + texts_hash(texts)).hexdigest()
    path = Path(folder) / f"{name[:32]}.npy"
    if not path.exists():
        fresh = _checked(embed(list(texts)), len(texts))

        def save(scratch: Path) -> None:
            with scratch.open("wb") as handle:
                np.save(handle, fresh)

        write_atomic(path, save)
    rows: Floats = np.load(path)
    rows.flags.writeable = False
    return rows


def texts_hash(texts: Sequence[str]) -> bytes:
    """sha256 of texts in order; their lengths are hashed too, so that borders count."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    digest = hashlib.sha256(np.asarray([len(part) for part in encoded], dtype="<i8").tobytes())
    digest.update(b"".join(encoded))
    return digest.digest()


def _embed_users(batch: list[tuple[str, tuple[str, ...]]], embed: Embed) -> dict[str, Floats]:
    texts = [text for _, own in batch for text in own]
    rows = _checked(embed(texts), len(texts))
    ends = np.cumsum([len(own) for _, own in batch])
    return {user: rows[end - len(own) : end] for (user, own), end in zip(batch, ends, strict=True)}


def _batches(
    missing: list[tuple[str, tuple[str, ...]]],
) -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    batch: list[tuple[str, tuple[str, ...]]] = []
    size = 0
    for user, texts in missing:
        batch.append((user, texts))
        size += len(texts)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _checked(rows: npt.NDArray[np.floating], count: int) -> Floats:
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[0] != count or rows.shape[1] == 0:
        raise ValueError(f"the embedder returned shape {rows.shape} for {count} texts")
    return rows


_memo: OrderedDict[tuple[str, str, Content], tuple[Floats, Ints]] = OrderedDict()
_memo_lock = threading.Lock()
