"""Embeddings kept between messages: a device starts a fresh process for each one.

Two promises carry user-level privacy. A user's rows are a function of that user's texts alone:
every call of the embedder sees one user, so neither a batch's padding and rounding nor a failure
reaches anyone else. And private rows, which can be inverted to text, are kept for their owner
only, and no longer than the text (`vectors.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from privsyn_flower.arrays import F32, I32
from privsyn_flower.files import DataError, UnavailableError, build_file

from .findings import NODE_LOG
from .vectors import VectorFile

Embed = Callable[[list[str]], npt.NDArray[np.floating]]
Content = tuple[tuple[str, tuple[str, ...]], ...]

BATCH = 1024  # texts embedded between two commits: what an interruption can cost
MEMO_BYTES = 512 * 2**20  # embeddings kept in this process, the latest first
ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)  # of the process; no user's failure
# No embedder, whoever's text it is for. But it is asked for only where rows are missing, so a text
# that changed may be what shows it: users whose rows are kept must not go with the others.
NO_EMBEDDER = (UnavailableError, ImportError)


class EmbeddingCache:
    """A node's private embeddings on disk, per user, by (embedder, user's texts in order).

    folder: made 0700, its files 0600. fingerprint: the embedder's content hash. Two processes
    may use one folder at once; both may then compute a missing row, and either result stays.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self._file = VectorFile(self.folder, fingerprint)

    def get(self, users: Mapping[str, Sequence[str]], embed: Embed) -> tuple[F32, I32]:
        """users' texts (PRIVATE) -> rows (n, d) float32 and each row's user index (n,) int32.

        `users` is the node's whole content: rows kept of anyone else, or of text that a user no
        longer has, are erased. Rows follow the order of users and texts; index i is the i-th key
        of `users`. Only what is missing is embedded, one user at a time: embed(texts) ->
        (len(texts), d), finite. A user for whom `embed` fails in any way, MemoryError and Rust
        panics included, has no rows, which the node's local log says; nobody else is affected. A
        cache that cannot be read or written is done without. Both arrays are read-only: a
        repeat in this process returns them again.

        Where there is no embedder (ImportError, UnavailableError), users with kept rows have theirs
        and the others none.
        """
        content: Content = tuple((user, tuple(texts)) for user, texts in users.items())
        key = (str(self.folder), self.fingerprint, content)
        with _memo_lock:
            known = _memo.get(key)
            if known is not None:
                _memo.move_to_end(key)
                return known
        found = self._rows_by_user(content, embed)
        result = _joined(content, found, embed)
        if all(user in found for user, texts in content if texts):  # a failure may pass
            _remember(key, result)
        return result

    def forget(self, user_id: str) -> bool:
        """Erase a user's embeddings of every model; whether there were any.

        Raises sqlite3.Error or OSError when they cannot be erased.
        """
        with _memo_lock:
            for key in [key for key in _memo if key[0] == str(self.folder)]:
                if any(user == user_id for user, _ in key[2]):
                    del _memo[key]
        return self._file.forget(user_id)

    def _rows_by_user(self, content: Content, embed: Embed) -> dict[str, F32]:
        """user -> rows, all of one width; users without text or whose text fails are left out."""
        wanted = {user: texts_hash(texts) for user, texts in content if texts}
        found = self._read(wanted)
        usable = True
        missing = [i for i, (user, texts) in enumerate(content) if texts and user not in found]
        for batch in _batches(content, missing):
            fresh = _embed_users(content, batch, embed)
            found |= fresh
            usable = usable and self._write(fresh, wanted)
        if len({rows.shape[1] for rows in found.values()}) > 1:
            width = _width(embed)
            wrong = [
                i
                for i, (user, _) in enumerate(content)
                if user in found and found[user].shape[1] != width
            ]
            NODE_LOG.warning("%d users had cached rows of another width", len(wrong))
            fresh = _embed_users(content, wrong, embed)
            found = {u: r for u, r in (found | fresh).items() if r.shape[1] == width}
            self._write({u: r for u, r in fresh.items() if u in found}, wanted)
        return found

    def _read(self, wanted: Mapping[str, bytes]) -> dict[str, F32]:
        try:
            self._file.keep_only(wanted)
            return self._file.read(wanted)
        except Exception as error:
            self._explain("read", error)
            return {}

    def _write(self, fresh: Mapping[str, F32], wanted: Mapping[str, bytes]) -> bool:
        try:
            self._file.write(fresh, wanted)
        except Exception as error:
            self._explain("written", error)
            return False
        return True

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
    digest = hashlib.sha256(np.asarray([len(part) for part in encoded], dtype="<i8").tobytes())
    digest.update(b"".join(encoded))
    return digest.digest()


def _joined(content: Content, found: Mapping[str, F32], embed: Embed) -> tuple[F32, I32]:
    """Rows of all users below each other, and each row's user index; both read-only."""
    blocks = [found[user] for user, _ in content if user in found]
    # When nobody has rows, any text tells the width, so that callers need no branch.
    rows = np.concatenate(blocks or [np.empty((0, _width(embed)), dtype=np.float32)])
    counts = [len(found[user]) if user in found else 0 for user, _ in content]
    owner = np.repeat(np.arange(len(content), dtype=np.int32), counts)
    rows.flags.writeable = owner.flags.writeable = False
    return rows, owner


def _embed_users(content: Content, positions: Sequence[int], embed: Embed) -> dict[str, F32]:
    """user -> rows for the users at `positions`, each embedded alone; those who fail are out."""
    fresh: dict[str, F32] = {}
    for position in positions:
        user, texts = content[position]
        try:
            rows = _one_user(position, texts, embed)
        except NO_EMBEDDER as error:
            NODE_LOG.warning("no embedder (%s): only kept rows count", type(error).__name__)
            break
        if rows is not None:
            fresh[user] = rows
    return fresh


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


def _batches(content: Content, positions: Sequence[int]) -> Iterator[list[int]]:
    """Positions in runs of about BATCH texts."""
    batch: list[int] = []
    size = 0
    for position in positions:
        batch.append(position)
        size += len(content[position][1])
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _checked(rows: npt.NDArray[np.floating], count: int) -> F32:
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[0] != count or rows.shape[1] == 0:
        raise ValueError(f"the embedder returned shape {rows.shape} for {count} texts")
    return rows


def _remember(key: tuple[str, str, Content], result: tuple[F32, I32]) -> None:
    with _memo_lock:
        _memo[key] = result
        while len(_memo) > 1 and sum(rows.nbytes for rows, _ in _memo.values()) > MEMO_BYTES:
            _memo.popitem(last=False)


_memo: OrderedDict[tuple[str, str, Content], tuple[F32, I32]] = OrderedDict()
_memo_lock = threading.Lock()
