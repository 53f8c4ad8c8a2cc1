"""Every kind of question to neighbouring nodes: what the noise is added to, and what it is told.

As in grey-box audits of such libraries (arXiv 2602.17454): the node runs on neighbours with its
randomness held fixed, and what enters the noise is compared with the sensitivity it is made for,
in exact integers; whatever else the noise depends on must be the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.data import LabelledText
from tests.client_apps.rig import KINDS, NAMES, USERS, Asked, asked, bare
from tests.conftest import sentences
from tests.rigs import scores as scores_rig
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

HOSTILE = {
    "nothing": [],
    "blank": ["", " "],
    "another": sentences(4, 77),
    "everybody's": [text for texts in USERS.values() for text in texts],
    "huge": ["theorem lemma proof " * 5000, *sentences(200, 8)],
    "odd": ["\x00", "\ud800", "\u202e" * 50, "a" * 10_000],
    "nan": ["nan"],
    "raise": ["raise"],
    "empty": ["empty"],
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def outline(reply: Any) -> Any:
    """All of a reply but the numbers of its vector and of its round: names, types and sizes."""
    records = {
        name: {key: (type(value), np.size(value)) for key, value in dict(record).items()}
        for name, record in reply.content.items()
    }
    return records, str(reply.content.config_records["answer"]["code"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_differ_by_the_sensitivity_before_noise_and_in_nothing_else(
    kind: str,
    tmp_path: Path,
    causal_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = bare(monkeypatch)
    one: Asked = asked(kind, tmp_path, causal_folder)
    square = one.noise.sensitivity**2
    rounds = iter(range(1, 100))
    outlines = []

    def integers(users: Any) -> Any:
        rnd = next(rounds)
        reply = one.answer(one.message(rnd), users)
        outlines.append(outline(reply))
        return one.integers(reply, rnd)

    everybody, moved = integers(USERS), 0
    for name in ("u0", "u3"):
        without = integers({user: USERS[user] for user in NAMES if user != name})
        change = everybody - without
        assert 0 < change @ change <= square
        for texts in HOSTILE.values():
            change = integers({**USERS, name: texts}) - without
            assert change @ change <= square
            moved += bool(change.any())
    assert moved >= 6, "texts that move nothing test nothing"
    assert len(drawn) > 10 and set(drawn) == {drawn[0]}
    assert all(found == outlines[0] for found in outlines)


def test_labels_of_one_user_alone_are_no_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes are the question's: another label adds none, and counts nowhere."""
    drawn = bare(monkeypatch)
    one = asked("scores", tmp_path, tmp_path)
    one.query = scores_rig.question(classes=["news", "mail", "news"], labels=["news", "mail"])
    users = {name: [LabelledText(text, "mail") for text in texts] for name, texts in USERS.items()}
    own = {"u0": [LabelledText(text, "a label of my own") for text in USERS["u0"]]}
    rest = {name: texts for name, texts in users.items() if name != "u0"}
    got = [
        one.integers(one.answer(one.message(rnd), given), rnd)
        for rnd, given in enumerate([users, {**users, **own}, rest], start=1)
    ]
    assert np.array_equal(got[1], got[2]) and (got[0] != got[2]).any()
    assert len(got[0]) == one.query.length and set(drawn) == {drawn[0]}
