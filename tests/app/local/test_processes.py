"""Processes are ended once, and one that nobody reaps is not waited for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from privsyn_flower.app.local.processes import end_group, end_process


@pytest.mark.skipif(sys.platform != "linux", reason="states of processes are read from /proc")
@pytest.mark.parametrize("end", [end_group, end_process])
def test_one_that_has_ended_and_is_not_reaped_is_not_waited_for(
    end: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    naps, nap = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (naps.append(seconds), nap(seconds)))
    end(child.pid, wait=90.0)  # nobody polls it: a zombie from here on
    assert sum(naps) < 80 and child.wait(60) == -15


@pytest.mark.skipif(sys.platform != "linux", reason="states of processes are read from /proc")
def test_a_child_of_one_that_has_ended_is_ended_for_good() -> None:
    script = "trap '' TERM; echo; while :; do sleep 1; done"
    command = f'sh -c "{script}" & wait'
    leader = subprocess.Popen(
        ["sh", "-c", command], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert leader.stdout is not None and leader.stdout.readline() == "\n"  # it ignores SIGTERM now
    end_group(leader.pid, wait=1.0)
    assert leader.stdout.read() == "", "both have ended"
    assert leader.wait(60) == -15
