"""Rows that wait on the disk: the same users as in memory, and nothing left when it fails."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.config import DataConfig
from privsyn_flower.data import DataError, Federation, federation, prepare, spool
from privsyn_flower.data.groups import Group
from privsyn_flower.data.spool import Shard, store_groups, write_users
from privsyn_flower.data.users import Sample, collect_rows
from privsyn_flower.data.values import Columns
from tests.rigs.users import write_jsonl

COLUMNS = Columns(label="label", date="day", date_from="2024-01-02")
ROW = st.fixed_dictionaries(
    {
        "user_id": st.sampled_from(["a", "b", "ü", "", 7, "many"]),
        "text": st.one_of(st.text(max_size=6), st.sampled_from(["same", "", None, 3])),
        "label": st.sampled_from(["x", "y", None]),
        "day": st.sampled_from(["2024-01-01", "2024-01-02", "2024-02-03", "never"]),
    }
)


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "PARTS", 3)
    monkeypatch.setattr(spool, "PART_ROWS", 2)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.one_of(ROW, st.just({})), max_size=40), words=st.integers(0, 1))
def test_users_are_those_of_all_rows_in_memory(
    rows: list[dict[str, Any]], words: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Users in their order, their samples, and what is said of rows that are not read."""

    def source(report: Any) -> Any:
        return enumerate(rows, 1)

    def cut(own: Any) -> Any:
        return tuple(own[words:])

    told: list[list[str]] = [[], []]
    folder = tmp_path_factory.mktemp("spool")
    try:
        whole = collect_rows(source, COLUMNS, 0, "here", tell=told[0].append)
    except DataError as error:
        with pytest.raises(DataError, match=str(error).split(" ")[0]):
            store_groups(source, COLUMNS, "here", folder, cut, None)
        return
    stored = store_groups(source, COLUMNS, "here", folder, cut, told[1].append)
    assert list(stored) == [Group(user, cut(own)) for user, own in whole.items()]
    assert stored[::2] == [stored[i] for i in range(0, len(stored), 2)]
    assert told[0] == told[1]
    assert [path.name for path in folder.iterdir()] == ["groups"]


def users_file(path: Path, users: int) -> DataConfig:
    rows = [
        {"user_id": f"u{i}", "text": f"text {k} of {i}"} for k in range(3) for i in range(users)
    ]
    write_jsonl(path, rows)
    return DataConfig(
        source="files", path=str(path), users=users - 2, held_out_users=2, development_users=0
    )


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = users_file(tmp_path / "users.jsonl", 20)
    real, left = federation.write_users, 1

    def full(*arguments: Any) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= 1
        return real(*arguments)

    monkeypatch.setattr(federation, "write_users", full)
    with pytest.raises(OSError, match="No space left"):
        prepare(config, tmp_path)
    assert [path.suffix for path in (tmp_path / "data").iterdir()] == [".lock"]
    left = 3
    assert len(Federation(prepare(config, tmp_path)).shard(0, 1)) == 18


KILLED = """
import os, signal, sys
from pathlib import Path
from privsyn_flower.config import DataConfig
from privsyn_flower.data import federation, spool

spool.PARTS, spool.PART_ROWS = 3, 2
real = federation.write_users

def killed(path, users):
    real(path, users)
    os.kill(os.getpid(), signal.SIGKILL)

federation.write_users = killed
federation.prepare(DataConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    config = users_file(tmp_path / "users.jsonl", 20)
    command = [sys.executable, "-c", KILLED, config.model_dump_json(), str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=300).returncode == -signal.SIGKILL
    (left,) = (path for path in (tmp_path / "data").iterdir() if path.is_dir())
    assert (left / "private.arrow").exists()  # private text: it must not stay
    made = prepare(config, tmp_path)
    assert [path for path in (tmp_path / "data").iterdir() if path.is_dir()] == [made]
    assert not [path for path in made.iterdir() if path.is_dir()]
    assert made.stat().st_mode & 0o777 == 0o700


def groups(count: int) -> list[Group]:
    return [
        Group(f"u{i}", tuple(Sample(f"{k} of {i}", "x" if i % 2 else "") for k in range(i % 4)))
        for i in range(count)
    ]


@pytest.mark.parametrize(("start", "length"), [(0, 11), (0, 3), (2, 5), (4, 4), (7, 4), (10, 1)])
def test_a_shard_is_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, length: int
) -> None:
    monkeypatch.setattr(spool, "ROWS", 4)
    users = groups(11)
    assert write_users(tmp_path / "users.arrow", iter(users)) == 11
    shard = Shard(tmp_path / "users.arrow", start, length)
    expected = {user.name: [s.text for s in user.samples] for user in users[start:][:length]}
    assert list(shard.items()) == list(expected.items())
    assert {user: shard[user] for user in reversed(list(shard))} == expected  # in any order
    labels = [getattr(text, "label", "") for own in shard.values() for text in own]
    assert labels == [s.label for user in users[start:][:length] for s in user.samples]
    assert "u11" not in shard and len(shard) == length


def test_a_file_that_changes_while_it_is_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "ROWS", 4)
    path = tmp_path / "users.arrow"
    write_users(path, groups(11))
    shard = Shard(path, 1, 9)
    data = path.read_bytes()
    assert data.count(b"u6") == 1
    path.write_bytes(data.replace(b"u6", b"v6"))  # the same file, in place
    assert shard["u1"] == ["0 of 1"]
    with pytest.raises(DataError, match="damaged or incomplete"):
        shard["u5"]


@pytest.mark.parametrize("length", [12, 13])
def test_a_file_with_too_few_users_is_damaged(tmp_path: Path, length: int) -> None:
    write_users(tmp_path / "users.arrow", groups(11))
    with pytest.raises(DataError, match="delete the folder"):
        Shard(tmp_path / "users.arrow", 0, length)
    (tmp_path / "users.arrow").write_bytes(b"ARROW1 no more")
    with pytest.raises(DataError, match="delete the folder"):
        Shard(tmp_path / "users.arrow", 0, 1)


def test_every_side_has_its_users(tmp_path: Path) -> None:
    """In the uniform partition, hands are dealt one after the other, private ones when written."""
    config = users_file(tmp_path / "users.jsonl", 30).model_copy(
        update={"partition": "uniform", "users": 9, "samples_per_user": 5, "development_users": 3}
    )
    found = Federation(federation.prepare(config, tmp_path))
    sides = [found.held_out("test"), found.held_out("development"), found.shard(0, 1)]
    assert [next(iter(side)) for side in sides] == [
        "test-000000",
        "development-000000",
        "user-000000",
    ]
    texts = [text for side in sides for own in side.values() for text in own]
    assert len(texts) == len(set(texts)) == 14 * 5
