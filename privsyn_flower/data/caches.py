"""Embeddings kept between messages: a device starts a fresh process for each one.

Two invariants carry user-level privacy. A user's rows are a function of that user's texts alone:
every call of the embedder sees one user, so neither a batch's padding and rounding nor a failure
reaches anyone else. And private rows, which can be inverted to text, are kept for their owner
only, and no longer than the text (`vectors.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from privsyn_flower.common.arrays import F32, I32, I64
from privsyn_flower.common.files import DataError, UnavailableError, build_file

from .findings import NODE_LOG
from .values import label_of
from .vectors import VectorFile


def classes_of(
    texts: Iterable[Sequence[str]], owner: I32, users: int, labels: Sequence[str]
) -> I64:
    """The class of each row, PRIVATE: its label's place in the public list, -1 outside it.

    texts: of each of so many users, in order. owner: (n,) the user of each row, counted from 0. A
    user has a row for each text, or none at all where its texts could not be embedded.
    """
    place = {name: number for number, name in enumerate(labels)}
    rows = np.bincount(owner, minlength=users)
    found = [
        [place.get(label_of(text), -1) for text in own] if count else []
        for count, own in zip(rows, texts, strict=True)
    ]
    classes = np.array([number for own in found for number in own], dtype=np.int64)
    if outside := int((classes < 0).sum()):
        NODE_LOG.warning("%d texts are of no class that is asked about", outside)
    return classes


Embed = Callable[[list[str]], npt.NDArray[np.floating]]
Users = Mapping[str, Sequence[str]]

BATCH = 1024  # texts embedded between two commits: what an interruption can cost
MEMORY = 2**30  # bytes for embeddings, if nobody says how many
BLOCK_SHARE, MEMO_SHARE = 16, 2  # of these: a block of rows, and what is kept for the next round
ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)  # of the process; no user's failure
# No embedder, whoever's text it is for. But it is asked for only where rows are missing, so a text
# that changed may be what shows it: users whose rows are kept must not go with the others.
NO_EMBEDDER = (UnavailableError, ImportError)


class Block(NamedTuple):
    """Users one after another, and their embeddings, PRIVATE and read-only.

    first: how many users come before. users: their ids. rows: (n, d) float32. owner: (n,) int32,
    the user of each row, counted from the block's first.
    """

    first: int
    users: list[str]
    rows: F32
    owner: I32


class EmbeddingCache:
    """A node's private embeddings on disk, per user, by (embedder, user's texts in order).

    folder: made 0700, its files 0600. fingerprint: the embedder's content hash. memory: bytes of
    embeddings that a process may hold, more or less. Two processes may use one folder at once; both
    may then compute a missing row, and either result stays.
    """

    def __init__(self, folder: Path, fingerprint: str, memory: int = MEMORY) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.memory = memory
        self._file = VectorFile(self.folder, fingerprint)

    def get(self, users: Users, embed: Embed) -> tuple[F32, I32]:
        """users' texts (PRIVATE) -> rows (n, d) float32 and each row's user index (n,) int32.

        As `blocks`, in a single one, whatever memory that takes.
        """
        for block in list(self._blocks(users, embed, sys.maxsize)):  # to its end: it is kept then
            return block.rows, block.owner
        # When nobody has rows, any text tells the width, so that callers need no branch.
        return np.empty((0, _width(embed)), dtype=np.float32), np.empty(0, dtype=np.int32)

    def blocks(self, users: Users, embed: Embed) -> Iterator[Block]:
        """users' texts (PRIVATE) -> everybody's embeddings, a block of users after the other.

        `users` is the node's whole content: rows kept of anyone else, or of text that a user no
        longer has, are erased. Rows follow the order of users and texts. Nobody's rows depend on
        where a block ends: only what is missing is embedded, one user at a time: embed(texts) ->
        (len(texts), d), finite. A user for whom `embed` fails in any way, MemoryError and Rust
        panics included, has no rows, which the node's local log says; nobody else is affected. A
        cache that cannot be read or written is done without. What fits into half of `memory` is
        kept: a repeat in this process returns the same arrays again.

        Where there is no embedder (ImportError, UnavailableError), users with kept rows have theirs
        and the others none.
        """
        return self._blocks(users, embed, self.memory // BLOCK_SHARE)

    def _blocks(self, users: Users, embed: Embed, most: int) -> Iterator[Block]:
        content = _Content(users)
        key = (str(self.folder), self.fingerprint, most, content.digest())
        with _memo_lock:
            known = _memo.get(key)
            if known is not None:
                _memo.move_to_end(key)
        if known is not None:
            yield from known
            return
        limit, made = self.memory // MEMO_SHARE, list[Block]()
        texts, whole = int(content.counts.sum()), True
        for block in _Reading(self._file, content, embed).blocks(most):
            here = slice(block.first, block.first + len(block.users))
            # A failure may pass; and of what is too much for the memory no part is of use.
            whole = whole and 4 * block.rows.shape[1] * texts <= limit
            whole = whole and len(np.unique(block.owner)) == np.count_nonzero(content.counts[here])
            if whole:
                made.append(block)
            yield block
        if whole:
            _remember(key, made, limit)

    def forget(self, user_id: str) -> bool:
        """Erase a user's embeddings of every model; whether there were any.

        Raises sqlite3.Error or OSError when they cannot be erased.
        """
        with _memo_lock:
            for key in [key for key in _memo if key[0] == str(self.folder)]:
                if any(user_id in block.users for block in _memo[key]):
                    del _memo[key]
        return self._file.forget(user_id)


class _Content:
    """A node's whole content: its users' ids and, of their texts, hashes and numbers. PRIVATE.

    names: in their order. hashes: by user, empty for a user without text. counts: (users,).
    """

    def __init__(self, users: Users) -> None:
        self.users = users
        self.hashes: dict[str, bytes] = {}
        counts = array("q")
        for user, texts in users.items():
            self.hashes[user] = texts_hash(texts) if texts else b""
            counts.append(len(texts))
        self.names = list(self.hashes)
        self.counts = np.frombuffer(counts, dtype=np.int64)

    def digest(self) -> bytes:
        """Of users, their order and their texts."""
        digest = hashlib.sha256()
        for user, texts in self.hashes.items():
            name = user.encode("utf-8", "surrogatepass")
            digest.update(b"%d %d " % (len(name), len(texts)) + name + texts)
        return digest.digest()


class _Reading:
    """One pass over a node's users: what is kept of their rows, and what is embedded anew."""

    def __init__(self, file: VectorFile, content: _Content, embed: Embed) -> None:
        self._file, self._content, self._embed = file, content, embed
        self._writes = True
        self._fresh: dict[str, F32] = {}  # of the first users without kept rows
        self._tried: set[int] = set()  # their numbers
        self._width = 0  # of everybody's rows, as soon as it is known

    def blocks(self, most: int) -> Iterator[Block]:
        """Blocks of about `most` bytes of rows, of one user at least."""
        self._begin()
        names, ends = self._content.names, np.cumsum(self._content.counts)
        first = done = 0  # users and texts
        while first < len(names):
            end = len(names)
            if most < sys.maxsize:
                texts = most // (4 * self._width) if self._width else BATCH
                end = max(first + 1, int(np.searchsorted(ends, done + texts, side="right")))
            found = self._rows(range(first, end))
            parts = [found[user] for user in names[first:end] if user in found]
            width = self._width or _width(self._embed)
            rows = np.concatenate(parts or [np.empty((0, width), dtype=np.float32)])
            counts = [len(found[user]) if user in found else 0 for user in names[first:end]]
            owner = np.repeat(np.arange(end - first, dtype=np.int32), counts)
            del found, parts
            rows.flags.writeable = owner.flags.writeable = False
            yield Block(first, names[first:end], rows, owner)
            first, done = end, int(ends[end - 1])

    def _begin(self) -> None:
        """Erase what is stale, and find the width of everybody's rows before a block is out."""
        kept, widths = set[str](), set[int]()
        try:
            kept, widths = self._file.keep_only(self._content.hashes)
        except Exception as error:
            self._explain("read", error)
        names, counts = self._content.names, self._content.counts
        missing = (i for i, name in enumerate(names) if counts[i] and name not in kept)
        for batch in islice(self._batches(missing), 1):
            self._fresh = self._embedded(batch)
            self._tried = set(batch)
            widths |= {rows.shape[1] for rows in self._fresh.values()}
        if len(widths) > 1:
            self._width = _width(self._embed)
            NODE_LOG.warning("users had cached rows of another width than %d", self._width)
        elif widths:
            (self._width,) = widths

    def _rows(self, numbers: range) -> dict[str, F32]:
        """user -> rows, all of one width; users without text or whose text fails are left out."""
        names, counts, hashes = self._content.names, self._content.counts, self._content.hashes
        own = [names[i] for i in numbers if counts[i]]
        found = {user: self._fresh.pop(user) for user in own if user in self._fresh}
        try:
            found |= self._file.read({user: hashes[user] for user in own if user not in found})
        except Exception as error:
            self._explain("read", error)
        found = self._of_width(found)
        missing = (
            i for i in numbers if counts[i] and i not in self._tried and names[i] not in found
        )
        for batch in self._batches(list(missing)):
            found |= self._of_width(self._embedded(batch))
        return found

    def _of_width(self, found: dict[str, F32]) -> dict[str, F32]:
        """Those of the width of all; where it was not known, of the first."""
        if found and not self._width:
            self._width = next(iter(found.values())).shape[1]
        return {user: rows for user, rows in found.items() if rows.shape[1] == self._width}

    def _embedded(self, numbers: Iterable[int]) -> dict[str, F32]:
        """user -> rows, each embedded alone, and written down; those who fail are out."""
        fresh: dict[str, F32] = {}
        for number in numbers:
            user = self._content.names[number]
            try:
                rows = _one_user(number, self._content.users[user], self._embed)
            except NO_EMBEDDER as error:
                reason = type(error).__name__
                if _width(self._embed):  # it is there: this user's text alone asked for more
                    NODE_LOG.warning("user %d of this node has no embeddings: %s", number, reason)
                    continue
                NODE_LOG.warning("no embedder (%s): only kept rows count", reason)
                break
            if rows is not None:
                fresh[user] = rows
        if self._writes:
            try:
                self._file.write(fresh, self._content.hashes)
            except Exception as error:
                self._writes = False
                self._explain("written", error)
        return fresh

    def _batches(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        """Users in runs of about BATCH texts."""
        batch: list[int] = []
        size = 0
        for number in numbers:
            batch.append(number)
            size += self._content.counts[number]
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _explain(self, verb: str, error: Exception) -> None:
        NODE_LOG.warning(
            "the embedding cache cannot be %s (%s); going on without it", verb, type(error).__name__
        )
        try:
            self._file.discard_broken(error)
        except OSError:
            NODE_LOG.warning("the damaged embedding cache cannot be removed either")


def cached_embeddings(folder: Path, fingerprint: str, texts: Sequence[str], embed: Embed) -> F32:
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

        build_file(path, save)
    try:
        rows: F32 = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} is damaged ({type(error).__name__}): delete it, and it is made again"
        ) from None
    rows.flags.writeable = False
    return rows


def texts_hash(texts: Sequence[str]) -> bytes:
    """sha256 of texts in order; their lengths are hashed too, so that borders count."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = struct.pack(f"<{len(encoded)}q", *map(len, encoded))
    return hashlib.sha256(lengths + b"".join(encoded)).digest()


def _one_user(position: int, texts: Sequence[str], embed: Embed) -> F32 | None:
    """One user's rows, or None with a line in the local log, which quotes nothing."""
    try:
        rows = _checked(embed(list(texts)), len(texts))
        if np.isfinite(rows).all():
            return rows
        reason = "rows that are not finite"
    except (*ENDS, *NO_EMBEDDER):
        raise
    except BaseException as error:  # a panic in the tokenizer's Rust code is no Exception
        reason = type(error).__name__
    NODE_LOG.warning("user %d of this node has no embeddings: %s", position, reason)
    return None


def _width(embed: Embed) -> int:
    """d, from a text that is nobody's; 0 when even that cannot be embedded."""
    with contextlib.suppress(*NO_EMBEDDER):
        rows = _one_user(-1, [" "], embed)
        return 0 if rows is None else rows.shape[1]
    return 0


def _checked(rows: npt.NDArray[np.floating], count: int) -> F32:
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[0] != count or rows.shape[1] == 0:
        raise ValueError(f"the embedder returned shape {rows.shape} for {count} texts")
    return rows


def _remember(key: _Key, blocks: list[Block], limit: int) -> None:
    """Keep blocks, and of others' what `limit` bytes then have room for, the latest first."""
    with _memo_lock:
        _memo[key] = blocks
        size = sum(block.rows.nbytes for kept in _memo.values() for block in kept)
        while size > limit and len(_memo) > 1:
            _, gone = _memo.popitem(last=False)
            size -= sum(block.rows.nbytes for block in gone)


_Key = tuple[str, str, int, bytes]  # folder, fingerprint, bytes of a block, digest of the content
_memo: OrderedDict[_Key, list[Block]] = OrderedDict()
_memo_lock = threading.Lock()
