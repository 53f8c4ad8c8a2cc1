"""Nothing but a user's bounded vector tells a server what that user wrote.

A whole run of each method, twice: on ordinary users, and with one user's texts replaced by
hostile ones. With equal randomness and without that user's vector, everything that the server
gets, writes or shows is the same bytes.

PRIVSYN_NONINTERFERENCE=full runs every method in every way (`make noninterference`).
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privsyn_flower.app.report import registry
from privsyn_flower.client_apps import answers
from privsyn_flower.protocol.wire import Refusal, WireError

from .hostile import FORMATS, HOSTILE, TARGET, neighbour
from .rig import Rig, Seen, differences, forced, rig
from .rows import rows_world
from .worlds import Case, app_world, population, world

__all__ = ["forced", "rig"]  # fixtures
FULL = os.environ.get("PRIVSYN_NONINTERFERENCE") == "full"

POISSON = (("sampler", "poisson"), ("sampling-rate", 0.5), ("epsilon", 20.0))

# Between them: every method, both kinds of node, every format, with and without labels, masked
# sums and plain ones, coins, turns, evaluations and both parties that may add the noise.
FEW: list[tuple[Case, tuple[str, ...]]] = [
    (Case("pretext", False, "jsonl"), ("together", "empty", "raising")),
    (Case("pretext", True, "csv"), ("together", "blank")),
    (Case("pe", True, "csv", labels=True), ("together", "raising")),
    (Case("popri", True, "jsonl", labels=True), ("together",)),
    (Case("popri", False, "csv"), ("together",)),
    (
        Case("dp-fedavg", False, "parquet", values=(("training.adaptive-clipping", True),)),
        ("together", "raising"),
    ),
    (Case("dp-fedavg", True, "csv", values=POISSON), ("together", "empty")),
    (Case("dp-fedavg", False, "jsonl", held_out=True), ("together", "blank")),
    (Case("dp-ftrl", True, "jsonl"), ("together", "raising")),
    (Case("matrix", True, "jsonl"), ("together",)),
    (Case("ctcl", True, "jsonl", labels=True), ("together", "raising")),
    (Case("ctcl", False, "csv", values=POISSON), ("together",)),
    (Case("evaluation", True, "csv"), ("together", "raising")),
    (Case("app", True, "csv"), ("together", "raising")),
    (Case("app-ftrl", False, "jsonl", values=(("aggregation", "plain"),)), ("together", "empty")),
]


def every() -> Iterator[tuple[Case, tuple[str, ...]]]:
    """The whole matrix: each kind of hostile text by itself, and all that can be together."""
    kinds = (*HOSTILE, "together")
    for method in (
        "pretext",
        "pe",
        "popri",
        "dp-fedavg",
        "dp-ftrl",
        "matrix",
        "ctcl",
        "evaluation",
        "app",
        "app-ftrl",
    ):
        for deployed in (False, True):
            for format_ in FORMATS:
                for labels in (False, True):
                    for aggregation in ("secure", "plain"):
                        values = (("aggregation", aggregation),)
                        yield Case(method, deployed, format_, labels, values=values), kinds


def named(value: Any) -> str:
    """A test's name says its case and, of the few, what the target writes."""
    return str(value) if isinstance(value, Case) else "all" if FULL else "+".join(value)


@pytest.fixture
def made(causal_folder: Path, rig: Rig) -> Callable[[Case, str], Seen]:
    """(case, "" or a kind of hostile text) -> what was seen of that run."""

    def run(case: Case, kind: str) -> Seen:
        users = population(case.deployed or case.method.startswith("app"))
        users = neighbour(users, kind) if kind else users
        if case.method.startswith("app"):
            return rig.run(app_world(case, users, rig.stream))
        if case.method == "matrix":
            return rig.run(rows_world(case, users, causal_folder, rig.stream))
        return rig.run(world(case, users, causal_folder, rig.stream))

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kinds"), list(every()) if FULL else FEW, ids=named)
def test_nothing_tells_what_one_user_wrote(
    case: Case, kinds: tuple[str, ...], made: Callable[[Case, str], Seen]
) -> None:
    before = made(case, "")
    assert not before.failure
    assert bool(before.contributions) is not case.held_out, "the test would see nothing"
    failures = []
    for kind in kinds:
        found = differences(before, made(case, kind))
        if found:
            failures += [f"--- {TARGET} writes {kind}: {len(found)} differences", *found[:6]]
    assert not failures, "\n".join(failures)


def _logs(text: str) -> None:
    logging.getLogger("privsyn_flower").info("embedding %d characters", len(text))


def _warns(text: str) -> None:
    warnings.warn(f"a sequence of {len(text)} is too long", stacklevel=2)


def _prints(text: str) -> None:
    print(len(text), file=sys.stderr)


def _refuses(text: str) -> None:
    if len(text) > 1000:
        raise WireError(Refusal.MEMORY, "too long")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leak", "where"),
    [(_logs, "log"), (_warns, "log"), (_prints, "stderr"), (_refuses, "message")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_node_that_tells_something_is_found(
    leak: Callable[[str], None],
    where: str,
    made: Callable[[Case, str], Seen],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The instrument itself: each way out is watched."""
    real = answers._users_or_none

    def telling(node: Any) -> Any:
        users = real(node)
        leak(max((text for texts in users.values() for text in texts), key=len))
        return users

    monkeypatch.setattr(answers, "_users_or_none", telling)
    case = Case("pretext", True, "jsonl")
    found = differences(made(case, ""), made(case, "long"))
    assert any(name.startswith(where) for name in found)


@pytest.mark.slow
def test_a_vector_that_is_not_forced_is_found(
    made: Callable[[Case, str], Seen], rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What epsilon is about shows, in a sum that is not masked."""
    case = Case("pretext", True, "jsonl", values=(("aggregation", "plain"),))
    monkeypatch.setattr("tests.noninterference.rig.TARGET", "nobody")
    found = differences(made(case, ""), made(case, "public"))
    assert any("reply" in name for name in found)


@pytest.mark.slow
def test_worlds_on_two_days_are_equal(
    made: Callable[[Case, str], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock has no part in it, midnight neither."""
    days = (datetime(2026, 12, 31, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    case, worlds = Case("pretext", True, "jsonl"), []
    for day in days:
        monkeypatch.setattr(registry, "datetime", SimpleNamespace(now=lambda _, day=day: day))
        worlds.append(made(case, ""))
    assert not differences(*worlds)
