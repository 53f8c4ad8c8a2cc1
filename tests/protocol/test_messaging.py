"""How often the server looks for replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from privsyn_flower.protocol import messaging
from privsyn_flower.protocol.messaging import in_process, outgoing, send_and_wait


class Clock:
    """A time that passes by sleeping and by looking."""

    def __init__(self, look: float, nodes: int) -> None:
        self.now, self.look, self.left = 0.0, look, [f"m{node}" for node in range(nodes)]
        self.slept: list[float] = []
        self.looked: list[float] = []  # when each look began

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return list(self.left)

    def pull_messages(self, wanted: list[str]) -> list[Any]:
        self.looked.append(self.now)
        self.now += self.look * len(wanted)  # what it costs to look at each
        return []


@pytest.mark.parametrize("look", [0.0, 0.01, 0.2, 1.0])
def test_the_last_look_is_at_the_deadline(monkeypatch: pytest.MonkeyPatch, look: float) -> None:
    """What arrives just in time counts, however long a look takes; nothing waits much longer."""
    clock: Any = Clock(look, nodes=10)
    monkeypatch.setattr(messaging.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(messaging.time, "sleep", clock.sleep)
    with in_process():
        messages = [outgoing(RecordDict(), node, "query", ttl=9.0) for node in range(10)]
    send_and_wait(clock, messages, 5.0, lambda n, of: None, 0.1)
    longest = 10 * look
    assert 5.0 <= clock.looked[-1] <= 5.0 + longest and clock.now <= 5.0 + 2 * longest
    assert all(begun < 5.0 for begun in clock.looked[:-1])


@pytest.mark.parametrize(("look", "wait"), [(0.0, 0.1), (0.001, 0.1), (0.01, 0.4)])
def test_a_look_at_many_nodes_leaves_the_superlink_time_for_them(
    monkeypatch: pytest.MonkeyPatch, look: float, wait: float
) -> None:
    clock: Any = Clock(look, nodes=10)
    monkeypatch.setattr(messaging.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(messaging.time, "sleep", clock.sleep)
    with in_process():
        messages = [outgoing(RecordDict(), node, "query", ttl=9.0) for node in range(10)]
    assert send_and_wait(clock, messages, 50.0, lambda n, of: None, 0.1) == {}
    assert clock.slept and all(seconds == pytest.approx(wait) for seconds in clock.slept[:-1])
    assert sum(clock.slept) >= 0.79 * clock.now  # at most a fifth of the time is spent looking
