"""The reason of a failed run as its last line, below Flower's exit code and help page."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from privsyn_flower.config.api import api_words

P = ParamSpec("P")
T = TypeVar("T")

PREFIX = "privsyn: "  # what such a line begins with
_FLOWER = logging.getLogger("flwr")


class _AfterExitCode(logging.Handler):
    """Prints the reason behind Flower's "Exit Code: ...", once."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def emit(self, record: logging.LogRecord) -> None:
        """Nothing for any other line of Flower's."""
        if record.getMessage().startswith("Exit Code"):
            _FLOWER.removeHandler(self)
            print(f"{PREFIX}{self.reason}", file=sys.stderr, flush=True)


def print_last(reason: str) -> None:
    """Print this behind what Flower prints when a ServerApp fails. A later one takes its place."""
    for handler in list(_FLOWER.handlers):
        if isinstance(handler, _AfterExitCode):
            _FLOWER.removeHandler(handler)
    _FLOWER.addHandler(_AfterExitCode(" | ".join(reason.splitlines())))


def log_failure_reason(start: Callable[P, T]) -> Callable[P, T]:
    """A strategy's `start`, whose error is printed last. Raises TypeError naming all arguments
    that are missing."""
    required = [
        name
        for name, parameter in inspect.signature(start).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]

    @functools.wraps(start)
    def started(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            missing = [name for name in required if name not in named]
            if missing:
                raise TypeError(
                    f"start lacks {', '.join(missing)}: a private run needs more than Flower's "
                    "own start (docs/dropin.md)"
                )
            with api_words():
                return start(*arguments, **named)
        except Exception as error:
            print_last(f"{type(error).__name__}: {error}")
            raise

    return started
