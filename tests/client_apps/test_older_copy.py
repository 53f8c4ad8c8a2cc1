"""An older copy of a node's records is refused: in it users have spent less than they did."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from privsyn_flower.client_apps.node.older_copy import CHANGES_FILE
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
from privsyn_flower.client_apps.node.records_file import KEY_FILE, RecordsError


def take(folder: Path, rnd: int) -> None:
    NodeRecords(folder / RECORDS_FILE).take(
        "r", "votes", rnd, 1, ["ann", "bob"], 10.0, 1e-18, Policy()
    )


@pytest.mark.parametrize("since", [1, 3])
def test_a_copy_from_before_the_last_changes_is_refused(tmp_path: Path, since: int) -> None:
    node, copy = tmp_path / "node", tmp_path / "copy"
    for rnd in (1, 2):
        take(node, rnd)
    shutil.copy(node / RECORDS_FILE, copy)
    for rnd in range(3, 3 + since):
        take(node, rnd)
    latest = (node / RECORDS_FILE).read_bytes()
    shutil.copy(copy, node / RECORDS_FILE)
    for _ in range(2):  # nothing that is tried makes it count as the latest
        with pytest.raises(RecordsError, match="is an older copy"):
            take(node, 9)
        with pytest.raises(RecordsError, match="is an older copy"):
            NodeRecords(node / RECORDS_FILE).status(1e-6)
    (node / RECORDS_FILE).write_bytes(latest)
    take(node, 9)


def test_the_latest_copy_and_a_kill_before_the_count_go_on(tmp_path: Path) -> None:
    take(tmp_path, 1)
    before = (tmp_path / CHANGES_FILE).read_bytes()
    take(tmp_path, 2)
    (tmp_path / CHANGES_FILE).write_bytes(before)  # killed before it was written again
    latest = (tmp_path / RECORDS_FILE).read_bytes()
    (tmp_path / RECORDS_FILE).write_bytes(latest)
    take(tmp_path, 3)


def test_looking_changes_nothing_and_the_same_twice_is_no_older_copy(tmp_path: Path) -> None:
    records = NodeRecords(tmp_path / RECORDS_FILE)
    records.forget("ann")
    kept = (tmp_path / CHANGES_FILE).read_bytes()
    records.status(1e-6)
    records.withdrawn(["ann"])
    assert (tmp_path / CHANGES_FILE).read_bytes() == kept
    for _ in range(3):  # SQLite need not write a row that is the same
        records.forget("ann")
    assert records.withdrawn(["ann"]).all()


def test_records_that_are_made_anew_count_from_zero(tmp_path: Path) -> None:
    for rnd in (1, 2, 3):
        take(tmp_path, rnd)
    for name in (RECORDS_FILE, KEY_FILE):
        (tmp_path / name).unlink()
    take(tmp_path, 1)
