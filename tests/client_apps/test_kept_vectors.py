"""Where a node keeps its users' vectors of past rounds: files, damage, and when they go."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps.answers import Kind
from privsyn_flower.client_apps.node import past_vectors
from privsyn_flower.client_apps.node.past_vectors import load_vector, store_vector
from privsyn_flower.client_apps.node.records_file import RecordsError
from privsyn_flower.client_apps.node.rows import Terms
from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol.question import Ticket
from tests.rigs.past_vectors import (
    POLICY,
    ROUNDS,
    Rig,
    device,
    drawn,
    noise,
    question,
    rig,
)

__all__ = ["device", "drawn", "rig"]  # pytest finds fixtures by name


def _killed(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_files_are_their_owners_and_numbers_wrap_as_sums_do(tmp_path: Path) -> None:
    vector = np.array([0, -1, 2**31, -(2**33) + 5, 2**62], dtype=np.int64)
    store_vector(tmp_path / "past", "t", vector)
    assert (tmp_path / "past").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "past" / "t").stat().st_mode & 0o777 == 0o600
    found = load_vector(tmp_path / "past", "t", 5)
    assert found.dtype == np.int32 and not ((found - vector) % 2**32).any()


def _flipped(path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def _folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def _huge(path: Path, other: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


DAMAGES: dict[str, Callable[[Path, Path], Any]] = {
    "flipped": _flipped,
    "gone": lambda path, other: path.unlink(),
    "cut": lambda path, other: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path, other: path.write_bytes(b""),
    "longer": lambda path, other: path.write_bytes(path.read_bytes() * 2),
    "huge": _huge,
    "another round's": lambda path, other: shutil.copy(other, path),
    "an npy file": lambda path, other: np.save(path.open("wb"), np.ones(8, dtype=np.int32)),
    "a folder": _folder,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_vector_is_zeros_and_the_log_says_so(rig: Rig, damage: str) -> None:
    for rnd in (1, 2, 3):
        rig.ask(rnd)
    folder = rig.folder / "node" / "past"
    rig.users = ["carl"]
    DAMAGES[damage](folder / rig.token(3), folder / rig.token(2))
    assert np.array_equal(rig.ask(4), rig.row(4, {2, 4}))
    assert "the vector of round 3 is lost" in rig.log()
    assert np.array_equal(rig.ask(6), rig.row(6))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_full_disk_is_zeros_in_all_rows(
    rig: Rig, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask(1)

    def full(path: Path, data: bytes) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(past_vectors, "replace_private", full)
        assert np.array_equal(rig.ask(3), rig.row(3, {1}))
    assert rig.total(3).any() and "cannot be kept" in rig.log()
    assert np.array_equal(rig.ask(4), rig.row(4, {4}))


def test_restored_and_lost_records_know_none_of_the_vectors_that_came_after(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a restored copy has forgotten was charged to nobody in it."""
    node = rig.folder / "node"
    rig.ask(1)
    older = tmp_path / "older.sqlite"
    shutil.copy(node / "node.sqlite", older)
    rig.ask(2)
    rig.ask(3)
    shutil.copy(older, node / "node.sqlite")
    with pytest.raises(RecordsError, match="older copy"):
        rig.ask(3)
    (node / "node-changes.json").unlink()  # as where the whole folder is put back
    rig.said.pop(3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("privsyn_flower.client_apps.node.rows.store_vector", _killed)
        rig.ask(3)
    assert np.array_equal(rig.ask(3, 2), rig.row(3, {1})) and len(rig.files) == 1
    for name in ("node.sqlite", "node-users.key"):
        (node / name).unlink()
    assert np.array_equal(rig.ask(4), rig.row(4, {4})) and len(rig.files) == 1


def test_records_of_another_node_bring_no_vectors(rig: Rig, tmp_path: Path) -> None:
    rig.ask(1)
    other = Rig(tmp_path / "other", rig.policy)
    other.ask(1)
    shutil.copytree(
        rig.folder / "node" / "past", other.folder / "node" / "past", dirs_exist_ok=True
    )
    assert np.array_equal(other.ask(2), other.row(2))
    assert len(other.files) == 2


def test_what_killed_processes_left_is_removed(rig: Rig) -> None:
    rig.ask(1)
    past = rig.folder / "node" / "past"
    for name in ("0" * 32, f".{'1' * 32}.99-1.tmp", "notes.txt"):  # the last one is the owner's
        (past / name).write_bytes(b"private")
    beside = past / f".{rig.token(1)}.99-1.tmp"  # may be somebody's who is still writing
    beside.write_bytes(b"")
    rig.ask(2)
    assert {path.name for path in rig.files} == {
        "notes.txt", beside.name, rig.token(1), rig.token(2),
    }  # fmt: skip


# --- the end -------------------------------------------------------------------------------------


def test_the_last_rounds_unmasking_erases_them(rig: Rig) -> None:
    records = rig.node.records
    for rnd in (ROUNDS - 1, ROUNDS):
        rig.ask(rnd)
        records.mark_stage("share", "r", "update", rnd, 1)
        assert rig.files
        if rnd < ROUNDS:
            records.mark_stage("unmask", "r", "update", rnd, 1)
            assert rig.files
    again = rig.ask(ROUNDS, 2)  # it failed before: the row is the same
    assert np.array_equal(again, rig.row(ROUNDS))
    records.mark_stage("unmask", "r", "update", ROUNDS, 2)
    assert not rig.files


def test_a_last_answer_in_the_clear_erases_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stage follows one."""
    query, kind = question(), Kind(lambda query, node: None, rig._vectors)
    monkeypatch.setattr(answers, "answer", lambda message, ticket, residues, bits: residues)
    for rnd in (ROUNDS - 1, ROUNDS):
        head = query, Ticket("r", "update", rnd, 1), noise(query)
        monkeypatch.setattr(answers, "read_head", lambda message, head=head: head)
        monkeypatch.setattr(answers, "read_ask", lambda message, weight, head=head: head)
        residues = answers._plain(None, rig.node, kind)  # type: ignore[arg-type]
        assert np.array_equal(residues, to_modulus(rig.row(rnd), noise(query).bits))  # type: ignore[comparison-overlap, arg-type]
        assert bool(rig.files) == (rnd < ROUNDS)


def test_another_runs_rows_erase_those_of_a_finished_one(rig: Rig) -> None:
    rig.ask(ROUNDS)
    rig.said.clear()
    rig.ask(1, run="unfinished")
    rig.said.clear()
    rig.ask(1, run="third")
    assert len(rig.files) == 2


def test_a_server_cannot_fill_the_disk_with_runs(rig: Rig) -> None:
    for number in range(8):
        rig.said.clear()
        rig.ask(1, run=f"run {number}")
    assert len(rig.files) == 4
    rig.said.clear()
    rig.ask(2, run="run 7")
    rig.ask(3, run="run 0")
    assert "1 vectors of other runs are given up" in rig.log()
    assert len(rig.files) == 5 and np.array_equal(rig.ask(3, 2, run="run 0"), 64 * rig.total(3))


def test_a_month_after_a_run_that_ended_early_they_go(device: Rig) -> None:
    """With whatever question is answered next."""
    device.ask(1)
    device.ask(2)
    long_ago = time.time() - 31 * 86_400
    os.utime(device.files[0], (long_ago, long_ago))
    device.node.records.take("other", "votes", 1, 1, ["ann"], 1.0, 0.0, POLICY)
    assert len(device.files) == 1


def test_who_withdraws_takes_all_kept_vectors_along(device: Rig) -> None:
    device.ask(1)
    assert device.files and device.node.records.forget("ann")
    assert not device.files
    assert np.array_equal(device.ask(3), device.row(3, {3})) and set(device.said[3]) == {"bob"}


def test_who_withdraws_while_vectors_are_made_is_in_no_later_row(device: Rig) -> None:
    device.before = lambda: device.node.records.forget("ann") and None
    device.ask(1)
    assert "ann" in device.said[1] and not device.files
    device.before = lambda: None
    assert not device.ask(1, 2).any()
    assert np.array_equal(device.ask(2), device.row(2, {2}))


def test_the_terms_are_one_text(drawn: Any) -> None:
    query = question(matrix="[ 64,32, 16]")
    ticket = Ticket("r", "update", 1, 1)
    texts = {Terms.of(one, ticket, noise(one)).text for one in (query, question())}
    assert len(texts) == 1


def test_records_name_no_user(device: Rig) -> None:
    device.ask(1)
    content = (device.folder / "node" / "node.sqlite").read_bytes()
    assert b"ann" not in content
    with sqlite3.connect(device.folder / "node" / "node.sqlite") as database:
        assert database.execute("SELECT count(*) FROM vectors").fetchone() == (1,)
    database.close()
