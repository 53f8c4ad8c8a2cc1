"""Vectors of earlier rounds in a node's folder, PRIVATE: sums over its users, without noise.

Each lies in a file of its own, named by a random token of the records that paid for it: records
that were lost, or restored from a copy, know no vector that came after. A file that is damaged,
or stands under another's name, does not verify.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np

from privsyn_flower.common.arrays import I32, I64
from privsyn_flower.common.files import private_folder, replace_private

MOST_DAYS = 30
_CHECK = 32  # bytes in front of the integers
_NAME = re.compile(r"\.?([0-9a-f]{32})(\.|$)")  # of a vector, or of one that is being written


def new_token() -> str:
    """A name that nobody can have known before."""
    return secrets.token_hex(16)


def store_vector(folder: Path, token: str, vector: I64) -> None:
    """Write a vector (length,) for good, its integers modulo 2^32. Raises OSError."""
    integers = vector.astype("<i4").tobytes()  # sums are modulo 2^bits, bits <= 32
    replace_private(private_folder(folder) / token, _digest(token, integers) + integers)


def load_vector(folder: Path, token: str, length: int) -> I32:
    """The vector (length,) modulo 2^32. Raises OSError, and ValueError on another file."""
    path = folder / token
    if path.stat().st_size != _CHECK + 4 * length:  # before it is opened, whatever it is
        raise ValueError(f"{path} does not hold {length} integers")
    content = path.read_bytes()
    if content[:_CHECK] != _digest(token, memoryview(content)[_CHECK:]):
        raise ValueError(f"{path} is damaged, or another's")
    return np.frombuffer(content, "<i4", offset=_CHECK)


def sweep(folder: Path, tokens: Collection[str]) -> None:
    """Remove all vectors but these, what killed processes left of others, and these where they are
    older than MOST_DAYS: a run that ended early asks for none. Raises nothing."""
    oldest = time.time() - MOST_DAYS * 86_400
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            named = _NAME.match(path.name)
            with contextlib.suppress(OSError):
                if named and (named[1] not in tokens or path.stat().st_mtime < oldest):
                    path.unlink()


def _digest(token: str, content: bytes | memoryview) -> bytes:
    """Against damage and swapped names; whoever can write the file knows its name."""
    digest = hashlib.sha256(token.encode())
    digest.update(content)
    return digest.digest()
