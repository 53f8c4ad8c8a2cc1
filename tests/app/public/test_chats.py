"""Personas, judgements and chats: what a model is asked and how its answers are read."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

from privsyn_flower.app.public.chats import (
    AGES,
    APPS,
    DAYS,
    GENDERS,
    PERSONAS,
    TIMES,
    Persona,
    conversation_prompt,
    convert_prompt,
    draw,
    judge_prompt,
    parse_judgement,
    parse_list,
    receivers_prompt,
    topics_prompt,
    turns,
)


def test_the_grid_has_the_papers_size() -> None:
    sizes = [len(values) for values in (GENDERS, AGES, TIMES, DAYS, APPS)]
    assert sizes == [2, 44, 3, 40, 7]
    assert len(PERSONAS) == len(set(PERSONAS)) == 73_920


@pytest.mark.parametrize("place", range(5))
def test_every_value_of_a_variable_is_as_common_as_the_others(place: int) -> None:
    counts = Counter(persona[place] for persona in PERSONAS)
    assert set(counts) == set((GENDERS, AGES, TIMES, DAYS, APPS)[place])
    assert len(set(counts.values())) == 1


def test_a_draw_is_seeded_without_repetition_and_the_beginning_of_a_longer_one() -> None:
    few = draw(500, np.random.default_rng(3))
    assert few == draw(2000, np.random.default_rng(3))[:500]
    assert few != draw(500, np.random.default_rng(4))
    assert len(set(few)) == 500
    assert set(draw(len(PERSONAS), np.random.default_rng(0))) == set(PERSONAS)


def test_a_draw_is_uniform() -> None:
    """Each of 44 ages is expected 909 times in 40,000; five standard deviations are 150."""
    counts = Counter(persona.age for persona in draw(40_000, np.random.default_rng(0)))
    assert set(counts) == set(AGES)
    assert max(abs(count - 40_000 / 44) for count in counts.values()) < 150


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chat\.personas = 73921"):
        draw(73_921, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("answer", "judgement"),
    [
        ("1", 1),
        (" 0.", 0),
        ("Score: 1", 1),
        ("**0**", 0),
        ("1.0", 1),
        ("0\n\nBecause nobody writes about 1 such thing", 0),
        ("10", None),
        ("0.5", None),
        ("2", None),
        ("yes", None),
        ("", None),
        ("I cannot judge that.", None),
        ("9" * 5000, None),
    ],
)
def test_the_first_number_decides(answer: str, judgement: int | None) -> None:
    assert parse_judgement(answer) == judgement


def test_the_prompt_has_the_text_as_it_is() -> None:
    text = "Ratings {0} of {text}: 100 %\nsecond line"
    assert f"Text:\n{text}\n" in judge_prompt(f"\n {text} ")


ANNA = Persona("female", "34 years old", "night", "a Tuesday in winter", "WhatsApp")


def test_prompts_name_all_seven_variables() -> None:
    prompt = conversation_prompt(ANNA, "my boss {x}", "a day off: 100 %")
    for value in (*ANNA, "my boss {x}", "a day off: 100 %"):
        assert value in prompt
    assert all(value in topics_prompt(ANNA, "Mom") for value in (*ANNA, "Mom"))
    assert all(value in receivers_prompt(ANNA) for value in ANNA)
    assert convert_prompt(" {0} an article ").endswith("Text:\n{0} an article")


def test_different_personas_have_different_prompts() -> None:
    some = PERSONAS[::97]
    assert len({receivers_prompt(persona) for persona in some}) == len(some)


@pytest.mark.parametrize(
    ("answer", "items"),
    [
        ("1. Mom\n2. Dad\n3. my boss", ["Mom", "Dad", "my boss"]),
        ("1) Mom\n2) Dad.", ["Mom", "Dad"]),
        ("Here are some people:\n\n- Mom\n* Dad\n• Aunt Jo", ["Mom", "Dad", "Aunt Jo"]),
        ("**Family:**\n1. **Mom** - to say hello\n2. **Dad**: about the car", ["Mom", "Dad"]),
        ('1. "Mom"\n2. ‘mom’\n3. MOM\n4. Dad', ["Mom", "Dad"]),
        ("Mom\nDad\n\nAunt Jo", ["Mom", "Dad", "Aunt Jo"]),
        ("Mom, Dad, my best friend", ["Mom", "Dad", "my best friend"]),
        ('["Mom", "Dad", 3]', ["Mom", "Dad"]),
        ('```json\n["Mom", "Dad"]\n```', ["Mom", "Dad"]),
        ('["Mom", "Da', ['["Mom', 'Da']),
        ("1. Plans for the 3. of May\n2. 2 tickets", ["Plans for the 3. of May", "2 tickets"]),
        ("", []),
        ("\n\n", []),
        ("Sure, here is the list:", []),
        ("x" * 500, []),
        ("Plans - a trip", ["Plans - a trip"]),
        ("**Mom** - " + "because " * 900 + "\nDad", ["Mom", "Dad"]),
    ],
)  # fmt: skip
def test_lists(answer: str, items: list[str]) -> None:
    assert parse_list(answer, 20) == items


def test_a_list_has_at_most_so_many_items() -> None:
    assert parse_list("\n".join(f"{i}. item {i}" for i in range(1, 900)), 3) == [
        "item 1",
        "item 2",
        "item 3",
    ]


def test_the_last_item_of_a_cut_list_is_left_out() -> None:
    assert parse_list("1. Mom\n2. my co-wor", 20, cut=True) == ["Mom"]
    assert parse_list("1. Mo", 20, cut=True) == ["Mo"]


@pytest.mark.parametrize(
    ("conversation", "said"),
    [
        ("**Me:** Hi Mom!\n\n**Mom:** Hello dear", ["Hi Mom!", "Hello dear"]),
        ("**Me**: Hi\n**Mom: ** Hello", ["Hi", "Hello"]),
        ("Therapist: Hi [client name]\nClient: Hey", ["Hi [client name]", "Hey"]),
        ("Sure! Here you go:\n\nMe: Hi\nMom: Hello", ["Hi", "Hello"]),
        ("Me: Hi\nand another line\nMom: Hello", ["Hi and another line", "Hello"]),
        ("Me: To buy:\nMom: yes\nNote: bring milk", ["To buy:", "yes Note: bring milk"]),
        (
            "Me: Look\nMom: http://x.org/a\nhttps://y.org",
            ["Look", "http://x.org/a https://y.org"],
        ),
        ("[10:30 AM] Me: Hi\n[10:31 AM] Mom: Hello", ["Hi", "Hello"]),
        ("Me (10:30): Hi\nMom (10:31): Hello at 10:31", ["Hi", "Hello at 10:31"]),
        (
            "**Me:** one\n**Mom:** two\nReminder: three\n**Me:** four",
            ["one", "two Reminder: three", "four"],
        ),
        ("A: 1\nB: 2\nA: 3\nC: 4\nC: 5", ["1", "2", "3", "4", "5"]),
        ("Me:\nMom: Hello\nMe:   ", ["Hello"]),
        ("Me: that is **so** good", ["that is so good"]),
        ("hi there\nhow are you", ["hi there", "how are you"]),
        ("我: 你好\n妈妈: 你好", ["你好", "你好"]),
        ("", []),
    ],
)  # fmt: skip
def test_turns_have_no_names(conversation: str, said: list[str]) -> None:
    assert turns(conversation) == said


def test_the_last_turn_of_a_cut_conversation_is_left_out() -> None:
    assert turns("Me: Hi\nMom: Hello, how ar", cut=True) == ["Hi"]
    assert turns("Me: Hi, I wan", cut=True) == ["Hi, I wan"]


@pytest.mark.parametrize(
    "line",
    ["Me" + " " * 50_000 + "x", "**a" + " " * 50_000 + "x", "[" * 50_000, "*" * 50_000,
     "Me: " + "ha ha " * 9000, "- " * 25_000, "1." + "(" * 50_000, "a, " * 17_000],
    ids=lambda line: repr(line[:8]),
)  # fmt: skip
def test_no_line_of_a_model_takes_long(line: str) -> None:
    """Seconds at most, where time that grows with the square of the length would be minutes."""
    began = time.process_time()
    parse_list(f"1. Mom\n{line}", 20)
    parse_list(line, 20)
    found = turns(f"Me: hi\n{line}\nMom: ok")
    assert time.process_time() - began < 2.0
    assert found[0].startswith("hi") and found[-1] == "ok"
    assert max(map(len, found)) <= len(line) + 3
