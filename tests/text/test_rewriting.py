"""Variation by a language model: what it is asked, and what is made of its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from privsyn_flower.config import PeConfig, split_list
from privsyn_flower.text import Variation
from privsyn_flower.text.generators import HuggingFaceGenerator
from privsyn_flower.text.prompts import HEADING, expand_prompt
from privsyn_flower.text.variation import Continue, Rewrite


class Answering:
    """A generator that answers by a function of the prompt, and notes what it was told."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer, self.asked = answer, list[str]()
        self.adapter: Path | None = Path("an adapter of before")

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        assert n == 1 and self.adapter is None
        self.asked += prompts
        return [[self.answer(prompt)] for prompt in prompts]

    def use_adapter(self, folder: Path | None) -> None:
        self.adapter = folder

    def rest(self) -> None: ...

    def close(self) -> None: ...


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_a_rewrite_is_asked_for_in_a_drawn_style() -> None:
    generator = Answering(lambda prompt: f" New:\n\n{prompt} ")
    method = Rewrite(generator, "Say {style}: {text}", ["aloud", "softly"], min_words=1)
    assert isinstance(method, Variation)
    texts = ["one  two\nthree", "a {style} of {text}"] * 20
    found = method.vary(texts, rng())
    styles = [("aloud", "softly")[i] for i in rng().integers(2, size=40)]
    lines = [" ".join(text.split()) for text in texts]
    assert generator.asked == [f"Say {s}: {line}" for s, line in zip(styles, lines, strict=True)]
    assert found == [f"New: {prompt}" for prompt in generator.asked]
    assert set(styles) == {"aloud", "softly"}


def test_a_short_answer_leaves_the_text_and_a_long_one_is_cut() -> None:
    generator = Answering(lambda prompt: "no" if "first" in prompt else "one two three four five")
    method = Rewrite(generator, "{text}", min_words=2, max_words=4)
    assert method.vary(["the first", "the second"], rng()) == ["the first", "one two three four"]
    assert method.vary([], rng()) == []


def test_a_continuation_is_the_next_of_a_list() -> None:
    generator = Answering(lambda _: f"Words that follow\nit.\n{HEADING} 3\nMore")
    found = Continue(generator, min_words=2).vary(["a text"], rng())
    assert generator.asked == [expand_prompt(["a text"])]
    assert found == ["Words that follow it."]
    assert Continue(generator, min_words=9).vary(["a text"], rng()) == ["a text"]


def test_the_shipped_instruction_is_one() -> None:
    config = PeConfig(variation="rewrite")
    generator = Answering(lambda prompt: prompt)
    [found] = Rewrite(generator, config.rewrite, split_list(config.styles)).vary(["My text"], rng())
    assert found.endswith(": My text") and "{" not in found
    with pytest.raises(ValueError, match=r"must hold \{text\}"):
        Rewrite(generator, "Again")


def test_a_local_model_varies_and_repeats_itself(causal_folder: Path) -> None:
    generator = HuggingFaceGenerator(causal_folder, max_tokens=8, device="cpu", progress=False)
    method = Rewrite(generator, "Again: {text}", min_words=1, max_words=5)
    texts = ["A short text about tea.", "Another one."]
    one, two = method.vary(texts, rng()), method.vary(texts, rng())
    assert one == two != texts
    assert all(1 <= len(text.split()) <= 5 for text in one)
