"""The key that all noise of a run comes from, in a folder that nobody else can read.

Whoever has the key can take the noise off every release of the run. It is therefore PRIVATE,
lies outside the run folder, and is erased when the run is over. Overwriting a file before it is
removed is done; a disk that writes elsewhere, a snapshot or a backup can keep the old bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from privsyn_flower.common.files import create_private, replace_private, sync_folder

KEY_BYTES = 32
_PIECE = 1 << 20


class NoiseKeyMissing(RuntimeError):
    """A run cannot go on without the key of the noise that it has released."""


class NoiseKeyHeld(RuntimeError):
    """Another process draws noise from this key now."""


class NoiseKeyExposed(RuntimeError):
    """Others may read the key, or it is not a key file."""


@dataclass(frozen=True)
class NoiseKey:
    """256 bits from the operating system, in FOLDER/RUN/key (mode 0600; folders 0700).

    place: FOLDER/RUN, where a stream keeps its records too. PRIVATE.
    """

    place: Path
    _key: bytes = field(repr=False)

    @classmethod
    def create(cls, folder: Path | str, run: str) -> NoiseKey:
        """A new key on disk. Raises FileExistsError where this run has one."""
        place = _place(folder, run)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        _check_folders(place)
        key = secrets.token_bytes(KEY_BYTES)
        try:
            create_private(place / "key", key)
        except FileExistsError:
            raise FileExistsError(
                f"{place / 'key'} exists: the run has a noise key; open it to go on with the run"
            ) from None
        sync_folder(place.parent)
        return cls(place, key)

    @classmethod
    def open(cls, folder: Path | str, run: str) -> NoiseKey:
        """The key of a run that is gone on with.

        Raises NoiseKeyMissing without one, NoiseKeyExposed where others could have read it.
        """
        place = _place(folder, run)
        try:
            opened = os.open(place / "key", os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NoiseKeyMissing(
                f"no noise key at {place / 'key'}: this run cannot be resumed, because noise "
                "under another key would not cancel what was released; start a new run"
            ) from None
        with os.fdopen(opened, "rb") as file:
            _check_folders(place)
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077:
                raise NoiseKeyExposed(
                    f"{place / 'key'} has mode {stat.S_IMODE(found.st_mode):04o}, not 0600: "
                    "others may know the noise; start a new run"
                )
            key = file.read(KEY_BYTES + 1)
        if len(key) != KEY_BYTES:
            raise NoiseKeyExposed(f"{place / 'key'} has not {KEY_BYTES} bytes: not a noise key")
        return cls(place, key)

    def hold(self) -> BinaryIO:
        """Keep the key from every other holder until the result is closed, or the process ends.

        Raises NoiseKeyHeld while somebody else has it: two at once could put the same noise on
        two sums. Raises NoiseKeyMissing when it was erased.
        """
        try:
            file = (self.place / "key").open("rb")
        except FileNotFoundError:
            raise self._erased() from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise NoiseKeyHeld(
                f"the noise key at {self.place} is in use: another process goes on with this run, "
                "maybe in a copy of its folder; wait for it, or stop it"
            ) from None
        if not os.fstat(file.fileno()).st_nlink:  # erased between the two
            file.close()
            raise self._erased()
        return file

    def _erased(self) -> NoiseKeyMissing:
        return NoiseKeyMissing(f"the noise key at {self.place} was erased: start a new run")

    def subkey(self, description: str) -> bytes:
        """The key of the noise of one mechanism at one length; the first one stays the only one.

        The same noise under two matrices would say what both sums are, and the cost of a run is
        that of one size of the noise and one pattern of participation. So the subkey depends on
        the description, and the run is bound to the first description that it is asked for.
        Raises ValueError for another one, NoiseKeyMissing after `erase`.
        """
        digest = hashlib.sha256(description.encode()).hexdigest()
        bound = self.place / "mechanism"
        if not (self.place / "key").exists():
            raise self._erased()
        if not bound.exists():
            replace_private(bound, digest.encode())
        elif bound.read_text() != digest:
            raise ValueError(
                "the noise of this run was begun by another mechanism, other coefficients, another "
                "length of the model, another size of the noise or other participations: resume "
                "with the same epsilon, delta, rounds and ftrl settings, or start anew"
            )
        return hmac.digest(self._key, b"correlated noise " + digest.encode(), "sha256")

    def erase(self) -> None:
        """Overwrite and remove key and records. Again, or half done before: no error."""
        if not self.place.exists():
            return
        # The key last: while it is there, an interrupted erasure can be seen.
        for path in sorted(self.place.iterdir(), key=lambda path: path.name == "key"):
            shred(path)
        self.place.rmdir()
        sync_folder(self.place.parent)


def shred(path: Path) -> None:
    """Overwrite a file with zeros, then remove it."""
    if not path.is_symlink():
        with path.open("r+b") as file:
            left = path.stat().st_size
            while left > 0:
                left -= file.write(bytes(min(_PIECE, left)))
            file.flush()
            os.fsync(file.fileno())
    path.unlink()


def _place(folder: Path | str, run: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
        raise ValueError(f"run = {run!r} must be letters, digits, dots, dashes: it names a folder")
    return Path(folder).absolute() / run


def _check_folders(place: Path) -> None:
    for folder in (place.parent, place):
        found = folder.lstat()
        private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
        if not private or found.st_uid != os.getuid():
            raise NoiseKeyExposed(
                f"{folder} has mode {stat.S_IMODE(found.st_mode):04o}: the noise key needs a "
                "folder of mode 0700 that belongs to you"
            )
