"""Votes within classes on a node: the sum by hand, unknown labels, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.data import LabelledText
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.messaging import record_bytes
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.queries import vote_histogram
from privsyn_flower.text import load_embedder
from tests.client_apps.rig import NAMES, USERS, asked, bare
from tests.conftest import sentences
from tests.rigs.client_apps_votes import EMBEDDER, TICKET, node, noise, reply, vector
from tests.rigs.wire import refusal

LABELS = ["news", "mail", "notes"]
CLASSES = ["news", "mail", "news", "news", "mail", "news", "mail", "news", "news", "mail"]


def question(**options: Any) -> Query:
    """Ten candidates of two classes; of the third there is none."""
    embedder = load_embedder(EMBEDDER)
    rows = embedder.embed(sentences(10, 99))
    given = {"classes": CLASSES, "labels": LABELS, **options}
    return Query.votes(rows, bound=1.0, model=embedder.fingerprint, **given)


def labelled(labels: dict[str, str]) -> dict[str, list[str]]:
    """Each user's texts, with a label for each letter."""
    names = {"n": "news", "m": "mail", "o": "notes", "x": "no class of the list", "-": ""}
    return {
        user: [LabelledText(t, names[letter]) for t, letter in zip(USERS[user], own, strict=True)]
        for user, own in labels.items()
    }


MIXED = {"u0": "nnm", "u1": "mno", "u2": "ooo", "u3": "x-n", "u4": "mmm", "u5": "xx-"}


def test_a_text_votes_among_the_candidates_of_its_class(tmp_path: Path, loopback: Any) -> None:
    """A user's norm is over all its classes; other texts move nothing."""
    query, users = question(), labelled(MIXED)
    assert query.length == len(query.rows) == 10
    message = wire.ask(query, TICKET, noise(1e-5), 1, 5, 60.0)
    got = vector(reply(message, node(tmp_path, lambda: users)), query)
    embedder, want = load_embedder(EMBEDDER), np.zeros(10)
    for texts in users.values():
        counts = np.zeros(10)
        for name in ("news", "mail"):
            places = np.flatnonzero([one == name for one in CLASSES])
            own = embedder.embed([*(text for text in texts if text.label == name), "x"])[:-1]
            counts[places] = vote_histogram(own, query.question()[places])
        want += counts / max(1.0, np.linalg.norm(counts))
    assert np.count_nonzero(want) > 3
    assert np.allclose(got, want, atol=5 / 4096)


def test_a_label_that_nobody_knows_is_zeros_of_the_same_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback: Any
) -> None:
    drawn = bare(monkeypatch)
    one = asked("votes", tmp_path, tmp_path)
    one.query = question()
    rest = {"u1": "nmn", "u2": "mmm", "u3": "nnn", "u4": "nmm", "u5": "mnn"}
    worlds = [rest, {"u0": "xx-", **rest}, {"u0": "ooo", **rest}, {"u0": "nnm", **rest}]
    replies = [
        one.answer(one.message(rnd), labelled(own)) for rnd, own in enumerate(worlds, start=1)
    ]
    got = [one.integers(answer, rnd) for rnd, answer in enumerate(replies, start=1)]
    assert np.array_equal(got[0], got[1]) and np.array_equal(got[0], got[2])
    change = got[3] - got[0]
    square = one.noise.sensitivity**2
    assert 0 < int(change.astype(object) @ change.astype(object)) <= square
    assert len({record_bytes(answer.content) for answer in replies}) == 1
    assert len(got[0]) == one.query.length and set(drawn) == {drawn[0]}
    assert set(NAMES) == set(worlds[1])


def hostile() -> dict[str, Query]:
    kinds = question()
    plain = replace(
        kinds, extra={}, options={k: v for k, v in kinds.options.items() if k != "labels"}
    )
    numbers = kinds.extra["classes"]

    def classes(array: Any) -> Query:
        return replace(kinds, extra={"classes": array})

    def option(**options: Any) -> Query:
        return replace(kinds, options={**kinds.options, **options})

    alone = numbers.copy()
    alone[0] = 2
    return {
        "short": classes(numbers[:9]),
        "long": classes(np.append(numbers, np.uint16(0))),
        "matrix": classes(numbers[:, None]),
        "none": classes(numbers[:0]),
        "signed": classes(numbers.astype(np.int16)),
        "wide": classes(numbers.astype(np.int64)),
        "floats": classes(numbers.astype(np.float32)),
        "beyond the list": classes(np.where(numbers == 1, np.uint16(3), numbers)),
        "fewer than neighbors": replace(classes(alone), options={**kinds.options, "neighbors": 2}),
        "without a list": replace(plain, extra=kinds.extra),
        "list twice": option(labels=json.dumps(["a", "a"])),
        "list short": option(labels='["news"]'),
        "list deep": option(labels="[" * 100_000),
        "and a projection": replace(
            kinds, extra={**kinds.extra, "projection": np.zeros((64, 2), np.float16)}
        ),
        "another array": replace(kinds, extra={"groups": numbers}),
        "other length": replace(kinds, length=30),
        "no rows": replace(kinds, rows=kinds.rows[:0], scales=kinds.scales[:0]),
        "rows of nothing": replace(kinds, rows=np.zeros((10, 0), np.int8)),
        "labels without classes": replace(kinds, extra={}),
    }


@pytest.mark.parametrize("name", list(hostile()))
def test_malformed_classes_are_refused_before_private_text_is_opened(
    tmp_path: Path, loopback: Any, name: str
) -> None:
    query = hostile()[name]
    message = wire.ask(query, TICKET, noise(1e-5), 1, 5, 60.0)
    refused = reply(message, node(tmp_path, lambda: pytest.fail("private text was opened")))
    assert refusal(wire.read_answer, refused, TICKET, query.length, 32) is Refusal.MALFORMED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": CLASSES[:9]}, "each of the 10 candidates"),
        ({"classes": ["spam"] * 10}, r"\['spam'\]"),
        ({"labels": ["news", "mail", "mail"]}, "distinct"),
        ({"labels": []}, "distinct"),
        ({"neighbors": 5}, "a class has 4 candidates, fewer than neighbors = 5"),
    ],
)
def test_a_server_cannot_ask_such_a_question(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        question(**options)
