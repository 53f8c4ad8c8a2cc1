"""Class-based TF-IDF beside its formula, and what counts as a word."""

from __future__ import annotations

import math

import pytest

from privsyn_flower.text import words
from privsyn_flower.text.words import class_words, text_words, word_frequencies, words_of

RIVER = ["The river runs. A river and stones.", "river banks"]
CLOUD = ["clouds over stones", "a cloud"]


def test_words_are_lower_case_and_without_stop_words_and_numbers() -> None:
    text = "Don’t use the X-Ray's conv2d, array_like or 3.14: naïve Überlegungen (n=5), I'm sure."
    assert words_of(text) == [
        "x-ray", "conv2d", "array", "naïve", "überlegungen", "sure",
    ]  # fmt: skip
    assert words_of("river River RIVER") == ["river"] * 3
    assert words_of("今天去公园。Park, नमस्ते!") == ["今天", "去", "公园", "park", "नमस्ते"]
    assert words_of("") == words_of("1 2 a I — 's") == []


@pytest.mark.parametrize("word", ["a" * 41, "https://a.b/" + "c" * 60])
def test_runs_of_letters_are_no_words(word: str) -> None:
    assert max(map(len, words_of(f"start {word} end"))) <= 40
    assert words_of("a" * 40) == ["a" * 40]


def test_every_stop_word_is_one_that_a_text_can_have() -> None:
    for word in words._STOP_WORDS:
        assert words._word().findall(word) == [word]
    assert not words_of("THE river's".replace("river", "he"))


def test_class_words_are_those_of_the_formula() -> None:
    first = {"river": 3, "runs": 1, "stones": 1, "banks": 1}
    second = {"clouds": 1, "stones": 1, "cloud": 1}
    total = {**first, **second, "stones": 2}
    mean = (6 + 3) / 2

    def ranked(counts: dict[str, int]) -> tuple[str, ...]:
        weight = {w: n * math.log(1 + mean / total[w]) for w, n in counts.items()}
        return tuple(sorted(weight, key=lambda w: (-weight[w], w)))

    assert class_words([RIVER, CLOUD], 10) == [ranked(first), ranked(second)]
    assert class_words([RIVER, CLOUD], 2) == [("river", "banks"), ("cloud", "clouds")]
    # What every class has weighs less than what one class has, at equal counts.
    assert class_words([RIVER, CLOUD], 10)[1][-1] == "stones"


def test_a_class_without_words_has_no_keywords() -> None:
    assert class_words([RIVER, ["12 34", "the"], []], 3)[1:] == [(), ()]
    assert class_words([], 3) == []


def test_a_texts_own_words() -> None:
    corpus = ["matrix of the mean", "matrix of the median", "matrix matrix vector"]
    frequencies = word_frequencies([text] for text in corpus)
    assert frequencies.counts == {"matrix": 4, "mean": 1, "median": 1, "vector": 1}
    assert frequencies.mean == pytest.approx(7 / 3)
    assert frequencies.weight("vector") == pytest.approx(math.log(1 + 7 / 3))
    assert text_words(corpus[0], frequencies, 5) == ("mean", "matrix")
    # Twice log(1 + 7/12) is less than once log(1 + 7/3).
    assert text_words(corpus[2], frequencies, 1) == ("vector",)
    assert text_words("unseen words", frequencies, 5) == ("unseen", "words")
    assert text_words("of the", frequencies, 5) == ()
    assert text_words("unseen", word_frequencies([]), 5) == ("unseen",)
