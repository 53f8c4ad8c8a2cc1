"""CPU seconds of simulated nodes: written by them alone, read by the harness."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path

import pytest

from privsyn_flower.client_apps.node.failures import TIMINGS_FILE, timed
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.server_apps.costs import read_timings


def node(tmp_path: Path, number: int = 0) -> Path:
    """The folder of a simulated node."""
    cache = tmp_path / f"{number}-of-2"
    cache.mkdir(exist_ok=True)
    return cache


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_every_thread_counts_and_waiting_does_not(tmp_path: Path) -> None:
    with timed(node(tmp_path), Ticket("run", "update", 2, 1), 3):
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
        with timed(node(tmp_path, number), Ticket(run, "update", rnd, 1), 3):
            pass
    with (tmp_path / "0-of-2" / TIMINGS_FILE).open("a") as file:
        file.write('{"run": "run", "rou')
    assert [entry["round"] for entry in read_timings(tmp_path, "run")] == [1, 2, 2]
    assert read_timings(tmp_path, "none") == [] == read_timings(tmp_path / "nowhere", "run")


def test_a_device_measures_nothing(tmp_path: Path) -> None:
    node(tmp_path)
    with timed(None, Ticket("run", "update", 1, 1), 3):
        pass
    assert list(tmp_path.glob("*/*")) == []


def test_what_goes_wrong_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError), timed(node(tmp_path), Ticket("run", "update", 1, 1), 3):
        raise KeyError
    assert read_timings(tmp_path, "run") == []
    with timed(tmp_path / "gone", Ticket("run", "update", 1, 1), 3):
        pass  # nowhere to write: the answer goes on
