"""The file under the records: its owner's, whole after a kill, one winner of many processes."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
from privsyn_flower.client_apps.node.records_file import (
    CHANGES_FILE,
    KEY_FILE,
    RecordsError,
    RecordsFile,
)
from privsyn_flower.protocol.wire import WireError
from privsyn_flower.secagg.identity import IdentityError

USERS = ["ann", "bob", "ü\ud800"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "node.sqlite"


def take(path: Path, round: int, users: list[str] = USERS) -> list[bool]:
    records = NodeRecords(path)  # as a fresh process would
    mask: list[bool] = records.take("r", "votes", round, 1, users, 10.0, 1e-18, Policy()).tolist()
    return mask


def test_files_are_for_their_owner_and_name_no_user(path: Path) -> None:
    path.parent.mkdir(mode=0o755)
    modes: dict[str, int] = {}
    records = NodeRecords(path)
    with RecordsFile(path).transaction() as database:  # while the journal lies beside the file
        database.execute("INSERT INTO pins VALUES ('p', x'00', 1)")
        modes |= {item.name: stat.S_IMODE(item.stat().st_mode) for item in path.parent.iterdir()}
    take(path, 1, ["a user's name", "another"])
    records.forget("a user's name")
    modes |= {item.name: stat.S_IMODE(item.stat().st_mode) for item in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "node.sqlite-journal" in modes
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not any(b"user's name" in item.read_bytes() for item in path.parent.iterdir())


def test_every_answer_is_synced_to_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", sqlite3.dbapi2.connect)  # as outside of tests
    with RecordsFile(path).transaction() as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert database.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_damaged_or_foreign_file_is_named_and_kept(path: Path, tmp_path: Path) -> None:
    take(path, 1)
    path.write_bytes(b"not a database, but long enough to be one" * 100)
    with pytest.raises(RecordsError, match=r"node\.sqlite cannot be used"):
        take(path, 2)
    assert path.read_bytes().startswith(b"not a database")
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE mine (x)")
    with pytest.raises(RecordsError, match="another program's"):
        take(foreign, 1)
    database.close()


@pytest.mark.parametrize("layout", [0, 3, 99])
def test_another_layout_is_not_touched(path: Path, layout: int) -> None:
    take(path, 1)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {layout}")
    database.close()
    with pytest.raises(RecordsError, match=f"layout {layout}"):
        take(path, 2)


def test_lost_files_are_no_new_start(path: Path) -> None:
    take(path, 1)
    key = path.with_name(KEY_FILE)
    kept = key.read_text()
    key.unlink()
    with pytest.raises(RecordsError, match=f"{KEY_FILE} is gone"):
        take(path, 2)
    key.write_text("ab" * 32)
    key.chmod(0o600)
    with pytest.raises(RecordsError, match="is not the key of"):
        take(path, 2)
    key.write_text(kept)
    assert take(path, 2) == [True] * 3
    key.chmod(0o644)
    with pytest.raises(IdentityError, match="0644"):
        take(path, 3)
    path.unlink()
    with pytest.raises(RecordsError, match=r"node\.sqlite is gone"):
        take(path, 1)


def test_a_start_that_was_interrupted_is_finished(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("privsyn_flower.client_apps.node.records_file.create_secret", killed)
        with pytest.raises(KeyboardInterrupt):
            take(path, 1)
    assert path.exists()
    assert take(path, 1) == [True] * 3


def test_one_of_many_wins_a_ticket_from_the_first_moment(path: Path) -> None:
    start = threading.Barrier(12)

    def contend(_: int) -> bool:
        start.wait()
        try:
            return take(path, 1) == [True] * 3
        except WireError:
            return False

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(contend, range(12))) == 1
    status = NodeRecords(path).status(1e-6)
    assert (status["max_participations"], status["runs"][0]["answers"]) == (1, 1)


# Takes one ticket after the other, and prints each only after the records acknowledged it.
TAKER = """
import itertools, sys
from pathlib import Path
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.node.records import NodeRecords
from privsyn_flower.client_apps.node.schedule import Schedule
from privsyn_flower.protocol.wire import WireError
users = [f"u{i}" for i in range(50)]
policy = Policy(max_rounds_per_run=10**6, lifetime_epsilon=1000.0)
limits = Schedule(max_participations=10**6)
print("ready", flush=True)
sys.stdin.readline()
for number in itertools.count(1):
    try:
        records = NodeRecords(Path(sys.argv[1]))
        records.take("r", "q", number, 1, users, 100.0, 0.0, policy, limits)
    except WireError:
        continue
    print(number, flush=True)
    if number >= int(sys.argv[2]):
        break
"""


def start_taker(path: Path, last: int) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", TAKER, str(path), str(last)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


@pytest.mark.slow
def test_two_processes_share_the_tickets(path: Path) -> None:
    children = [start_taker(path, 30) for _ in range(2)]
    for child in children:
        go(child)
    won = [child.communicate(timeout=60)[0].split() for child in children]
    tickets = [int(number) for numbers in won for number in numbers]
    assert len(tickets) == len(set(tickets))
    status = NodeRecords(path).status(1e-6)
    assert status["max_participations"] == status["runs"][0]["answers"] == len(tickets)


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 4])
def test_a_kill_leaves_all_of_a_ticket_or_nothing(path: Path, lines: int) -> None:
    child = start_taker(path, 10**6)
    go(child)
    assert child.stdout is not None
    for _ in range(lines):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    rest = child.communicate(timeout=60)[0]
    seen = int(rest.split()[-1]) if rest.split() else lines
    with RecordsFile(path).transaction() as database:
        (marked,) = database.execute("SELECT asked FROM marks").fetchone()
        counts = set(database.execute("SELECT participations FROM users"))
        rounds = set(database.execute("SELECT round FROM last_rounds"))
        attended = set(database.execute("SELECT round, participations FROM attendance"))
    assert attended == {(marked, marked)}
    assert seen <= marked <= seen + 1
    assert counts == rounds == {(marked,)}


@pytest.mark.parametrize("since", [1, 3])
def test_a_copy_from_before_the_last_changes_is_refused(tmp_path: Path, since: int) -> None:
    node, copy = tmp_path / "node", tmp_path / "copy"
    for rnd in (1, 2):
        take(node / RECORDS_FILE, rnd)
    shutil.copy(node / RECORDS_FILE, copy)
    for rnd in range(3, 3 + since):
        take(node / RECORDS_FILE, rnd)
    latest = (node / RECORDS_FILE).read_bytes()
    shutil.copy(copy, node / RECORDS_FILE)
    for _ in range(2):  # nothing that is tried makes it count as the latest
        with pytest.raises(RecordsError, match="is an older copy"):
            take(node / RECORDS_FILE, 9)
        with pytest.raises(RecordsError, match="is an older copy"):
            NodeRecords(node / RECORDS_FILE).status(1e-6)
    (node / RECORDS_FILE).write_bytes(latest)
    take(node / RECORDS_FILE, 9)


def test_the_latest_copy_and_a_kill_before_the_count_go_on(tmp_path: Path) -> None:
    take(tmp_path / RECORDS_FILE, 1)
    before = (tmp_path / CHANGES_FILE).read_bytes()
    take(tmp_path / RECORDS_FILE, 2)
    (tmp_path / CHANGES_FILE).write_bytes(before)  # killed before it was written again
    latest = (tmp_path / RECORDS_FILE).read_bytes()
    (tmp_path / RECORDS_FILE).write_bytes(latest)
    take(tmp_path / RECORDS_FILE, 3)


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
        take(tmp_path / RECORDS_FILE, rnd)
    for name in (RECORDS_FILE, KEY_FILE):
        (tmp_path / name).unlink()
    take(tmp_path / RECORDS_FILE, 1)
