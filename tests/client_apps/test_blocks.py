"""What a node may hold at once changes no answer: users are summed block by block, as integers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps.answers import Kind, Participants
from privsyn_flower.client_apps.node.device import Node, open_node
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.data import LabelledText, caches
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, integer_plan
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import WireError
from privsyn_flower.text import load_embedder
from tests.conftest import node_context, sentences
from tests.rigs import scores as scores_rig

USERS = {
    f"u{i}": [LabelledText(text, "abc"[(i + k) % 3]) for k, text in enumerate(sentences(i % 5, i))]
    for i in range(60)
}
EMBEDDER = load_embedder("ngram-64")
ROW = 4 * 64
WHOLE = 2**30


def votes(classes: bool) -> Query:
    query = Query.votes(EMBEDDER.embed(sentences(10, 99)), bound=1.0, model=EMBEDDER.fingerprint)
    return query.by_class(["a", "b"]) if classes else query


def answer(
    folder: Path,
    kind: Kind,
    query: Query,
    participants: Participants,
    memory: int,
    users: Any = USERS,
) -> Any:
    node = Node(
        Hello(60, 0, deployed=False), folder, "ngram-64", "cpu", None, None, lambda: users,
        memory=memory,
    )  # fmt: skip
    plan = integer_plan(query, Noise(1.0, 4096.0, 32, 60.0))
    caches._memo.clear()
    return kind.vectors(query, users, participants, plan, node)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["votes", "votes by class", "scores"])
@pytest.mark.parametrize("asked", ["all", "some"])
def test_a_sum_is_the_same_in_blocks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, asked: str
) -> None:
    monkeypatch.setattr(caches, "BATCH", 7)
    kind = SCORES if case == "scores" else VOTES
    query = scores_rig.question() if case == "scores" else votes(case == "votes by class")
    some = np.random.default_rng(3).random(60) < 0.7
    due = some if asked == "some" else np.ones(60, dtype=bool)
    participants = Participants(due, due & (np.arange(60) % 4 > 0))
    whole = answer(tmp_path, kind, query, participants, WHOLE)
    assert whole.any() and whole.dtype == np.int64
    for rows in (1, 3, 16, 50):
        memory = rows * ROW * caches.BLOCK_SHARE
        for _ in range(2):  # from texts, and from the disk
            folder = tmp_path / str(rows)
            np.testing.assert_array_equal(answer(folder, kind, query, participants, memory), whole)


@pytest.mark.parametrize("kind", [VOTES, SCORES], ids=["votes", "scores"])
def test_nobodys_vector_depends_on_who_is_in_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Without a user, all later blocks end elsewhere: the sum is less that user's vector alone."""
    monkeypatch.setattr(caches, "BATCH", 5)
    query = scores_rig.question() if kind is SCORES else votes(classes=False)
    memory = 6 * ROW * caches.BLOCK_SHARE

    def total(users: Any) -> Any:
        everybody = np.ones(len(users), dtype=bool)
        return answer(tmp_path, kind, query, Participants(everybody, everybody), memory, users)

    whole = total(USERS)
    for name in ("u1", "u7", "u33", "u59"):
        others = {user: own for user, own in USERS.items() if user != name}
        own = total({name: USERS[name]})
        assert own.any()
        np.testing.assert_array_equal(total(others) + own, whole)


def test_a_log_whose_folder_is_gone_stops_nothing(tmp_path: Path) -> None:
    """Data are read before the next node's log is open: what they tell goes to the last one's."""
    folder = tmp_path / "node-6"
    node = Node(
        Hello(60, 0, deployed=False), folder, "ngram-64", "cpu", None, None, lambda: USERS,
        memory=WHOLE,
    )  # fmt: skip
    log = node.log()
    log.info("one")
    assert "one" in (folder / "node.log").read_text()
    for handler in log.handlers:
        handler.close()
    shutil.rmtree(folder)
    log.info("two")
    assert not folder.exists()


@pytest.mark.parametrize("memory", [0, -1, 1.5, True, "2 GB"])
def test_memory_that_is_none_is_refused(tmp_path: Path, memory: Any) -> None:
    path = tmp_path / "users.jsonl"
    path.write_text("")
    with pytest.raises(WireError, match="memory"):
        open_node(node_context({"data": str(path), "memory": memory}))
    assert open_node(node_context({"data": str(path), "memory": 3})).memory == 3 * 2**20
