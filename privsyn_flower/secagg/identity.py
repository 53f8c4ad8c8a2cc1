"""A node's secrets on disk: 32 bytes each, for their owner only, made once and never replaced."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privsyn_flower.common.files import create_private, private_folder

IDENTITY_FILE = "identity.key"
SECRET_BYTES = 32


class IdentityError(ValueError):
    """A secret of this node cannot be used; the text names its file and what to do."""


def identity(folder: Path) -> Ed25519PrivateKey:
    """The node's signing key (SECRET), made at the first call in `folder`/identity.key.

    Several processes may call at once: all get the same key. The folder becomes 0700.
    Raises IdentityError when the file is readable by others, damaged, or not this user's.
    """
    path = Path(folder) / IDENTITY_FILE
    if not path.exists():
        create_secret(path)
    return Ed25519PrivateKey.from_private_bytes(read_secret(path))


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public key that goes into a roster: 64 hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def create_secret(path: Path) -> None:
    """Put 32 random bytes into a new file (0600, hexadecimal); an existing one stays as it is.

    The file appears with its whole content, on disk, or not at all.
    """
    private_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        create_private(path, f"{os.urandom(SECRET_BYTES).hex()}\n".encode("ascii"))


def read_secret(path: Path) -> bytes:
    """The 32 bytes of a secret file. Raises IdentityError when it is not one, or not private."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise IdentityError(f"{path} cannot be opened as a file: {error.strerror}") from None
    try:
        _check_private(path, os.fstat(descriptor))
        content = os.read(descriptor, 4 * SECRET_BYTES)
    finally:
        os.close(descriptor)
    try:
        secret = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise IdentityError(
            f"{path} does not hold {2 * SECRET_BYTES} hexadecimal digits: restore it from a copy"
        )
    return secret


def _check_private(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
        raise IdentityError(f"{path} is not a file of the user that runs this node")
    mode = stat.S_IMODE(facts.st_mode)
    if mode & 0o077:
        raise IdentityError(
            f"{path} has mode {mode:04o}, at most 0600 is allowed: others may have read it; "
            "remove it for a new one, or chmod 600 when you know that nobody did"
        )
