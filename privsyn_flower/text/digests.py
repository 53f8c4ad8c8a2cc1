"""sha256 of model files, kept as long as the files stay as they are.

A process hashes a file once. A device starts a process for every message, so a node keeps digests
in its own folder too. What is kept says which model this is, not how private anything is: whoever
can write there can read the node's keys and change its policy as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privsyn_flower import files
from privsyn_flower.files import replace_private

DIGESTS_FILE = "digests.json"
MOST = 64  # files that are kept
LARGEST = 1 << 19  # bytes of a file of digests
# A file may change again within one tick of its file system's clock and look the same. A file that
# rested for longer than any tick when it was hashed cannot.
RESTED = 2_000_000_000  # ns

# Of a file: start of the machine, device, inode, bytes, when content and inode changed in ns.
Stamp = tuple[Any, ...]

_seen: dict[str, tuple[Stamp, str]] = {}  # by this process
_kept: dict[str, tuple[Stamp, str]] = {}  # by the node's folder, while a block below runs


def file_digest(path: Path) -> str:
    """sha256 of a file in hex, hashed again when anything about it changed."""
    name, stamp = str(path.resolve()), _stamp(path)
    for known in (_seen, _kept):
        entry = known.get(name)
        if entry is not None and entry[0] == stamp:
            _seen[name] = entry
            return entry[1]
    rested = time.time_ns() - max(stamp[-2:]) > RESTED
    digest = files.file_digest(path)
    if rested and _stamp(path) == stamp:
        _seen[name] = (stamp, digest)
    return digest


@contextlib.contextmanager
def remembered(path: Path) -> Iterator[None]:
    """Inside, digests are also taken from and kept in `path`, a file of the node's owner alone.

    A file that cannot be used or written is done without.
    """
    before = _read(path)
    _kept.update(before)
    try:
        yield
    finally:
        _kept.clear()
    if any(before.get(name) != entry for name, entry in _seen.items()):
        rows = list((before | _seen).items())[-MOST:]
        with contextlib.suppress(OSError):
            files.private_folder(path.parent)
            replace_private(path, json.dumps(dict(rows)).encode())


def _stamp(path: Path) -> Stamp:
    facts = path.stat()
    times = facts.st_mtime_ns, facts.st_ctime_ns
    return (_boot(), facts.st_dev, facts.st_ino, facts.st_size, *times)


def _boot() -> str:
    """This start of the machine: after another one a file system may be a new image of the same
    inodes and times."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _read(path: Path) -> dict[str, tuple[Stamp, str]]:
    """The entries of a file of digests; none where it is damaged, or others can write it."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {}
            rows: Any = json.loads(file.read(LARGEST))
        return {str(name): (tuple(stamp), str(digest)) for name, (stamp, digest) in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
