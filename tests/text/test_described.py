"""Public texts described by an instruction model: a server with canned answers; resuming."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.common.files import DataError
from privsyn_flower.text import conditions
from privsyn_flower.text.conditions import (
    REQUEST,
    Pair,
    described_pairs,
    parse_description,
    read_pairs,
)
from privsyn_flower.text.serving.http_client import ServerError
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
from tests.rigs.http_generator import Answer, Body, Fake, fake  # noqa: F401

ANSWER = """Here is what can be said:
* **Document Type:** news article
* Tone: factual
3. **Keywords**: river, flood, "town hall", river; bridge.
- Structure:
  1. headline
  2. two paragraphs
Purpose: to inform
Tone: another"""
SAID = """Document Type: news article
Keywords: river, flood, town hall, bridge
Tone: factual
Structure: headline, two paragraphs
Purpose: to inform"""

CHAT = "/v1/chat/completions"


def describe(body: Body) -> Answer:
    """A document by its first words; "odd" ones are not described, and others are refused."""
    document = body["messages"][0]["content"].rpartition("Document:\n")[2]
    text = f"Document Type: note\nKeywords: {', '.join(document.replace(',', ' ').split()[:3])}"
    if document.startswith("odd"):
        text = "I would rather not."
    status = 400 if document.startswith("refused") else 200
    return status, {"choices": [{"message": {"content": text}}]}


def asked(fake: Fake) -> list[tuple[int, str]]:
    """Seeds and prompts."""
    return [(body["seed"], body["messages"][0]["content"]) for body in fake.bodies(CHAT)]


@pytest.fixture
def model(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIGenerator]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    fake.answers[CHAT] = describe
    found = OpenAIGenerator(
        fake.url, "m", chat=True, max_tokens=200, stop=(), retries=0, timeout=5.0, progress=False
    )
    yield found
    found.close()


TEXTS = [f"text number {i} about ponds" for i in range(7)]


def test_pairs_of_a_server(fake: Fake, model: OpenAIGenerator, tmp_path: Path) -> None:
    found = described_pairs(["red fox, runs", *TEXTS[:2]], model, tmp_path / "pairs.jsonl")
    assert found[0] == Pair("Document Type: note\nKeywords: red, fox, runs", "red fox, runs")
    assert [pair.text for pair in found] == ["red fox, runs", *TEXTS[:2]]
    assert {prompt for _, prompt in asked(fake)} == {
        REQUEST + text for text in ("red fox, runs", *TEXTS[:2])
    }
    assert read_pairs(tmp_path / "pairs.jsonl") == found
    assert [p.name for p in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_a_finished_file_asks_nobody(fake: Fake, model: OpenAIGenerator, tmp_path: Path) -> None:
    first = described_pairs(TEXTS, model, tmp_path / "pairs.jsonl")
    before = len(asked(fake))
    assert described_pairs(TEXTS, model, tmp_path / "pairs.jsonl") == first
    assert len(asked(fake)) == before == len(TEXTS)


def test_a_run_that_was_stopped_goes_on(
    fake: Fake, model: OpenAIGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "BLOCK", 3)
    texts = [*TEXTS[:4], "refused here", *TEXTS[4:]]
    with pytest.raises(ServerError):
        described_pairs(texts, model, tmp_path / "pairs.jsonl")
    assert not (tmp_path / "pairs.jsonl").exists()
    whole = described_pairs(TEXTS, model, tmp_path / "other.jsonl")
    before = len(asked(fake))
    with pytest.raises(ServerError):
        described_pairs(texts, model, tmp_path / "pairs.jsonl")
    again = {prompt for _, prompt in asked(fake)[before:]}
    assert again and not again & {REQUEST + text for text in texts[:3]}
    assert [pair.text for pair in whole] == TEXTS
    # The same texts in the end: the block that is there is not asked about again.
    folder = next(p for p in tmp_path.iterdir() if p.is_dir())
    assert [p.name for p in folder.iterdir()] == ["000000.jsonl"]


def test_what_is_not_described_is_asked_again_and_left_out(
    fake: Fake, model: OpenAIGenerator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [TEXTS[0], "odd one", TEXTS[1]]
    with caplog.at_level(logging.WARNING, logger="privsyn_flower"):
        found = described_pairs(texts, model, tmp_path / "pairs.jsonl")
    assert [pair.text for pair in found] == [TEXTS[0], TEXTS[1]]
    assert "1 of 3" in caplog.text
    seeds = [seed for seed, prompt in asked(fake) if prompt.endswith("odd one")]
    assert len(seeds) == len(set(seeds)) == 2


def test_answers_are_read_as_models_write_them() -> None:
    assert parse_description(ANSWER) == SAID
    assert parse_description("Document Type: poem\nTone: sad") == ""
    assert parse_description("Keywords: a, b") == parse_description("") == ""
    listed = parse_description("document type: list\nKEYWORDS:\n- one\n- two two\n")
    assert listed == "Document Type: list\nKeywords: one, two two"
    many = "\n".join(f"Aspect {chr(97 + i)}: {'x' * 500}" for i in range(26))
    long = parse_description(
        f"{many}\nDocument Type: t\nKeywords: {', '.join(map(str, range(30)))}"
    )
    assert long.startswith("Document Type: t\nKeywords: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9\n")
    assert len(long.splitlines()) == 10 and max(map(len, long.splitlines())) < 220


def test_a_damaged_file_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    for line in ('{"text": "a"}', "[]", "nonsense", '{"text": 1, "condition": "a"}'):
        path.write_text(f'{{"condition": "", "text": "b"}}\n{line}\n', "utf-8")
        with pytest.raises(DataError, match=r"pairs\.jsonl:2"):
            read_pairs(path)


def test_any_generator_will_do(tmp_path: Path) -> None:
    class Canned:
        def complete(
            self, prompts: Sequence[str], n: int, rng: np.random.Generator
        ) -> list[list[str]]:
            return [[ANSWER] * n for _ in prompts]

    assert described_pairs(["x"], Canned(), tmp_path / "p.jsonl") == [Pair(SAID, "x")]
    assert described_pairs([], Canned(), tmp_path / "q.jsonl") == []
    odd = "a line\u2028separator and half a pair \ud800"
    assert described_pairs([odd], Canned(), tmp_path / "r.jsonl") == [Pair(SAID, odd)]
    assert read_pairs(tmp_path / "r.jsonl") == [Pair(SAID, odd)]
