"""Asking a server process that has faults: what passes leaves no trace, and what ends the job."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.public.asking import Answer, Counts, Request
from privsyn_flower.text.serving.http_client import ServerError
from tests.rigs.asking import Start, asker, chain, requests, texts


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 429, "retry_after": 0.01},
        {"kind": "status", "status": 500},
        {"kind": "hang", "seconds": 1.0},
        {"kind": "cut"},
        {"kind": "half"},
        {"kind": "empty"},
    ],
    ids=lambda fault: fault["kind"],
)
def test_passing_faults_leave_no_trace(
    canned: Start, tmp_path: Path, fault: dict[str, Any]
) -> None:
    server = canned(faults=[fault | {"part": "3", "times": 1}])
    timeout = 0.3 if fault["kind"] == "hang" else 60.0
    with asker(server, tmp_path, timeout=timeout) as ask:
        found = texts(ask.ask(requests(14)))
    assert found == {i: f"echo: text {i}" for i in range(14)}
    assert ask.counts.failed == 0
    assert Counter(server.prompts())["text 3"] == Counter(server.prompts())["text 13"] == 2


def test_retry_after_is_waited_for(canned: Start, tmp_path: Path) -> None:
    server = canned(faults=[{"kind": "status", "status": 429, "retry_after": 0.4, "times": 1}])
    start = time.monotonic()
    with asker(server, tmp_path) as ask:
        assert texts(ask.ask(requests(1))) == {0: "echo: text 0"}
    assert time.monotonic() - start >= 0.4


def test_a_text_that_is_cut_at_max_tokens_is_one(canned: Start, tmp_path: Path) -> None:
    server = canned(rules=[["", "one two three four"]], faults=[{"kind": "long", "times": -1}])
    with asker(server, tmp_path) as ask:
        assert texts(ask.ask(requests(1))) == {0: "one two"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 400},
        {"kind": "status", "status": 500},
        {"kind": "hang", "seconds": 0.5},
        {"kind": "half"},
        {"kind": "withheld"},
        {"kind": "silent"},
    ],
    ids=lambda fault: f"{fault['kind']}{fault.get('status', '')}",
)
def test_one_request_that_fails_for_good_does_not_end_the_job(
    canned: Start, tmp_path: Path, fault: dict[str, Any]
) -> None:
    """It has no text, is not kept, and may be answered another time."""
    server = canned(faults=[fault | {"part": "text 5", "times": -1}])
    for given in (0, 11):  # the second time, nothing else is asked
        with asker(server, tmp_path, timeout=0.2, retries=1) as ask:
            found = texts(ask.ask(requests(12)))
        assert found == {i: None if i == 5 else f"echo: text {i}" for i in range(12)}
        assert (ask.counts.sent, ask.counts.cached, ask.counts.failed) == (11 - given, given, 1)
    server.kill()
    healthy = canned()
    with asker(healthy, tmp_path) as ask:
        assert texts(ask.ask(requests(12)))[5] == "echo: text 5"
    assert healthy.prompts() == ["text 5"]


def test_a_chain_goes_on_beside_a_request_that_failed(canned: Start, tmp_path: Path) -> None:
    server = canned(faults=[{"kind": "status", "status": 422, "part": "p1", "times": -1}])
    lost: list[Answer] = []

    def more(answer: Answer) -> Iterator[Request]:
        if answer.text is None:
            lost.append(answer)
        else:
            yield from chain(2, 2)(answer)

    first = [Request(f"p{i}", 4, note=(i,)) for i in range(6)]
    with asker(server, tmp_path) as ask:
        assert len(list(ask.grow(first, more))) == 1 + 5 * 3
    assert [answer.request.note for answer in lost] == [(1,)]


def test_a_server_that_goes_down_ends_the_job_and_the_next_goes_on(
    canned: Start, tmp_path: Path
) -> None:
    server = canned(seconds=0.001)
    endless = (Request(f"text {i}", 8, note=i) for i in itertools.count())
    got = 0
    with asker(server, tmp_path, retries=1) as ask:
        with pytest.raises(ServerError, match=r"4 requests in a row failed.*base-url.*goes on"):
            for got, _ in enumerate(ask.ask(endless), start=1):
                if got == 50:
                    server.kill()
        assert got <= 60
    again = canned()
    with asker(again, tmp_path) as ask:
        assert len(list(ask.ask(requests(got + 10)))) == got + 10
    assert ask.counts.cached >= got


def test_a_server_that_is_not_there_is_told_at_once(canned: Start, tmp_path: Path) -> None:
    server = canned()
    server.kill()
    with asker(server, tmp_path, retries=2) as ask, pytest.raises(ServerError, match="base-url"):
        list(ask.ask(requests(1)))
    assert ask.counts == Counts()


@pytest.mark.parametrize("status", [401, 404])
def test_what_concerns_every_request_ends_the_job(
    canned: Start, tmp_path: Path, status: int
) -> None:
    server = canned(faults=[{"kind": "status", "status": status, "times": -1}])
    with asker(server, tmp_path) as ask, pytest.raises(ServerError, match=f"status {status}"):
        list(ask.ask(requests(100)))
    assert len(server.prompts()) <= 2 * 4


def test_a_server_that_refuses_everything_ends_the_job(canned: Start, tmp_path: Path) -> None:
    """As one does that does not know top_k; the server's words say so."""
    server = canned(faults=[{"kind": "status", "status": 400, "times": -1}])
    with (
        asker(server, tmp_path) as ask,
        pytest.raises(ServerError, match=r"each of the first 8 requests was refused.*to order"),
    ):
        list(ask.ask(requests(100)))


def test_an_outage_that_ends_loses_nothing(canned: Start, tmp_path: Path) -> None:
    """A request that ran out of the client's retries is asked once more."""
    server = canned(faults=[{"kind": "status", "status": 503, "part": "0", "times": 3}])
    with asker(server, tmp_path, retries=1) as ask:
        found = texts(ask.ask(requests(30)))
    assert found == {i: f"echo: text {i}" for i in range(30)}


def test_half_a_pair_of_surrogates_goes_out_and_comes_back(canned: Start, tmp_path: Path) -> None:
    server = canned(rules=[["odd", "an \ud83d answer"]])
    with asker(server, tmp_path) as ask:
        assert texts(ask.ask([Request("odd \udce9", 8)])) == {None: "an ? answer"}
    assert server.prompts() == ["odd \udce9"]
