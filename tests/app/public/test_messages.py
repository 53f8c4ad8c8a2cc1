"""Short messages: the prompt, the reading of an answer, what is sifted out, and a whole stage."""

from __future__ import annotations

import gzip
import hashlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.app.public.chats import (
    OTHERS,
    RUDE,
    SHOWN,
    TOPICS,
    Persona,
    Sieve,
    goes_round,
    items,
    message_prompt,
)
from privsyn_flower.app.public.corpus import write_chats
from privsyn_flower.app.public.journal import read_state
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.units import units
from privsyn_flower.config.public import PublicTextConfig, load_public_config
from privsyn_flower.data.messages import POOL, PROVENANCE
from scripts.make_chats import texts_of

CONFIG = Path(__file__).parents[3] / "configs" / "chats-public.toml"
WHO = Persona("female", "in her twenties", "the evening", "a weekend", "a chat app")


def test_a_prompt_is_the_beginning_of_a_list() -> None:
    topic, prompt = message_prompt(WHO, seeded(0, "messages"))
    heading, *lines, last = prompt.split("\n")
    assert topic in TOPICS and topic in heading and last == "-"
    shown = [line.removeprefix("- ") for line in lines]
    assert sum(text in TOPICS[topic] for text in shown) >= SHOWN
    assert len(shown) == SHOWN + OTHERS
    assert message_prompt(WHO, seeded(0, "messages")) == (topic, prompt)


@pytest.mark.parametrize(
    ("answer", "cut", "found"),
    [
        (" hey you\n- how are\tyou?\n", False, ["hey you", "how are you?"]),
        (" hey you\n- how are", True, ["hey you"]),  # the list was going on
        (" hey you\n\nShort text messages about", True, ["hey you"]),  # the list was over
        (" hey", True, []),
    ],
)
def test_an_answer_is_cut_into_messages(answer: str, cut: bool, found: list[str]) -> None:
    assert items(answer, cut=cut) == found


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("are you coming tonight?", ""),
        ("Are you coming, TONIGHT", "repeated"),
        (TOPICS["food"][0].upper(), "written by us"),
        (":) 12", "without words"),
        (" ".join(f"w{a}{b}" for a in "abcdefgh" for b in "abcdefgh"), "too long"),
        ("Sure, here is one more", "about the task"),
        ("more short text messages about food", "about the task"),
        ("46 years old, feeling tired, morning of a Friday", "about the task"),
        ("one of my favorite places in [city]", "about the task"),
        ("I look bad naked", "sexual or abusive"),
        ("call me at 555-0100 ok", "with an address or number"),
        ("write to a@b.example", "with an address or number"),
        ("das wäre schön", "with letters beyond English"),
        ("so so so tired", "going round"),
        ("I love him soooooooooo", "going round"),
        ("I love the sea, I love the sea", "going round"),
        ("I love the sea and the sky", ""),
        ("I will go and I will go and I will go", "going round"),
    ],
)  # fmt: skip
def test_what_is_left_out_has_a_cause(text: str, cause: str) -> None:
    assert Sieve(["are you coming tonight"] if cause == "repeated" else ()).sift(text)[0] == cause


@given(st.lists(st.text("abcdefgh", min_size=1), min_size=1, max_size=30, unique=True))
def test_words_that_never_recur_do_not_go_round(words: list[str]) -> None:
    assert not goes_round(words)
    assert goes_round(words[:1] * 3)


def test_a_stage_keeps_each_message_once(canned: Any, tmp_path: Path) -> None:
    answer = " hello there from {digest}\n- same old story as always\n- no no no\n"
    server = canned(rules=[["Short text messages", answer]])
    config = PublicTextConfig.model_validate({
        "folder": str(tmp_path / "corpus"), "models": {"generator": "canned"},
        "generation": {"chat": False, "concurrency": 4},
        "chat": {"form": "messages", "personas": 9},
    })  # fmt: skip
    write_chats(config, lambda: nullcontext(server.generator(chat=False)))
    state = read_state(tmp_path / "corpus", "chat")
    assert state is not None
    counts = state["counts"]
    assert counts["messages"] == state["lines"] > 5  # their own, and one of all
    told = {"messages", "repeated", "with an address or number", "going round"}
    assert sum(counts.get(cause, 0) for cause in told) == 27
    assert counts["repeated"] >= 8 and counts["going round"] == 9
    lines = (tmp_path / "corpus" / "chat.jsonl").read_bytes()
    write_chats(config, lambda: nullcontext(server.generator(chat=False)))
    assert (tmp_path / "corpus" / "chat.jsonl").read_bytes() == lines
    # One list of eight words; without the message that all share, the others are too short.
    assert len(texts_of(tmp_path / "corpus")) == sum(
        len(units(" ".join(row["text"] for row in own))) >= 8 for own in lists(tmp_path / "corpus")
    )


def lists(folder: Path) -> list[list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for line in (folder / "chat.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["draw"], []).append(row)
    return list(found.values())


def test_the_shipped_messages_are_what_their_record_says() -> None:
    told = json.loads(PROVENANCE.read_text())
    packed = POOL.read_bytes()
    assert hashlib.sha256(packed).hexdigest() == told["sha256"] and len(packed) < 3e6
    rows = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    assert len(rows) == len({row["text"] for row in rows}) == told["texts"]
    assert told["messages"] >= 3000
    assert not [row["text"] for row in rows if RUDE.search(row["text"])]
    assert {row["topic"] for row in rows} == set(TOPICS)
    shipped = load_public_config(CONFIG)
    assert told["settings"]["models.generator"] == shipped.models.generator
    assert told["settings"]["chat.max-tokens"] == shipped.chat.max_tokens
    assert told["settings"]["seed"] == shipped.seed
