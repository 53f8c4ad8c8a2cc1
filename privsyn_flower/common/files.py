"""Files that are whole or absent, on disk when a call returns, and private where they must be.

Several processes may be at them at once; a kill at any moment leaves the old file or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

logger = logging.getLogger("privsyn_flower")

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


class DataError(ValueError):
    """Data or its configuration is wrong; the text names the value, the bound and the key."""


class UnavailableError(RuntimeError):
    """A model or library is not on this machine: no user's text is the cause, so it may be told."""


def cache_home() -> Path:
    """The user's folder of caches: XDG_CACHE_HOME where it is an absolute path, else ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path("~/.cache").expanduser()


def default_cache() -> Path:
    """Where this package's caches live by default."""
    return cache_home() / "privsyn-flower"


def ledger_folder() -> Path:
    """Where populations' ledgers lie by default: data, not a cache that may be emptied. Below
    XDG_DATA_HOME where it is an absolute path, else ~/.local/share."""
    named = Path(os.environ.get("XDG_DATA_HOME", "")).expanduser()
    data = named if named.is_absolute() else Path("~/.local/share").expanduser()
    return data / "privsyn-flower" / "ledgers"


def node_home() -> Path:
    """A device's folder by default, beside the ledgers: records of what its users have spent, keys.

    Earlier versions had it among the caches: one that is there goes on being used, and a warning
    says so, until this one holds anything. Raises RuntimeError where there is no home.
    """
    home = ledger_folder().with_name("node")
    begun = home.is_dir() and any(home.iterdir())  # an empty one was only made ready
    for caches in (cache_home(), Path("~/.cache").expanduser()):
        older = caches / "privsyn-flower-node"
        if older.exists():
            _warn_of_older(older, home, begun)
            return home if begun else older
    return home


@functools.cache  # once a process
def _warn_of_older(older: Path, home: Path, begun: bool) -> None:
    if begun:
        logger.warning(
            "this node's folder is %s; an earlier one, %s, is not used, and what its users spent "
            "there is not counted. To go on with that one name it as `cache` in the node config",
            home, older,
        )  # fmt: skip
        return
    logger.warning(
        "this node's folder is %s, among caches, which may be emptied: what its users have spent "
        "would be forgotten, and other nodes would refuse its new key. Stop the node and move it "
        "(mkdir -p %s && mv -T %s %s), or name it as `cache` in the node config",
        older, home.parent, older, home,
    )  # fmt: skip


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (a file made for it, 0600) against other processes.

    The lock goes with the process, so a crash leaves nothing to clean up.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # releases the lock


class LockTaken(BlockingIOError):
    """Another process has a lock that is held for long. owner: its number, or "unknown"."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(errno.EWOULDBLOCK, f"is held by process {owner}", str(path))
        self.owner = owner


@contextlib.contextmanager
def file_lock(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock on `path` (a file made for it, 0600) for a whole run, with the number of this
    process in it. It goes with the process, so none is ever stale.

    patience: seconds to wait for it. Raises LockTaken while another process has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                    raise LockTaken(path, owner or "unknown") from None
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        yield
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> Path:
    """Make a folder its owner's only (0700), created when nothing is there. Raises OSError where
    a file is, whose mode stays."""
    path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    path.chmod(PRIVATE_FOLDER)
    return path


def write_atomic(path: Path, data: bytes | Iterable[bytes], *, mode: int = 0o666) -> None:
    """Write `data` to `path`: whole and on disk when this returns, or the old file is there.

    data: all of it, or its parts one after another, which need not fit into memory together. mode:
    of the file, less the umask. When the disk refuses, nothing is left behind, and OSError names
    `path`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _written(path, data, mode) as scratch:
            scratch.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def replace_private(path: Path, data: bytes) -> None:
    """`write_atomic` of a file that only its owner may read (0600)."""
    write_atomic(path, data, mode=PRIVATE_FILE)


def create_private(path: Path, data: bytes) -> None:
    """A new file (0600), whole and on disk when this returns, or not there at all.

    Raises FileExistsError where one is: of several processes, one makes it.
    """
    with _written(path, data, PRIVATE_FILE) as scratch:
        path.hardlink_to(scratch)  # fails where a rename would replace another's
    sync_folder(path.parent)


@contextlib.contextmanager
def _written(path: Path, data: bytes | Iterable[bytes], mode: int) -> Iterator[Path]:
    """A file beside `path` with `data` on disk, gone when the block ends."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        scratch.unlink(missing_ok=True)  # of a process of this number that was killed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(scratch, flags, mode), "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        yield scratch
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """fsync a folder: a file is lost with its name, and a new name survives a power cut so."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def build_folder(target: Path, fill: Callable[[Path], None], *, result: bool = False) -> Path:
    """`fill` a temporary folder (0700) and rename it to `target`; a reader sees all or nothing.

    Several processes may call at once: one builds, the others wait and find it; what killed
    processes left of it is removed, and a warning counts it. result: as of `new_folder`. Returns
    target.
    """
    if target.is_dir():
        return target
    with locked(target.with_name(target.name + ".lock")):
        # Under the lock nobody else builds: what is left is of a process that was killed.
        left = list(target.parent.glob(f"{glob.escape(_scratch_prefix(target))}*"))
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        if left:
            parts = "an unfinished copy" if len(left) == 1 else f"{len(left)} unfinished copies"
            logger.warning("removed %s of %s that a killed process left", parts, target.name)
        if not target.exists():
            new_folder(target, fill, result=result)
    return target


def new_folder(target: Path, fill: Callable[[Path], None], *, result: bool = False) -> None:
    """`fill` a temporary folder (0700) and rename it to `target`; a reader sees all or nothing.

    Of several processes that call at once each builds, and the first to end has its folder there.
    result: it is for whoever asked, so its modes are those of the umask (`share`), not the owner's
    only. Raises FileExistsError in the others, and when something is there.
    """
    scratch = Path(tempfile.mkdtemp(prefix=_scratch_prefix(target), dir=target.parent))
    try:
        fill(scratch)
        if result:
            share(scratch)
        if target.exists():
            raise FileExistsError(errno.EEXIST, "was made meanwhile", str(target))
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch_prefix(target: Path) -> str:
    """How the name of a folder begins that is to become `target`."""
    return f".{target.name}.making-"


def share(folder: Path) -> None:
    """Give a folder and all in it the modes that the umask gives to new ones.

    Libraries write files for their owner alone (safetensors: 0600), and a temporary folder is 0700;
    nothing that is private may be in here.
    """
    probe = Path(tempfile.mkdtemp(dir=folder)) / "umask"  # asking for it would change it a moment
    probe.mkdir()
    mode = stat.S_IMODE(probe.stat().st_mode)
    shutil.rmtree(probe.parent)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(mode if path.is_dir() else mode & 0o666)


def build_file(target: Path, fill: Callable[[Path], object]) -> None:
    """`fill` a temporary file (0600) and rename it to `target`: of a cache, so without an fsync."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)
    os.close(descriptor)
    scratch = Path(name)
    try:
        fill(scratch)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def whole_path(value: str, key: str) -> Path:
    """A path that a configuration names. Raises ValueError for a relative one: Flower's processes
    have a working directory of their own, so that it would be looked for elsewhere."""
    path = Path(value).expanduser()
    if value and not path.is_absolute():
        raise ValueError(
            f"{key} = {value!r} is relative, and Flower's processes have another working "
            f"directory: write the whole path, from here {path.absolute()}"
        )
    return path
