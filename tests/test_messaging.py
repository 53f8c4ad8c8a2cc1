"""How often the server looks for replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from privsyn_flower import messaging
from privsyn_flower.messaging import in_process, outgoing, send_and_wait


class Clock:
    """A time that passes by sleeping and by looking."""

    def __init__(self, look: float, nodes: int) -> None:
        self.now, self.look, self.left = 0.0, look, [f"m{node}" for node in range(nodes)]
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return list(self.left)

    def pull_messages(self, wanted: list[str]) -> list[Any]:
        self.now += self.look * len(wanted)  # what it costs to look at each
        return []


@pytest.mark.parametrize(("look", "wait"), [(0.0, 0.1), (0.001, 0.1), (0.01, 0.4)])
def test_a_look_at_many_nodes_leaves_the_superlink_time_for_them(
    monkeypatch: pytest.MonkeyPatch, look: float, wait: float
) -> None:
    clock: Any = Clock(look, nodes=10)
    monkeypatch.setattr(messaging.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(messaging.time, "sleep", clock.sleep)
    with in_process():
        messages = [outgoing(RecordDict(), node, "query", ttl=9.0) for node in range(10)]
    assert send_and_wait(clock, messages, 5.0, lambda n, of: None, 0.1) == {}
    assert clock.slept and all(seconds == pytest.approx(wait) for seconds in clock.slept)
    assert sum(clock.slept) >= 0.79 * clock.now  # at most a fifth of the time is spent looking
