"""Text by topics in blocks: the order, the draws again, and what a killed run keeps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.strategies.synthesis import topic_texts
from privsyn_flower.strategies.synthesis.topic_texts import (
    DRAWS,
    Order,
    mixed_order,
    usable,
    write_texts,
)

WORDS = ("graph", "matrix", "river", "stone")


class Sayer:
    """Says its condition's word, and now and then nothing: all of it from the caller's numbers."""

    def __init__(self, mute: float = 0.0, breaks_at: int = 0) -> None:
        self.mute, self.breaks_at = mute, breaks_at
        self.calls = self.answered = 0

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        self.calls += 1
        if self.calls == self.breaks_at:
            raise KeyboardInterrupt
        self.answered += len(prompts)
        heard = rng.random(len(prompts)) >= self.mute
        numbers = rng.integers(1000, size=len(prompts))
        return [
            [f" {prompt} {number} words here\n" if loud else "\n"]
            for prompt, number, loud in zip(prompts, numbers, heard, strict=True)
        ]


def ordered(counts: Sequence[int], seed: int = 0, **values: object) -> Order:
    topics = mixed_order(np.array(counts), np.random.default_rng(seed))
    rows = [{"topic": i, "keywords": [word]} for i, word in enumerate(WORDS)]
    return replace(Order(topics, WORDS, rows, seed, "synthetic", "digest"), **values)  # type: ignore[arg-type]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_texts, "BLOCK", 8)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.usefixtures("small_blocks")
def test_every_topic_has_its_texts_in_a_mixed_order(tmp_path: Path) -> None:
    path = tmp_path / "synthetic.jsonl"
    found = write_texts(ordered([9, 0, 5, 6]), Sayer, path, postprocess=usable(4, True))
    rows = lines(path)
    assert (found.texts, found.drawn, found.dropped) == (20, 20, 0)
    assert Counter(row["topic"] for row in rows) == {0: 9, 2: 5, 3: 6}
    assert all(str(row["text"]).split()[0] == WORDS[int(str(row["topic"]))] for row in rows)
    assert rows[0]["keywords"] == [WORDS[int(str(rows[0]["topic"]))]]
    assert [row["topic"] for row in rows] != sorted(int(str(row["topic"])) for row in rows)
    assert list(tmp_path.iterdir()) == [path]  # no blocks stay


@pytest.mark.usefixtures("small_blocks")
def test_unusable_texts_are_drawn_again_from_their_own_topic(tmp_path: Path) -> None:
    order, path = ordered([10, 10, 10, 10]), tmp_path / "some.jsonl"
    sayer = Sayer(mute=0.3)
    found = write_texts(order, lambda: sayer, path, postprocess=usable(4, True))
    lost = 40 - found.texts
    assert sayer.answered == found.drawn > 40 and found.dropped == lost <= 4  # 0.3^4 of 40: 0.3
    counts = Counter(row["topic"] for row in lines(path))
    assert all(10 - lost <= counts[topic] <= 10 for topic in range(4))

    silent = Sayer(mute=1.0)
    nothing = write_texts(
        order, lambda: silent, tmp_path / "none.jsonl", postprocess=usable(4, True)
    )
    assert (nothing.texts, nothing.drawn, nothing.dropped) == (0, 40 * DRAWS, 40)
    assert (tmp_path / "none.jsonl").read_text() == ""


@pytest.mark.usefixtures("small_blocks")
def test_a_killed_writing_goes_on_with_the_same_text(tmp_path: Path) -> None:
    order, whole, cut = ordered([7, 8, 9, 10]), tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    write_texts(order, lambda: Sayer(mute=0.2), whole, postprocess=usable(4, True))
    breaking = Sayer(mute=0.2, breaks_at=5)
    with pytest.raises(KeyboardInterrupt):
        write_texts(order, lambda: breaking, cut, postprocess=usable(4, True))
    assert not cut.exists()
    rest = Sayer(mute=0.2)
    write_texts(order, lambda: rest, cut, postprocess=usable(4, True))
    assert cut.read_bytes() == whole.read_bytes()
    assert 0 < rest.answered < sum(order.topics >= 0)  # the blocks before were not written again


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"purpose": "generate"}, {"source": "other"}, {"conditions": WORDS[::-1]}],
)
def test_another_orders_blocks_are_not_taken(tmp_path: Path, change: dict[str, object]) -> None:
    order, path = ordered([8, 8, 8, 8]), tmp_path / "one.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_texts(order, lambda: Sayer(breaks_at=3), path, postprocess=usable(4, True))
    fresh = Sayer()
    write_texts(replace(order, **change), lambda: fresh, path, postprocess=usable(4, True))  # type: ignore[arg-type]
    assert fresh.answered == 32


def test_what_is_kept_of_a_completion() -> None:
    kept, unfiltered = usable(3, True), usable(3, False)
    assert kept("  three plain words\n") == "three plain words"
    assert kept("two words") == unfiltered("two words") == ""
    loop = "again and " * 30
    assert kept(loop) == "" and unfiltered(loop) == loop.strip()
