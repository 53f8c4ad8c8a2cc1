"""Asking a model: streams and chains, what is kept, and the faults of a real server process."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.public.asking import AHEAD, FILE, Answer, Asker, Counts, Request
from privsyn_flower.common.files import DataError
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.protocols import Answering, Reply, Sampling
from tests.rigs.asking import Start, asker, chain, requests, texts


class Model:
    """In this process: says the prompt again; holds everything it was asked."""

    chat, batched = True, False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.batches: list[tuple[int, int]] = []

    def reach(self) -> None:
        pass

    def answer(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Reply]:
        self.asked += prompts
        self.batches.append((len(prompts), sampling.max_tokens))
        return [Reply(f"{prompt}|{seed % 97}", 1, 2) for prompt, seed in zip(prompts, seeds)]  # noqa: B905


# Streams


def test_every_request_is_answered_and_says_its_sampling(canned: Start, tmp_path: Path) -> None:
    server = canned()
    with asker(server, tmp_path) as ask:
        found = texts(ask.ask(requests(20)))
    assert found == {i: f"echo: text {i}" for i in range(20)}
    assert ask.counts == Counts(sent=20, prompt_tokens=40, tokens=60)
    bodies = server.stats()["asked"]
    assert {(b["temperature"], b["top_k"], b["max_tokens"], b["n"]) for b in bodies} == {
        (0.2, 40, 8, 1)
    }
    assert len({body["seed"] for body in bodies}) == 20
    assert all("stop" not in body for body in bodies)


def test_a_judge_takes_the_likeliest_token(canned: Start, tmp_path: Path) -> None:
    """Without top-k, which hosted services may not know."""
    server = canned()
    with asker(server, tmp_path, sampling={"temperature": 0.0, "top_k": 0}) as ask:
        assert texts(ask.ask([Request("is it", 1)])) == {None: "echo:"}
    (body,) = server.stats()["asked"]
    assert body["temperature"] == 0
    assert body["max_tokens"] == 1
    assert "top_k" not in body


def test_the_batch_stays_full_and_no_more_is_asked_at_once(canned: Start, tmp_path: Path) -> None:
    server = canned(slots=8, seconds=0.1)
    with asker(server, tmp_path, concurrency=8) as ask:
        list(ask.ask(requests(64)))
    found = server.stats()
    assert found["most"] == 8
    assert found["share"] > 0.4  # one text after another leaves 0.13; a busy machine is slower


def test_endless_requests_are_taken_as_they_are_needed(tmp_path: Path) -> None:
    taken = itertools.count()
    endless = (Request(f"text {i}", 1) for i in taken)
    with Asker(Model(), tmp_path, name="m", temperature=1.0, concurrency=3) as ask:
        stream = ask.ask(endless)
        for _ in range(50):
            next(stream)
        assert 50 <= next(taken) <= 50 + 2 * 3
        stream.close()


def test_equal_requests_are_asked_once(canned: Start, tmp_path: Path) -> None:
    """Also those that are under way at the same time."""
    server = canned(seconds=0.01)
    many = [Request(f"text {i % 3}", 8, note=i) for i in range(30)]
    with asker(server, tmp_path) as ask:
        found = texts(ask.ask(many))
    assert found == {i: f"echo: text {i % 3}" for i in range(30)}
    assert sorted(server.prompts()) == ["text 0", "text 1", "text 2"]
    assert (ask.counts.sent, ask.counts.cached) == (3, 27)


# Chains


@pytest.mark.parametrize("concurrency", [1, 5])
def test_chains_end_soon_after_they_began(tmp_path: Path, concurrency: int) -> None:
    """Deepest first: however many chains there are, few are open."""
    first = (Request(f"p{i}", 4, note=(i,)) for i in range(40))
    left = Counter[int]()  # answers still to come, by chain
    open_at_once = 0
    with Asker(Model(), tmp_path, name="m", temperature=1.0, concurrency=concurrency) as ask:
        for answer in ask.grow(first, chain(3, 3)):
            (root, *rest) = answer.request.note
            left[root] += 1 + 3 + 9 - 1 if not rest else -1
            open_at_once = max(open_at_once, sum(count > 0 for count in left.values()))
    assert set(left.values()) == {0}
    assert ask.counts.sent == 40 * (1 + 3 + 9)
    assert open_at_once <= 2 * concurrency + 1


def test_what_an_answer_leads_to_is_read_as_it_is_needed(tmp_path: Path) -> None:
    read = 0

    def more(answer: Answer) -> Iterator[Request]:
        nonlocal read
        for i in itertools.count() if answer.request.note == "root" else ():
            read += 1
            yield Request(f"child {i}", 1)

    with Asker(Model(), tmp_path, name="m", temperature=1.0, concurrency=2) as ask:
        stream = ask.grow([Request("root", 1, note="root")], more)
        assert len([next(stream) for _ in range(30)]) == 30
        assert read <= 30 + 2 * 2


# What is kept


def test_answers_outlast_the_asker(canned: Start, tmp_path: Path) -> None:
    server = canned()
    with asker(server, tmp_path) as ask:
        first = texts(ask.ask(requests(10)))
    server.kill()  # nothing is asked any more
    with asker(server, tmp_path) as ask:
        again = list(ask.ask(requests(10)))
    assert texts(again) == first
    assert ask.counts == Counts(cached=10)
    assert {(answer.cached, answer.prompt_tokens, answer.tokens) for answer in again} == {
        (True, 2, 3)
    }


@pytest.mark.parametrize(
    "other",
    [
        {"name": "n"}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5},
        {"max_tokens": 9}, {"chat": False}, {"prompt": "other"},
    ],
)  # fmt: skip
def test_an_answer_belongs_to_its_model_sampling_and_prompt(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    def asked(name: str = "m", temperature: float = 0.2, top_k: int = 40, top_p: float = 1.0,
              max_tokens: int = 8, chat: bool = True, prompt: str = "p") -> int:  # fmt: skip
        model = Model()
        model.chat = chat
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        with Asker(model, tmp_path, name=name, **sampling, concurrency=2) as ask:
            list(ask.ask([Request(prompt, max_tokens)]))
        return ask.counts.sent

    assert asked() == 1
    assert asked() == 0
    assert asked(**other) == 1


PROGRAM = """
import sys
from pathlib import Path
from privsyn_flower.app.public.asking import Asker, Request
from privsyn_flower.text.serving.http_generator import OpenAIGenerator

model = OpenAIGenerator(sys.argv[1], "canned", chat=True, stop=(), api_key_env="", progress=False)
ask = Asker(model, Path(sys.argv[2]), name="canned", temperature=0.2, top_k=40, concurrency=4)
for answer in ask.ask(Request(f"text {i}", 8, note=i) for i in range(10**9)):
    print(answer.request.note, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_asks_nothing_twice_that_it_gave_out(
    canned: Start, tmp_path: Path
) -> None:
    server = canned(seconds=0.002)
    given: set[int] = set()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            given.add(int(line))
            if len(given) == 100:
                os.kill(process.pid, signal.SIGKILL)
                break
    before = len(server.prompts())
    with asker(server, tmp_path) as ask:
        found = list(ask.ask(requests(150)))
    assert texts(found) == {i: f"echo: text {i}" for i in range(150)}
    assert given <= {answer.request.note for answer in found if answer.cached}
    asked = Counter(server.prompts())
    # What was on its way at the kill, and nothing else, was asked again.
    assert sum(asked[f"text {i}"] - 1 for i in range(150)) <= 4
    assert len(server.prompts()) == before + ask.counts.sent


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(DataError, match=r"answers.sqlite cannot be read.*move it away"):
        Asker(Model(), tmp_path, name="m", temperature=1.0, concurrency=1)


def test_two_askers_share_a_folder(tmp_path: Path) -> None:
    one = Asker(Model(), tmp_path, name="m", temperature=1.0, concurrency=2)
    two = Asker(Model(), tmp_path, name="m", temperature=1.0, concurrency=2)
    for pair in zip(one.ask(requests(50)), two.ask(requests(50)), strict=True):
        assert all(answer.text for answer in pair)
    assert one.counts.sent + two.counts.sent >= 50
    one.close()
    two.close()
    with sqlite3.connect(tmp_path / FILE) as database:
        assert database.execute("SELECT COUNT(*) FROM answers").fetchone() == (50,)


# A model in this process


def test_prompts_of_one_kind_are_answered_together(tmp_path: Path) -> None:
    drawn = itertools.count(1)
    waiting = threading.Event()  # as many requests as may be under way

    class Slow(Model):
        batched = True

        def answer(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Reply]:
            assert waiting.wait(60)
            return super().answer(prompts, sampling, seeds)

    def many() -> Iterator[Request]:
        for i in range(40):
            if next(drawn) == AHEAD * 6:
                waiting.set()
            yield Request(f"text {i}", 1 if i < 10 else 9)

    model = Slow()
    assert isinstance(model, Answering)
    with Asker(model, tmp_path, name="m", temperature=0.0, concurrency=6) as ask:
        found = list(ask.ask(many()))
    assert len(found) == 40
    # While the first was answered, the others came to wait: ten of one kind and one of the next.
    first, second = model.batches[:2]
    assert first[0] + second[0] >= 7 and first[1] == second[1] == 1
    assert max(count for count, _ in model.batches) == 6
    assert sum(count for count, tokens in model.batches if tokens == 1) == 10


def test_a_language_model_of_transformers(causal_folder: Path, tmp_path: Path) -> None:
    """What it says does not depend on what it is asked together with."""
    model = HuggingFaceGenerator(str(causal_folder), device="cpu", progress=False)

    def asked(folder: str, many: list[Request], concurrency: int) -> dict[Any, str | None]:
        options: dict[str, Any] = {"name": "m", "temperature": 0.5, "top_k": 40}
        with Asker(model, tmp_path / folder, **options, concurrency=concurrency) as ask:
            found = texts(ask.ask(many))
        assert ask.counts.sent == len(many)
        assert 0 < ask.counts.tokens <= 8 * len(many)
        return found

    assert asked("one", requests(7), 4) == asked("other", requests(7)[::-1], 2)


def test_what_a_model_raises_is_raised(tmp_path: Path) -> None:
    class Broken(Model):
        def answer(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Reply]:
            raise ZeroDivisionError("a bug")

    with (
        Asker(Broken(), tmp_path, name="m", temperature=1.0, concurrency=2) as ask,
        pytest.raises(ZeroDivisionError, match="a bug"),
    ):
        list(ask.ask(requests(3)))


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"temperature": -1.0}, {"top_k": -1}])
def test_options_out_of_bounds(tmp_path: Path, options: dict[str, Any]) -> None:
    kept: dict[str, Any] = {"name": "m", "temperature": 1.0, "concurrency": 1}
    with pytest.raises(ValueError, match=r"concurrency|temperature"):
        Asker(Model(), tmp_path, **kept | options)
