"""What users' data raised: counted for the owner, in a bounded file, and no reply depends on it."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps.node import failures as module
from privsyn_flower.client_apps.node.failures import (
    FAILURES_FILE,
    TIMINGS_FILE,
    Failures,
    read_failures,
    timed,
)
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.server_apps.costs import read_timings
from tests.rigs.client_apps_votes import ask, node, reply, vector

TICKET = Ticket("run", "votes", 1, 1)
SECRET = "what the user wrote"


def raised(error: BaseException) -> BaseException:
    """With a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def test_causes_are_counted_without_a_word_of_them(tmp_path: Path) -> None:
    found, folder = Failures(), tmp_path / "node"
    found.write(folder, TICKET, 5)
    assert not folder.exists()  # nothing failed
    for _ in range(3):
        found.add("answer", raised(ValueError(SECRET)), 2)
    found.add("users", OSError(SECRET), 1)
    found.write(folder, TICKET, 5)
    found.write(folder, TICKET, 5)  # an answer's failures are written once
    ticket = {"run": "run", "round": 1, "attempt": 1}
    values, files = read_failures(folder)
    at = values.pop("at")
    assert values == ticket | {"kind": "answer", "users": 5, "of": 5, "error": "ValueError"}
    file, _, line = at.rpartition(":")
    assert file == __file__ and "raise error" in Path(file).read_text().splitlines()[int(line) - 1]
    assert files == ticket | {"kind": "users", "users": 1, "of": 5, "error": "OSError", "at": ""}
    path = folder / FAILURES_FILE
    assert SECRET not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    path = tmp_path / FAILURES_FILE
    for number in range(1, 101):
        found = Failures()
        found.add("answer", KeyError(), 1)
        found.write(tmp_path, Ticket("r", "q", number, 1), 9)
        assert path.stat().st_size <= 2000
        rows = read_failures(tmp_path)
        assert rows[-1]["round"] == number and (number == 1 or len(rows) > 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text('{"run": 1}\n[3]\n{"ru')
    assert read_failures(tmp_path) == [{"run": 1}]


def test_one_answer_has_a_few_causes_of_bounded_length(tmp_path: Path) -> None:
    found = Failures()
    for cause in range(100):
        found.add("answer", type(f"E{cause}" + "x" * 1000, (Exception,), {})(), 1)
    found.write(tmp_path, TICKET, 9)
    rows = read_failures(tmp_path)
    assert len(rows) == module.MOST_CAUSES
    assert max(len(row["error"]) for row in rows) == module.LONGEST


def unwritable(path: Path) -> None:
    (path / FAILURES_FILE).mkdir(parents=True)


@pytest.mark.parametrize("before", [lambda path: None, unwritable])
@pytest.mark.parametrize("where", ["users", "answer"])
def test_a_reply_does_not_depend_on_failures(
    tmp_path: Path, loopback: Any, before: Callable[[Path], None], where: str
) -> None:
    def load() -> Any:
        if where == "users":
            raise PermissionError(SECRET)
        return Broken({"a": ["one"], "b": ["two"]})

    class Broken(dict[str, list[str]]):
        """Users whose texts cannot be had."""

        def values(self) -> Any:
            raise NameError(SECRET)

        def items(self) -> Any:
            raise NameError(SECRET)

    device = node(tmp_path, load=load)
    before(device.cache)
    query, message = ask()
    answer = reply(message, device)
    assert np.allclose(vector(answer, query), 0.0, atol=1e-3)
    if before is unwritable:
        return
    (row,) = read_failures(device.cache)
    assert row["kind"] == where
    assert row["users"] == row["of"] > 0
    assert json.dumps(row).isascii() and SECRET not in json.dumps(row)


def test_a_text_that_cannot_be_embedded_is_counted(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(SECRET)

    from privsyn_flower.text import embedders

    _, message = ask()
    monkeypatch.setattr(embedders, "load_embedder", fails)
    device = node(tmp_path)
    reply(message, device)
    row = read_failures(device.cache)[0]
    assert (row["error"], row["users"]) == ("RuntimeError", row["of"])


def own_folder(tmp_path: Path, number: int = 0) -> Path:
    """The folder of a simulated node."""
    cache = tmp_path / f"{number}-of-2"
    cache.mkdir(exist_ok=True)
    return cache


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_every_thread_counts_and_waiting_does_not(tmp_path: Path) -> None:
    with timed(own_folder(tmp_path), Ticket("run", "update", 2, 1), 3):
        other = threading.Thread(target=burn, args=(0.05,))
        other.start()
        burn(0.05)
        other.join()
        time.sleep(0.3)
    (entry,) = read_timings(tmp_path, "run")
    assert 0.1 <= entry.pop("cpu_seconds") < 0.3
    assert entry == {"run": "run", "query": "update", "round": 2, "attempt": 1, "users": 3}
    assert stat.S_IMODE((tmp_path / "0-of-2" / TIMINGS_FILE).stat().st_mode) == 0o600


def test_entries_of_one_run_come_from_all_nodes_in_order(tmp_path: Path) -> None:
    for number, rnd, run in ((1, 2, "run"), (0, 1, "run"), (0, 2, "run"), (0, 1, "other")):
        with timed(own_folder(tmp_path, number), Ticket(run, "update", rnd, 1), 3):
            pass
    with (tmp_path / "0-of-2" / TIMINGS_FILE).open("a") as file:
        file.write('{"run": "run", "rou')
    assert [entry["round"] for entry in read_timings(tmp_path, "run")] == [1, 2, 2]
    assert read_timings(tmp_path, "none") == [] == read_timings(tmp_path / "nowhere", "run")


def test_a_device_measures_nothing(tmp_path: Path) -> None:
    own_folder(tmp_path)
    with timed(None, Ticket("run", "update", 1, 1), 3):
        pass
    assert list(tmp_path.glob("*/*")) == []


def test_what_goes_wrong_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError), timed(own_folder(tmp_path), Ticket("run", "update", 1, 1), 3):
        raise KeyError
    assert read_timings(tmp_path, "run") == []
    with timed(tmp_path / "gone", Ticket("run", "update", 1, 1), 3):
        pass  # nowhere to write: the answer goes on
