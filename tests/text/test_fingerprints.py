from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from privsyn_flower.common import files
from privsyn_flower.common.files import file_digest as hashed_now
from privsyn_flower.text import fingerprints
from privsyn_flower.text.fingerprints import file_digest, persistent_digests


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has seen no file, to which no file is too new."""
    monkeypatch.setattr(fingerprints, "_seen", {})
    monkeypatch.setattr(fingerprints, "RESTED", -1)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Every file that is hashed."""
    found: list[Path] = []

    def counting(path: Path) -> str:
        found.append(path)
        return hashed_now(path)

    monkeypatch.setattr(files, "file_digest", counting)
    yield found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights 1")
    return path


def in_a_new_process(path: Path, kept: Path) -> str:
    fingerprints._seen.clear()
    with persistent_digests(kept):
        return file_digest(path)


def test_a_file_is_hashed_once_by_all_processes(
    model: Path, tmp_path: Path, counted: list[Path]
) -> None:
    kept = tmp_path / "node" / "digests.json"
    for _ in range(3):
        assert in_a_new_process(model, kept) == hashed_now(model)
    assert counted == [model]
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    fingerprints._seen.clear()
    file_digest(model)  # outside the block nothing is taken from it
    assert len(counted) == 2


def test_a_changed_file_is_hashed_again(model: Path, tmp_path: Path) -> None:
    """Also when it is as long as before and its time was set back."""
    kept, times = tmp_path / "digests.json", model.stat()
    before = in_a_new_process(model, kept)
    model.write_bytes(b"weights 2")
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_digest(model) == hashed_now(model) != before
    assert in_a_new_process(model, kept) == hashed_now(model)
    other = tmp_path / "other"
    other.write_bytes(b"weights 3")
    other.replace(model)
    assert in_a_new_process(model, kept) == hashed_now(model)


def test_a_file_that_may_still_change_is_not_remembered(
    model: Path, tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "RESTED", 10**15)
    for _ in range(2):
        in_a_new_process(model, tmp_path / "digests.json")
        file_digest(model)
    assert len(counted) == 4
    assert not (tmp_path / "digests.json").exists()


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"7", b'{"a": 1}', b'{"a": [1, 2, 3]}', b"\xff", b"[" * 10_000],
    ids=["empty", "cut", "list", "number", "no entry", "three", "bytes", "deep"],
)
def test_a_damaged_file_is_done_without_and_replaced(
    model: Path, tmp_path: Path, damage: bytes, counted: list[Path]
) -> None:
    kept = tmp_path / "digests.json"
    kept.write_bytes(damage)
    kept.chmod(0o600)
    assert in_a_new_process(model, kept) == hashed_now(model)
    assert list(json.loads(kept.read_bytes())) == [str(model)]
    in_a_new_process(model, kept)
    assert counted == [model]


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_can_write_is_not_believed(model: Path, tmp_path: Path, mode: int) -> None:
    kept = tmp_path / "digests.json"
    right = in_a_new_process(model, kept)
    false = json.loads(kept.read_bytes())
    false[str(model)][1] = "0" * 64
    kept.write_text(json.dumps(false))
    assert in_a_new_process(model, kept) == "0" * 64  # its owner's word counts
    kept.chmod(mode)
    assert in_a_new_process(model, kept) == right
    moved = kept.rename(tmp_path / "moved")
    moved.write_text(json.dumps(false))
    moved.chmod(0o600)
    kept.symlink_to(moved)
    assert in_a_new_process(model, kept) == right


def test_a_folder_that_cannot_be_written_changes_nothing(model: Path, tmp_path: Path) -> None:
    (tmp_path / "node").touch()  # a file where the folder should be
    digest = in_a_new_process(model, tmp_path / "node" / "digests.json")
    assert digest == hashed_now(model)


def test_digests_of_other_files_stay_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "MOST_FILES", 2)
    kept = tmp_path / "digests.json"
    names = [tmp_path / name for name in "abc"]
    for path in names:
        path.write_bytes(b"")
        in_a_new_process(path, kept)
    assert list(json.loads(kept.read_bytes())) == [str(path) for path in names[1:]]


def test_a_failure_inside_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), persistent_digests(tmp_path / "digests.json"):
        file_digest(tmp_path / "none")
    assert fingerprints._kept == {}


def test_digests_are_of_one_start_of_the_machine(
    model: Path, tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image with fixed times may bring other weights under the same inode."""
    kept = tmp_path / "node" / "digests.json"
    in_a_new_process(model, kept)
    monkeypatch.setattr(fingerprints, "_boot", lambda: "another")
    in_a_new_process(model, kept)
    in_a_new_process(model, kept)
    assert counted == [model, model]
