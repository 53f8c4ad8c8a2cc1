"""Completions over HTTP against a small server of our own: requests, retries, refusals."""

from __future__ import annotations

import contextlib
import email.utils
import gzip
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.text.models.adapters import AdapterError
from privsyn_flower.text.prompts import HEADING, expand
from privsyn_flower.text.protocols import AdaptableGenerator, Sampling
from privsyn_flower.text.serving import http_client
from privsyn_flower.text.serving.completions import completions_of, reply_of
from privsyn_flower.text.serving.http_client import ServerError, adapter_name, check_url
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
from tests.fuzz import fuzz_settings
from tests.rigs.http_generator import (
    Answer,
    Body,
    Fake,
    choices,
    echo,
    fake,  # noqa: F401
)

PROMPTS = ["a\\n b\n", "café — 水", "", '"quotes" <s>', " x" * 50]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def make(fake: Fake, **options: Any) -> OpenAIGenerator:
    return OpenAIGenerator(fake.url, "m", **{"progress": False, "timeout": 5.0} | options)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def recorded_waits(generator: OpenAIGenerator, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(generator.client._closing, "wait", wait)
    return waits


# What goes out and comes back


def test_prompts_go_out_unchanged_and_answers_come_in_order(fake: Fake) -> None:
    def slow_first(body: Body) -> Answer:
        time.sleep(0.15 if body["prompt"] == PROMPTS[0] else 0.0)
        return echo(body)

    fake.answers["/v1/completions"] = slow_first
    generator = make(fake, max_tokens=7, temperature=0.5, top_p=0.9, stop=("END", "\n\n"))
    assert isinstance(generator, AdaptableGenerator)
    found = generator.complete(PROMPTS, 3, rng())
    assert found == [[f"m|{prompt}|{i}" for i in range(3)] for prompt in PROMPTS]
    bodies = {body["prompt"]: body for body in fake.bodies()}
    assert set(bodies) == set(PROMPTS)
    assert len(fake.bodies()) == len(PROMPTS)  # n = 3 in one request each
    for prompt, seed in zip(PROMPTS, rng().integers(2**31, size=len(PROMPTS)), strict=True):
        assert bodies[prompt] == {
            "model": "m", "prompt": prompt, "n": 3, "seed": int(seed), "temperature": 0.5,
            "top_p": 0.9, "max_tokens": 7, "stop": ["END", "\n\n"],
        }  # fmt: skip


def test_top_k_goes_out_above_0_alone(fake: Fake) -> None:
    make(fake, top_k=40).complete(["p"], 1, rng())
    make(fake).complete(["p"], 1, rng())
    assert [body.get("top_k") for body in fake.bodies()] == [40, None]
    with pytest.raises(ValueError, match=r"expand.top-k = -1"):
        make(fake, top_k=-1)


def test_equal_generators_send_equal_requests(fake: Fake) -> None:
    def sent(seed: int) -> list[tuple[str, int]]:
        fake.asked.clear()
        make(fake).complete(PROMPTS, 2, rng(seed))
        return sorted((body["prompt"], body["seed"]) for body in fake.bodies())

    first, again, other = sent(1), sent(1), sent(2)
    assert first == again
    assert not {seed for _, seed in first} & {seed for _, seed in other}


def test_as_many_requests_at_once_as_allowed(fake: Fake) -> None:
    def slow(body: Body) -> Answer:
        time.sleep(0.03)
        return echo(body)

    fake.answers["/v1/completions"] = slow
    make(fake, concurrency=3).complete(["p"] * 24, 1, rng())
    assert fake.most_at_once == 3


def test_texts_are_cut_at_stop_strings_and_ordered_by_index(fake: Fake) -> None:
    text = f"one\ntwo\n{HEADING} 5\nthree"
    fake.answers["/v1/completions"] = lambda body: (
        200, {"choices": [{"index": 1, "text": text}, {"index": 0, "text": "first"}]}
    )  # fmt: skip
    assert make(fake).complete(["p"], 2, rng()) == [["first", "one\ntwo\n"]]


def test_expansion_reads_the_same_samples(fake: Fake) -> None:
    """The whole way: prompts of seeds, answers with a heading, samples on one line."""

    def answer(body: Body) -> Answer:
        return 200, choices(f"words of\n sample {body['seed']}\n{HEADING} 5\nand more")

    fake.answers["/v1/completions"] = answer
    seeds = ["alpha beta", "gamma delta", "epsilon zeta"]
    texts = expand(seeds, make(fake), samples=5, rng=rng(3), progress=False)
    found = sorted(one.text for one in texts)
    assert found == sorted(f"words of sample {body['seed']}" for body in fake.bodies())
    assert all(body["prompt"].endswith(f"{HEADING} 4\n") for body in fake.bodies())


def test_no_prompts_no_requests(fake: Fake) -> None:
    assert make(fake).complete([], 2, rng()) == []
    assert fake.asked == []


@pytest.mark.parametrize("given", [1, 2])
def test_a_server_that_ignores_n_is_asked_again(
    fake: Fake, given: int, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers["/v1/completions"] = lambda body: (
        200, choices(*(f"{body['seed']}+{i}" for i in range(min(given, body["n"]))))
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        found = make(fake, concurrency=1).complete(["p", "q"], 5, rng())
    assert [len(texts) for texts in found] == [5, 5]
    first = int(rng().integers(2**31, size=2)[0])
    assert found[0] == [f"{first + i - i % given}+{i % given}" for i in range(5)]
    # Only the very first request asked for all.
    assert [body["n"] for body in fake.bodies()].count(5) == 1
    assert sum("prompts are repeated" in record.message for record in caplog.records) == 1


def test_a_server_that_does_not_sample_is_reported(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers["/v1/completions"] = lambda body: (200, choices(*["same"] * body["n"]))
    with caplog.at_level(logging.WARNING):
        make(fake).complete(["a", "b", "c", "d"], 2, rng())
    assert "does it sample" in caplog.text


def test_prompts_longer_than_a_vllm_server_reads_lose_their_beginning(fake: Fake) -> None:
    card = {"id": "m", "owned_by": "vllm", "max_model_len": 512}
    fake.answers["/v1/models"] = lambda body: (200, {"data": [{"id": "x"}, card]})
    generator = make(fake, max_tokens=100)
    generator.complete(["p"], 1, rng())
    (body,) = fake.bodies()
    assert (body["truncate_prompt_tokens"], body["truncation_side"]) == (412, "left")
    generator.max_tokens = 200  # of the next call: the server refuses what does not fit
    generator.complete(["p"], 1, rng())
    assert fake.bodies()[-1]["truncate_prompt_tokens"] == 312
    with pytest.raises(ValueError, match=r"expand.max-tokens = 512.*512 tokens"):
        make(fake, max_tokens=512).complete(["p"], 1, rng())


# Failures


def fail_first(times: int, status: int, headers: dict[str, str]) -> Callable[[Body], Answer]:
    left = [times]

    def answer(body: Body) -> Answer:
        left[0] -= 1
        return (status, {"error": {"message": "busy"}}, headers) if left[0] >= 0 else echo(body)

    return answer


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_passing_failures_are_tried_again(fake: Fake, status: int) -> None:
    fake.answers["/v1/completions"] = fail_first(2, status, {})
    assert make(fake, retries=2).complete(["p"], 1, rng()) == [["m|p|0"]]
    fake.answers["/v1/completions"] = fail_first(3, status, {})
    with pytest.raises(ServerError, match=f"status {status} .busy.") as raised:
        make(fake, retries=2).complete(["p"], 1, rng())
    assert raised.value.status == status
    assert fake.url in str(raised.value)
    assert len(fake.bodies()) == 6


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 301])
def test_lasting_refusals_are_not(fake: Fake, status: int) -> None:
    location = {"Location": f"{fake.url}/elsewhere"}
    fake.answers["/v1/completions"] = lambda body: (status, {"detail": "never"}, location)
    with pytest.raises(ServerError, match="never"):
        make(fake).complete(["p"], 1, rng())
    assert len(fake.bodies()) == 1
    assert fake.bodies("/elsewhere") == []


def test_retry_after_is_honoured(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = make(fake, timeout=60.0)
    waits = recorded_waits(generator, monkeypatch)
    fake.answers["/v1/completions"] = fail_first(1, 429, {"Retry-After": "7"})
    generator.complete(["p"], 1, rng())
    assert waits == [7.0]
    date = email.utils.formatdate(time.time() + 20, usegmt=True)
    fake.answers["/v1/completions"] = fail_first(1, 503, {"Retry-After": date})
    generator.complete(["p"], 1, rng())
    assert 15 < waits[1] <= 20
    fake.answers["/v1/completions"] = fail_first(1, 429, {"Retry-After": "61"})
    with pytest.raises(ServerError, match=r"61 s, more than generation.timeout = 60 s"):
        generator.complete(["p"], 1, rng())


def test_waits_grow_and_differ(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.5)
    generator = make(fake, retries=8)
    waits = recorded_waits(generator, monkeypatch)
    fake.answers["/v1/completions"] = lambda body: (503, {})
    for seed in (1, 2):
        with pytest.raises(ServerError):
            generator.complete(["p"], 1, rng(seed))
    first, second = np.array(waits[:8]), np.array(waits[8:])
    assert (np.diff(first[:6]) > 0).all()
    assert 0.5 <= first[0] <= 0.75
    assert first.max() <= 45
    assert (first != second).all()


def test_server_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    generator = OpenAIGenerator(f"http://127.0.0.1:{port}", "m", retries=2, progress=False)
    waits = recorded_waits(generator, monkeypatch)
    with pytest.raises(ServerError, match=rf"127.0.0.1:{port}.*generation.base-url") as raised:
        generator.complete(["p"], 1, rng())
    assert raised.value.status == 0
    assert len(waits) == 2


def test_slow_server(fake: Fake) -> None:
    over = threading.Event()

    def hang(body: Body) -> Answer:
        over.wait(5)
        return echo(body)

    fake.answers["/v1/completions"] = hang
    with pytest.raises(ServerError, match=r"generation.timeout = 1 s"):
        make(fake, timeout=1, retries=1).complete(["p"], 1, rng())
    over.set()
    assert len(fake.bodies()) == 2


def test_an_answer_is_not_read_for_longer_than_the_timeout(fake: Fake) -> None:
    def trickle() -> Iterator[bytes]:
        for _ in range(50_000):
            time.sleep(0.02)
            yield b" "

    fake.answers["/v1/completions"] = lambda body: (200, trickle())
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"generation.timeout = 0.2 s"):
        make(fake, timeout=0.2, retries=0).complete(["p"], 1, rng())
    assert time.monotonic() - began < 600


def test_headers_are_not_read_for_longer_than_the_timeout(fake: Fake) -> None:
    """A byte now and then never is the silence that httpx waits for."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as there:
                there.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
                while not over.wait(0.05):
                    there.sendall(b"a")

        thread = threading.Thread(target=trickle)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        client = http_client.JsonClient(address, timeout=0.5, retries=0)
        end = threading.Timer(20, over.set)  # of a client that would read on
        end.start()
        try:
            with pytest.raises(ServerError, match=r"generation.timeout = 0.5 s"):
                client.get("/models")
            assert not over.is_set()
        finally:
            over.set()
            end.cancel()
            client.close()
            thread.join()


def test_a_cut_that_comes_late_does_not_meet_the_next_request(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, under_way, over = threading.Event(), threading.Event(), threading.Event()
    cut = http_client._Line.cut

    def late(line: http_client._Line) -> None:
        began.set()
        under_way.wait(5)
        cut(line)
        over.set()

    def trickle() -> Iterator[bytes]:
        while not began.wait(0.02):
            yield b" "
        yield b" "

    def second(body: Body) -> Answer:
        under_way.set()
        assert over.wait(5)
        return echo(body)

    # The deadline passes once the cut began: on a busy machine it could be missed before, and the
    # cut called off.
    clock = SimpleNamespace(monotonic=lambda: 60.0 if began.is_set() else 0.0, time=time.time)
    monkeypatch.setattr(http_client, "time", clock)
    monkeypatch.setattr(http_client._Line, "cut", late)
    generator = make(fake, timeout=1.0, retries=0)
    fake.answers["/v1/completions"] = lambda body: (200, trickle())
    with pytest.raises(ServerError, match=r"generation.timeout = 1 s"):
        generator.complete(["p"], 1, rng())
    fake.answers["/v1/completions"] = second
    generator.client.timeout = 30.0  # however busy the machine is
    assert generator.complete(["p"], 1, rng()) == [["m|p|0"]]


def test_an_answer_without_an_end_is_not_held_in_memory(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "LONGEST", 10**6)
    sent = [0]

    def endless() -> Iterator[bytes]:
        while True:
            sent[0] += 1
            yield b" " * 10**5

    fake.answers["/v1/completions"] = lambda body: (200, endless())
    with pytest.raises(ServerError, match="the answer is longer than"):
        make(fake, retries=1).complete(["p"], 1, rng())
    assert len(fake.bodies()) == 2  # perhaps it was this answer
    fake.answers["/v1/completions"] = lambda body: (400, endless())
    with pytest.raises(ServerError, match=r"status 400 .no reason given."):
        make(fake).complete(["p"], 1, rng())
    time.sleep(0.05)
    assert sent[0] < 1000  # megabytes of what the sockets hold, and then the connection ends


def test_a_compressed_answer_is_not_unpacked(fake: Fake) -> None:
    packed = gzip.compress(json.dumps(choices("x")).encode())
    fake.answers["/v1/completions"] = lambda body: (200, packed, {"Content-Encoding": "gzip"})
    with pytest.raises(ServerError, match=r"compressed \(gzip\), which was not asked for"):
        make(fake).complete(["p"], 1, rng())
    assert fake.codings == {"identity"}


def test_what_a_server_says_cannot_steer_a_terminal(fake: Fake) -> None:
    said = "\x1b[2J\x1b]0;mine\x07 bad\r\n\u202e request\x9b1A" + "!" * 500
    fake.answers["/v1/completions"] = lambda body: (404, {"error": {"message": said}})
    fake.answers["/v1/models"] = lambda body: (200, {"data": [{"id": "\x1b[31mbig" + "x" * 200}]})
    with pytest.raises(ServerError) as raised:
        make(fake).complete(["p"], 1, rng())
    words = str(raised.value)
    assert words.isprintable() and "bad request" in words and "it has [31mbig" in words
    assert len(words) < 1000


def test_token_counts_that_no_answer_can_have_are_none(fake: Fake) -> None:
    usage = {"prompt_tokens": 2**63, "completion_tokens": 7}
    fake.answers["/v1/completions"] = lambda body: (200, choices("x") | {"usage": usage})
    [reply] = make(fake).answer(["p"], Sampling(4), [1])
    assert (reply.text, reply.prompt_tokens, reply.tokens) == ("x", None, 7)


def test_one_failure_ends_the_rest(fake: Fake) -> None:
    def refuse(body: Body) -> Answer:
        time.sleep(0.01)
        return (400, {"detail": "no"}) if body["prompt"] == "3" else echo(body)

    fake.answers["/v1/completions"] = refuse
    with pytest.raises(ServerError, match="no"):
        make(fake, concurrency=2).complete([str(i) for i in range(200)], 1, rng())
    assert len(fake.bodies()) < 100


def test_wrong_model_lists_what_the_server_has(fake: Fake) -> None:
    fake.answers["/v1/completions"] = lambda body: (404, {"error": {"message": "no such model"}})
    fake.answers["/v1/models"] = lambda body: (200, {"data": [{"id": "big"}, {"id": "small"}]})
    with pytest.raises(ServerError, match=r"'m'; it has big, small: set models.generator"):
        make(fake).complete(["p"], 1, rng())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>welcome</html>", "no completion"),
        (b"", "no completion"),
        (b"\xff\xfe", "no completion"),
        ([1, 2], "no completion"),
        ({"object": "list"}, "no completion"),
        ({"choices": []}, "no completion"),
        ({"choices": {"text": "x"}}, "no completion"),
        ({"choices": [{"message": {"content": "x"}}]}, "/v1/completions"),
        ({"choices": [{"index": 0, "text": None}]}, "without `text`"),
        ({"choices": ["x"]}, "without `text`"),
        (b'{"choices": ' + b"[" * 100_000, "no completion"),
    ],
)
def test_malformed_answers(fake: Fake, answer: Any, says: str) -> None:
    fake.answers["/v1/completions"] = lambda body: (200, answer)
    with pytest.raises(ServerError, match=says) as raised:
        make(fake, retries=2).complete(["p"], 1, rng())
    assert fake.url in str(raised.value)
    # Half an answer may be whole the next time; one in another form will not be.
    assert len(fake.bodies()) == (3 if says == "no completion" else 1)


def say(*contents: Any, reason: str = "stop") -> Answer:
    """An answer of a chat."""
    found = [
        {"index": i, "message": {"content": content}, "finish_reason": reason}
        for i, content in enumerate(contents)
    ]
    return 200, {"choices": found}


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (say(None, reason="length"), "without content (finish_reason = 'length')"),
        (say("", reason="length"), "without content (finish_reason = 'length')"),
        (say("half", reason="content_filter"), "(finish_reason = 'content_filter')"),
        (say([{"type": "image"}]), "without content (finish_reason = 'stop')"),
        (say("<think>so", reason="length"), "unfinished <think> (finish_reason = 'length')"),
        (
            (200, {"choices": [{"message": {"content": None, "refusal": "I cannot"}}]}),
            "refused by the model",
        ),
    ],
)
def test_completions_of_no_use_are_asked_for_again_and_counted(
    fake: Fake, bad: Answer, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every fourth is none: nothing is lost. Most are none: the cause and the key are named."""
    fake.answers["/v1/chat/completions"] = lambda body: (
        bad if len(fake.bodies("/v1/chat/completions")) % 4 == 0 else say(f"text {body['seed']}")
    )
    found = make(fake, chat=True, concurrency=1).complete(["p"] * 30, 1, rng())
    assert all(text.startswith("text ") for (text,) in found)
    assert len(fake.bodies("/v1/chat/completions")) == 39
    [warning] = [record.getMessage() for record in caplog.records]
    assert "9 of 39 completions are of no use" in warning and cause in warning
    fake.answers["/v1/chat/completions"] = lambda body: bad
    way = r"expand\.max-tokens = 7" if "length" in cause else "another models.generator"
    with pytest.raises(ServerError, match=way) as raised:
        make(fake, chat=True, max_tokens=7).complete(["p"] * 30, 1, rng())
    assert cause in str(raised.value)
    [reply] = make(fake, chat=True).answer(["p"], Sampling(4), [1])
    assert reply.text == ("" if "think" in cause else None)  # all thought: it said nothing


def test_a_base_models_completion_may_be_null(fake: Fake) -> None:
    answers = [{"text": None, "finish_reason": "length"}, {"text": "words"}]
    fake.answers["/v1/completions"] = lambda body: (200, {"choices": [answers.pop(0)]})
    assert make(fake).complete(["p"], 1, rng()) == [["words"]]
    seeds = [body["seed"] for body in fake.bodies()]
    assert seeds[1] == seeds[0] + 1  # the same again would be of no use again


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>Let me see.\n</think>\n\nIt rains.", "It rains."),
        ("Let me see.</think> It rains.", "It rains."),  # the template began it
        ("It <think>a</think>rains<think>b</think>.", "It rains."),
        ([{"type": "text", "text": "It "}, {"type": "x"}, {"text": "rains."}], "It rains."),
        ("half \ud83d a pair", "half ? a pair"),
    ],
)
def test_what_is_said_is_read(fake: Fake, content: Any, text: str) -> None:
    fake.answers["/v1/chat/completions"] = lambda body: say(content)
    assert make(fake, chat=True).complete(["p"], 1, rng()) == [[text]]
    assert make(fake, chat=True).answer(["p"], Sampling(4), [1])[0].text == text
    if "<think>" in content:
        assert make(fake, chat=True, thinking_tag="").complete(["p"], 1, rng()) == [[content]]


def test_parameters_that_a_server_refuses(fake: Fake) -> None:
    """The error names the key; with it the same requests are taken."""

    def answer(body: Body) -> Answer:
        if "max_tokens" in body:
            why = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return 400, {"error": {"message": why}}
        for name in ("n", "seed", "temperature"):
            if name in body:
                return 400, {"error": {"message": f"Unsupported value: '{name}' does not ..."}}
        return echo(body | {"n": 1})

    fake.answers["/v1/completions"] = answer
    options: dict[str, Any] = {}
    for words in (
        "generation.token-parameter = 'max-completion-tokens'",
        "generation.leave-out = 'n'",
        "generation.leave-out = 'n, seed'",
        "generation.leave-out = 'n, seed, temperature'",
    ):
        fake.asked.clear()
        with pytest.raises(ServerError, match=f"; set {words}"):
            make(fake, **options).complete(["p"], 1, rng())
        key, _, value = words.partition(" = ")
        named = value.strip("'")
        options |= (
            {"leave_out": named.split(", ")}
            if "leave" in key
            else {"token_parameter": named.replace("-", "_")}
        )
    assert make(fake, **options).complete(["p"], 1, rng()) == [["m|p|0"]]
    assert fake.bodies()[-1]["max_completion_tokens"] == 85


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "This is a chat model and not supported in the v1/completions endpoint."),
        (400, "not supported, use chat"),
        (404, ""),
    ],
)
def test_a_chat_model_behind_completions(fake: Fake, status: int, message: str) -> None:
    fake.answers["/v1/completions"] = lambda body: (status, {"error": {"message": message}})
    with pytest.raises(ServerError, match=r"set generation\.chat = true"):
        make(fake).complete(["p"], 1, rng())


@pytest.mark.parametrize(
    "models",
    [
        {"data": 7},
        {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": "abc"}]},
        b'{"data": [{"id": "m", "owned_by": "vllm", "max_model_len": Infinity}]}',
        b'{"data": [{"id": "m", "owned_by": "vllm", "max_model_len": NaN}]}',
        {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": -5}]},
        {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": True}]},
        {"data": [7, None, {"id": ["\ud800"]}]},
        [],
        b"\xff",
    ],
)
def test_a_list_of_models_that_says_nothing(fake: Fake, models: Any) -> None:
    fake.answers["/v1/models"] = lambda body: (200, models)
    assert make(fake).complete(["p"], 1, rng()) == [["m|p|0"]]
    assert "truncate_prompt_tokens" not in fake.bodies()[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["choices", "message", "content", "text", "index", "finish_reason", "usage", "refusal"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.fuzz
@fuzz_settings(300)
@given(choice=JSON, answer=JSON, chat=st.booleans())
def test_any_answer_is_a_text_or_refused(choice: Any, answer: Any, chat: bool) -> None:
    for found in ({"choices": [choice]}, {"choices": [{"message": choice}]}, answer):
        try:
            texts = [one.text for one in completions_of(found, 1, "server", chat)]
            texts.append(reply_of(found, "server", chat).text)
        except ServerError as error:
            assert str(error).startswith("server: ")
            continue
        assert all(text is None or text.encode("utf-8").decode() == text for text in texts)


def test_a_chat_is_a_users_turn(fake: Fake) -> None:
    """What a server that offers chat alone is asked; its prompt is not cut by us."""

    def answer(body: Body) -> Answer:
        said = body["messages"][0]["content"]
        found = [{"index": i, "message": {"content": f"{said}|{i}END"}} for i in range(body["n"])]
        return 200, {"choices": found}

    fake.answers["/v1/chat/completions"] = answer
    found = make(fake, chat=True, stop=("END",)).complete(["p", "q"], 2, rng())
    assert found == [["p|0", "p|1"], ["q|0", "q|1"]]
    [body, _] = sorted(fake.bodies("/v1/chat/completions"), key=lambda b: str(b["messages"]))
    assert body["messages"] == [{"role": "user", "content": "p"}]
    assert not {"prompt", "truncate_prompt_tokens"} & set(body)
    fake.answers["/v1/chat/completions"] = lambda _: (200, {"choices": [{"text": "x"}]})
    with pytest.raises(ServerError, match="offer chat"):
        make(fake, chat=True).complete(["p"], 1, rng())


def test_the_key_is_sent_and_never_shown(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    generator = make(fake, api_key_env="MY_KEY", retries=1)
    caplog.set_level(logging.DEBUG)
    generator.complete(["p"], 1, rng())
    assert set(fake.keys) == {"Bearer sk-secret-1"}
    for status in (401, 500):
        fake.answers["/v1/completions"] = lambda body, status=status: (
            status, {"error": {"message": "Incorrect API key: sk-secret-1"}}
        )  # fmt: skip
        with pytest.raises(ServerError, match=r"Incorrect API key: \[key\]") as raised:
            generator.complete(["p"], 1, rng())
        assert "sk-secret-1" not in str(raised.value)
        assert status != 401 or "generation.api-key-env" in str(raised.value)
    for before in range(http_client.SHOWN - 12, http_client.SHOWN):  # wherever the words are cut
        message = "x" * before + "sk-\x00secret-1 and more"
        fake.answers["/v1/completions"] = lambda body, said=message: (400, {"detail": said})
        with pytest.raises(ServerError) as raised:
            generator.complete(["p"], 1, rng())
        assert "sk-" not in str(raised.value)
    assert "sk-secret-1" not in caplog.text
    fake.keys.clear()
    fake.answers["/v1/completions"] = echo
    make(fake).complete(["p"], 1, rng())
    assert set(fake.keys) == {None}


def test_addresses() -> None:
    assert check_url("http://h:1") == check_url(" http://h:1/v1/ ") == "http://h:1/v1"
    assert check_url("https://h/api/v1") == "https://h/api/v1"
    for wrong in ("", "h:1", "ftp://h", "http://", "/v1"):
        with pytest.raises(ValueError, match=r"generation.base-url"):
            check_url(wrong)
    for wrong in ("http://me:pw-7@h/v1", "http://h/v1?key=pw-7"):
        with pytest.raises(ValueError, match=r"generation.api-key-env") as raised:
            check_url(wrong)
        assert "pw-7" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"stop": "END"}, {"stop": ("",)}, {"stop": tuple("abcde")}, {"max_tokens": 0},
        {"concurrency": 0}, {"retries": -1}, {"timeout": 0.0}, {"temperature": 0.0}, {"top_p": 1.5},
    ],
)  # fmt: skip
def test_options_out_of_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        OpenAIGenerator("http://127.0.0.1:1", "m", **options)


# Adapters and sleep


def write_adapter(folder: Path, weights: bytes, alpha: int = 8) -> Path:
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": alpha}))
    return folder


@pytest.fixture
def vllm(fake: Fake) -> Fake:
    """The fake with vLLM's further calls; `loaded` is what is there."""
    loaded: dict[str, str] = {}

    def load(body: Body) -> Answer:
        loaded[body["lora_name"]] = body["lora_path"]
        return 200, "Success"

    def unload(body: Body) -> Answer:
        gone = loaded.pop(body["lora_name"], None)
        return (200, "Success") if gone else (404, {"error": {"message": "not found"}})

    def complete(body: Body) -> Answer:
        if body["model"] not in {"m", *loaded}:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        return echo(body)

    fake.answers |= {
        "/v1/load_lora_adapter": load, "/v1/unload_lora_adapter": unload,
        "/v1/completions": complete, "/sleep?level=1": lambda body: (200, {}),
        "/wake_up": lambda body: (200, {}),
    }  # fmt: skip
    fake.loaded = loaded  # type: ignore[attr-defined]
    return fake


def paths(fake: Fake) -> list[str]:
    """Calls since the last look, without completions and lists."""
    found = [path for path, _ in fake.asked if path not in {"/v1/completions", "/v1/models"}]
    fake.asked.clear()
    return found


def test_adapters_by_content(vllm: Fake, tmp_path: Path) -> None:
    one = write_adapter(tmp_path / "one", b"1")
    same = write_adapter(tmp_path / "same", b"1")
    two = write_adapter(tmp_path / "two", b"2")
    assert adapter_name(one) == adapter_name(same) != adapter_name(two)
    assert adapter_name(write_adapter(tmp_path / "three", b"1", alpha=16)) != adapter_name(one)
    generator = make(vllm, adapters=True)

    def models() -> set[str]:
        return {text.split("|")[0] for (text,) in generator.complete(["p", "q"], 1, rng())}

    generator.use_adapter(None)
    assert models() == {"m"}
    assert paths(vllm) == []
    generator.use_adapter(one)
    assert models() == {adapter_name(one)}
    assert vllm.loaded == {adapter_name(one): str(one)}  # type: ignore[attr-defined]
    assert paths(vllm) == ["/v1/load_lora_adapter"]
    generator.use_adapter(same)
    assert paths(vllm) == []
    generator.use_adapter(two)
    assert models() == {adapter_name(two)}
    assert paths(vllm) == ["/v1/unload_lora_adapter", "/v1/load_lora_adapter"]
    generator.use_adapter(None)
    assert models() == {"m"}
    generator.use_adapter(one)
    generator.close()
    generator.close()
    assert vllm.loaded == {}  # type: ignore[attr-defined]


def test_adapters_that_cannot_be_loaded(vllm: Fake, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "one", b"1")
    with pytest.raises(ServerError, match=r'generation.backend = "openai".*"vllm"'):
        make(vllm).use_adapter(adapter)
    generator = make(vllm, adapters=True)
    with pytest.raises(AdapterError, match=r"nothing is no adapter: adapter_config.json"):
        generator.use_adapter(tmp_path / "nothing")
    vllm.answers["/v1/load_lora_adapter"] = lambda body: (500, {"error": {"message": "rank 64"}})
    with pytest.raises(ServerError, match=r"rank 64.*popri.lora-rank"):
        generator.use_adapter(adapter)
    assert len(vllm.bodies("/v1/load_lora_adapter")) == 1  # a refusal, not a passing failure
    del vllm.answers["/v1/load_lora_adapter"]
    with pytest.raises(ServerError, match=r"VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        generator.use_adapter(adapter)
    vllm.answers["/v1/load_lora_adapter"] = lambda body: (400, {"message": "already loaded"})
    generator.use_adapter(adapter)  # by another run: the same content


def test_sleep_and_wake(vllm: Fake, tmp_path: Path) -> None:
    generator = make(vllm, adapters=True)
    generator.use_adapter(write_adapter(tmp_path / "one", b"1"))
    generator.complete(["p"], 1, rng())
    paths(vllm)
    generator.rest()
    generator.rest()
    assert paths(vllm) == ["/sleep?level=1"]
    generator.complete(["p"], 1, rng())
    # The adapter is loaded afresh: its weights may not survive the sleep.
    assert paths(vllm) == ["/wake_up", "/v1/unload_lora_adapter", "/v1/load_lora_adapter"]
    generator.complete(["p"], 1, rng())
    assert paths(vllm) == []
    # An adapter that cannot come back is an error every time, never the base model.
    generator.rest()
    vllm.answers["/v1/load_lora_adapter"] = lambda body: (500, {})
    for _ in range(2):
        with pytest.raises(ServerError):
            generator.complete(["p"], 1, rng())


def test_servers_that_cannot_sleep(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    generator = make(fake, adapters=True)
    for _ in range(2):
        generator.rest()
        generator.complete(["p"], 1, rng())
    assert paths(fake) == ["/sleep?level=1"]
    assert sum("does not offer /sleep" in record.message for record in caplog.records) == 1
    make(fake).rest()
    assert paths(fake) == []  # a hosted server is not even asked


def test_closed_while_waiting(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """close() ends waits between attempts."""
    monkeypatch.setattr(http_client, "FIRST_WAIT", 60.0)
    monkeypatch.setattr(http_client, "LONGEST_WAIT", 60.0)
    generator = make(fake)
    fake.answers["/v1/completions"] = lambda body: (503, {})
    errors: list[Exception] = []

    def ask() -> None:
        try:
            generator.complete(["p"], 1, rng())
        except ServerError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not fake.bodies():
        time.sleep(0.01)
    generator.close()
    thread.join(5)
    assert not thread.is_alive()
    assert "closed" in str(errors[0])


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("http://gpu-box:8000/v1", "sk-secret", "in the clear"),
        ("https://models.example/v1", "sk-secret\nsk-second", "no header can carry"),
        ("https://models.example/v1", "sk-sécret", "no header can carry"),
    ],
)
def test_a_key_that_would_leak_is_refused_without_showing_it(url: str, key: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        OpenAIGenerator(url, "model", api_key=key)
    assert "secret" not in str(refused.value) and "sécret" not in str(refused.value)
