"""Files are whole or absent, and what only its owner may read is made so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.common.files import (
    build_folder,
    cache_home,
    create_private,
    ledger_folder,
    new_folder,
    node_home,
    private_folder,
    replace_private,
    write_atomic,
)
from privsyn_flower.common.sqlite_file import private_file
from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.text.models.pretrained import hub_cache


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_folder_is_made_and_tightened_and_a_file_left_alone(tmp_path: Path) -> None:
    assert mode(private_folder(tmp_path / "new" / "folder")) == 0o700
    (tmp_path / "old").mkdir(mode=0o755)
    assert mode(private_folder(tmp_path / "old")) == 0o700
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o644)
    for make in (private_folder, lambda path: private_file(path / "records.sqlite")):
        with pytest.raises(OSError, match="file"):
            make(tmp_path / "file")
    assert mode(tmp_path / "file") == 0o644


def test_caches_lie_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative"):  # the specification ignores relative paths
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_home() == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_folder(RunConfig()) == tmp_path / "own" / "privsyn-flower"
    assert hub_cache("a/b").is_relative_to(tmp_path / "own" / "huggingface")


def test_a_nodes_records_lie_with_the_ledgers_and_not_among_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    for unset in ("", "relative"):  # relative: another folder in each working directory
        monkeypatch.setenv("XDG_DATA_HOME", unset)
        assert ledger_folder() == tmp_path / ".local/share/privsyn-flower/ledgers"
        assert node_home() == tmp_path / ".local/share/privsyn-flower/node"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    assert node_home() == tmp_path / "own/privsyn-flower/node"
    assert f"folder = {node_home()}\n" in CliRunner().invoke(app, ["node", "status"]).output


def test_a_nodes_folder_of_an_earlier_version_goes_on_being_used_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    for older in (
        tmp_path / ".cache" / "privsyn-flower-node",
        cache_home() / "privsyn-flower-node",
    ):
        older.mkdir(parents=True)
        (older / "node.sqlite").touch()
        caplog.clear()
        assert node_home() == node_home() == older, "what was spent is there"
        (told,) = caplog.messages
        assert f"folder is {older}," in told and f"{tmp_path}/own/privsyn-flower/node" in told
    home = private_folder(tmp_path / "own/privsyn-flower/node")
    caplog.clear()
    assert node_home() == older, "an empty one was only made ready, for a volume say"
    older.rename(home)
    assert node_home() == node_home() == home
    (told,) = caplog.messages
    assert f"{tmp_path}/.cache/privsyn-flower-node, is not used" in told


def test_write_atomic_keeps_the_old_file_when_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_private_file_is_private_and_made_once(tmp_path: Path) -> None:
    path = tmp_path / "f"
    create_private(path, b"first")
    assert (path.read_bytes(), mode(path)) == (b"first", 0o600)
    with pytest.raises(FileExistsError):
        create_private(path, b"second")
    assert path.read_bytes() == b"first"
    path.chmod(0o644)
    replace_private(path, b"third")
    assert (path.read_bytes(), mode(path)) == (b"third", 0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_names_are_on_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before its name appears, and the folder after."""
    seen: list[tuple[bool, bool]] = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "f").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    for write in (write_atomic, create_private):
        (tmp_path / "f").unlink(missing_ok=True)
        write(tmp_path / "f", b"x")  # type: ignore[operator]
    assert seen == [(False, False), (True, True)] * 2


def test_a_folder_that_another_made_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "made"

    def late(folder: Path) -> None:
        (folder / "own").touch()
        target.mkdir()
        (target / "other").touch()

    with pytest.raises(FileExistsError, match=r"made meanwhile.*made"):
        new_folder(target, late)
    assert [path.name for path in target.iterdir()] == ["other"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_results_have_the_modes_of_the_umask(tmp_path: Path, umask: int) -> None:
    def fill(folder: Path) -> None:
        (folder / "inner").mkdir(mode=0o700)
        for path in (folder / "weights", folder / "inner" / "words"):
            path.write_bytes(b"x")
            path.chmod(0o600)  # as safetensors leaves it
        (folder / "link").symlink_to(outside)

    (outside := tmp_path / "outside").write_bytes(b"y")
    outside.chmod(0o600)
    before = os.umask(umask)
    try:
        made = build_folder(tmp_path / "result", fill, result=True)
        kept = build_folder(tmp_path / "cache", fill)
    finally:
        os.umask(before)
    folders, files = (made, made / "inner"), (made / "weights", made / "inner" / "words")
    assert {mode(path) for path in folders} == {0o777 & ~umask}
    assert {mode(path) for path in files} == {0o666 & ~umask}
    assert sorted(path.name for path in made.iterdir()) == ["inner", "link", "weights"]
    assert mode(outside) == 0o600, "a link leads elsewhere"
    assert (mode(kept), mode(kept / "weights")) == (0o700, 0o600)


def test_what_killed_processes_left_is_removed_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, other = tmp_path / "made", tmp_path / ".made2.making-of-another"
    for left in (tmp_path / ".made.making-a", tmp_path / ".made.making-b", other):
        (left / "half").mkdir(parents=True)
    build_folder(target, lambda folder: (folder / "whole").touch())
    assert "removed 2 unfinished copies of made that a killed process left" in caplog.text
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        other.name, "made",
    ]  # fmt: skip
