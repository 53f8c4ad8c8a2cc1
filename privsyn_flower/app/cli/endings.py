"""The signals that end a run: as Ctrl-C does, or not while something must not be left half done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, end a run as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with on_endings(interrupt):
        yield


@contextmanager
def on_endings(handler: Handler) -> Iterator[None]:
    """Another handler of the signals that end a run; nohup's wish to outlive a terminal stays."""
    before = {sign: signal.getsignal(sign) for sign in ENDINGS}
    for sign, other in before.items():
        signal.signal(sign, signal.SIG_IGN if other == signal.SIG_IGN else handler)
    try:
        yield
    finally:
        for sign, other in before.items():
            signal.signal(sign, other)
