"""Keywords, degenerate texts and sentences, in any script; how a tokenizer spells what it has not
learnt."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from privsyn_flower.text import words
from privsyn_flower.text.tiny.assets import shipped_model
from privsyn_flower.text.words import (
    LEAST_WORDS,
    Spelling,
    class_words,
    degenerate,
    letters,
    sentences,
    spelling,
    text_words,
    word_frequencies,
    words_of,
)
from tests.rigs.languages import ENGLISH, FOREIGN

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


GOLDEN = Path(__file__).parents[1] / "golden" / "ctcl_generation.json"


def test_it_keeps_what_the_published_code_keeps() -> None:
    cases = json.loads(GOLDEN.read_text("utf-8"))["filter"]
    assert len(cases["inputs"]) == 7
    assert [text for text in cases["inputs"] if not degenerate(text)] == cases["kept"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("word " + "a" * 25, False),
        ("word " + "a" * 26, True),
        ("loop " * 20, False),
        ("loop Loop LOOP " * 7, True),  # 21, in any case
        ("The the, a. " * 50 + "end", False),  # articles, commas and full stops may repeat
        ("words and " + "( " * 21, True),
        ("f(x) " * 11, False),  # brackets count each for themselves: 11
        ("well-known 3.5 don't", False),
        ("3.5 :: 12", True),  # no word of letters
        (" \n\t", True),
        ("日本語 text", False),
        ("今天天气很好，我们去公园散步吧，然后回家吃饭看电视，最后早点休息", False),
        ("公园" * 21, True),
        ("नमस्ते दुनिया", False),
    ],
)
def test_each_rule_at_its_limit(text: str, expected: bool) -> None:
    assert degenerate(text) is expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One here. Two there! Three? Four", ["One here.", "Two there!", "Three?", "Four"]),
        ("Dr. Smith met Mrs. Jones at 5 p.m. today. Fine.",
         ["Dr. Smith met Mrs. Jones at 5 p.m. today.", "Fine."]),
        ("J. R. Tolkien wrote it. I did not. No. 5 is here.",
         ["J. R. Tolkien wrote it.", "I did not.", "No.", "5 is here."]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        ("It costs 3.50 euros... or so. See www.example.com. ok.",
         ["It costs 3.50 euros... or so.", "See www.example.com. ok."]),
        ("a title\n\n  a second   line  ", ["a title", "a second line"]),
        ("真的吗？是的。好", ["真的吗？", "是的。", "好"]),
        ("「真的吗？」他说。", ["「真的吗？」", "他说。"]),
        ("वह घर गया। फिर सोया।", ["वह घर गया।", "फिर सोया।"]),
        ('I met "Dr." Who there. And (Mr.) Bean.',
         ['I met "Dr." Who there.', "And (Mr.) Bean."]),
        (f"{'y' * 50}mr. No", [f"{'y' * 50}mr.", "No"]),
        ("So am I. You too.", ["So am I.", "You too."]),
        ("", []),
        (" \n\t", []),
    ],
)  # fmt: skip
def test_sentences(text: str, found: list[str]) -> None:
    assert sentences(text) == found


def test_nothing_but_white_space_is_lost() -> None:
    text = "“Oh!” she said. (He nodded.) What?! Yes… Well\u2028then. e.g. this; U.S. that."
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000 + "! A", "A. " * 30_000, "." * 100_000, ". " + "(" * 100_000,
     "!" + '"' * 100_000, "Oh! " * 25_000, "a" * 100_000 + ". A", "。" * 100_000],
    ids=lambda text: repr(text[:4]),
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    """Seconds at most, where time that grows with the square of the length would be minutes."""
    began = time.process_time()
    found = sentences(text)
    assert time.process_time() - began < 2.0
    assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize("kind", ["generator", "small-generator", "infiller"])
def test_english_chats_and_docstrings_are_known(kind: str) -> None:
    found = spelling(shipped_model(kind), ENGLISH * 3)
    assert found is not None and not found.foreign
    assert found.tokens_per_word < 1.8 and found.unreadable == 0


@pytest.mark.parametrize("language", FOREIGN)
def test_other_languages_are_not(language: str) -> None:
    found = spelling(shipped_model("generator"), FOREIGN[language] * 12)
    assert found is not None and found.foreign and found.tokens_per_word > 2.3
    assert (found.unreadable_share > 0.85) == (language in ("Chinese", "Russian", "Arabic"))


def test_either_sign_is_enough() -> None:
    assert Spelling(100, 201, 0).foreign and Spelling(100, 100, 6).foreign
    assert not Spelling(100, 200, 10).foreign


def test_unknown_tokens_count_where_nothing_is_spelt_by_bytes(tmp_path: Path) -> None:
    words = {"[UNK]": 0, "the": 1}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    text = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(text))
    found = spelling(tmp_path, ["the other"] * LEAST_WORDS)
    assert found == Spelling(100, 100, 50)


def test_of_unigrams_the_vocabulary_names_the_unknown(tmp_path: Path) -> None:
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["the", -1.0]], "unk_id": 0}
    text = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(text))
    found = spelling(tmp_path, ["the b"] * LEAST_WORDS)
    assert found is not None and found.unreadable_share == 0.5


def test_digits_emoji_and_punctuation_say_nothing() -> None:
    assert letters("don't! \U0001f602\ufe0f see 8 x2, na\u0131ve") == "don't see x na\u0131ve"
    assert letters("\u0915\u094d\u092f\u093e?") == "\u0915\u094d\u092f\u093e"
    assert letters("123 :)") == ""
    assert spelling(shipped_model("generator"), ["\U0001f602 8:30"] * 900) is None


def test_too_little_text_and_no_tokenizer_say_nothing(tmp_path: Path) -> None:
    assert spelling(tmp_path, ENGLISH * 9) is None
    assert spelling(shipped_model("generator"), ["only these few words"]) is None
