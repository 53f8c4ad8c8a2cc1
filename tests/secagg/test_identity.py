"""A node's key: one for all processes, for its owner only, whole or not there."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from privsyn_flower.secagg import identity as identity_module
from privsyn_flower.secagg.identity import (
    IDENTITY_FILE,
    IdentityError,
    create_secret,
    identity,
    public_hex,
    read_secret,
)


def test_the_key_stays_and_signs(tmp_path: Path) -> None:
    first, again = identity(tmp_path / "node"), identity(tmp_path / "node")
    public = public_hex(first)
    assert public_hex(again) == public
    assert len(bytes.fromhex(public)) == 32
    signature = again.sign(b"text")
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, b"text")
    assert public_hex(identity(tmp_path / "other")) != public


def test_it_is_for_its_owner_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir(mode=0o755)
    identity(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / IDENTITY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == [IDENTITY_FILE]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    identity(tmp_path)
    (tmp_path / IDENTITY_FILE).chmod(mode)
    with pytest.raises(IdentityError, match=f"identity.key has mode {mode:04o}"):
        identity(tmp_path)


@pytest.mark.parametrize("content", [b"", b"ab" * 31, b"ab" * 33, b"zz" * 32, b"\xff" * 32])
def test_a_damaged_key_is_named_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / IDENTITY_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=r"identity\.key does not hold"):
        identity(tmp_path)
    assert path.read_bytes() == content


def test_links_and_folders_are_no_keys(tmp_path: Path) -> None:
    create_secret(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("link", "folder", "missing"):
        with pytest.raises(IdentityError, match=name):
            read_secret(tmp_path / name)


def test_the_first_of_many_makes_the_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(lambda _: public_hex(identity(tmp_path)), range(64)))
    assert len(keys) == 1


def test_an_interruption_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(identity_module.os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        identity(tmp_path)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - the hidden scratch file too
