"""Caches: private rows are exact, renewed, erasable, owner-only and safe under two processes; in
blocks the same rows wherever a block ends, in memory that does not grow."""

from __future__ import annotations

import multiprocessing
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.data import DataError, EmbeddingCache, cached_embeddings, caches
from tests.rigs.caches import USERS, Embedder


@pytest.fixture(autouse=True)
def fresh_process() -> None:
    caches._memo.clear()


def read(
    folder: Path, users: dict[str, list[str]], model: str = "m"
) -> tuple[np.ndarray, list[str]]:
    """Embeddings as a fresh process sees them, and what was embedded for them."""
    caches._memo.clear()
    embedder = Embedder()
    rows, _ = EmbeddingCache(folder, model).get(users, embedder)
    return rows, embedder.asked


def test_rows_follow_users_and_texts(tmp_path: Path) -> None:
    embedder = Embedder()
    rows, owner = EmbeddingCache(tmp_path, "m").get(USERS, embedder)
    expected = Embedder()(["one", "two", "three", "one", "vier"])
    np.testing.assert_array_equal(rows, expected)
    assert owner.tolist() == [0, 0, 2, 2, 3]
    assert rows.dtype == np.float32
    assert owner.dtype == np.int32
    again, asked = read(tmp_path, USERS)
    np.testing.assert_array_equal(again, expected)
    assert asked == []


def test_another_order_or_subset_of_users_needs_no_embedding(tmp_path: Path) -> None:
    read(tmp_path, USERS)
    rows, asked = read(tmp_path, {"ü": ["vier"], "a": ["one", "two"]})
    np.testing.assert_array_equal(rows, Embedder()(["vier", "one", "two"]))
    assert asked == []


def test_changed_text_is_renewed_and_the_old_row_deleted(tmp_path: Path) -> None:
    read(tmp_path, USERS)
    read(tmp_path, USERS, model="other")
    rows, asked = read(tmp_path, {**USERS, "a": ["two", "one"]})
    np.testing.assert_array_equal(rows[:2], Embedder()(["two", "one"]))
    assert asked == ["two", "one"]
    with sqlite3.connect(tmp_path / "embeddings.sqlite") as database:
        found = database.execute("SELECT model FROM embeddings WHERE user = 'a'").fetchall()
        total = database.execute("SELECT count(*) FROM embeddings").fetchone()
    assert found == [("m",)]  # the other model's row of the old text went too
    assert total == (5,)


def test_borders_between_texts_count() -> None:
    assert caches.texts_hash(["ab", "c"]) != caches.texts_hash(["a", "bc"])
    assert caches.texts_hash(["ab"]) != caches.texts_hash(["ab", ""])


def test_models_do_not_share_rows(tmp_path: Path) -> None:
    read(tmp_path, USERS)
    assert read(tmp_path, USERS, model="other")[1] == ["one", "two", "three", "one", "vier"]


def test_forget_leaves_no_trace_on_disk_or_in_memory(tmp_path: Path) -> None:
    cache, embedder = EmbeddingCache(tmp_path, "m"), Embedder()
    cache.get(USERS, embedder)
    read_only_c = {"c": USERS["c"]}
    trace = Embedder()(["three"]).tobytes()
    assert trace in (tmp_path / "embeddings.sqlite").read_bytes()
    assert cache.forget("c")
    assert not any(trace in path.read_bytes() for path in tmp_path.iterdir())
    assert not [kept for kept in caches._memo.values() for block in kept if "c" in block.users]
    assert not cache.forget("c")
    embedder.asked.clear()
    cache.get(read_only_c, embedder)
    assert embedder.asked == ["three", "one"]


def test_forget_before_any_use(tmp_path: Path) -> None:
    assert not EmbeddingCache(tmp_path / "new", "m").forget("a")


def test_files_are_for_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir(mode=0o755)
    modes: list[int] = []

    def embed(texts: list[str]) -> npt.NDArray[np.float32]:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir())
        return Embedder()(texts)

    EmbeddingCache(folder, "m").get(USERS, embed)
    modes.extend(stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes) == {0o600}


def test_a_repeat_in_one_process_returns_the_same_read_only_arrays(tmp_path: Path) -> None:
    embedder = Embedder()
    first, owner = EmbeddingCache(tmp_path, "m").get(USERS, embedder)
    copy = {user: [str(t) for t in texts] for user, texts in USERS.items()}
    again, _ = EmbeddingCache(tmp_path, "m").get(copy, embedder)
    assert again is first
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        owner[0] = 1
    changed, _ = EmbeddingCache(tmp_path, "m").get({**USERS, "a": ["new"]}, embedder)
    assert changed is not first


def test_the_memo_is_bounded(tmp_path: Path) -> None:
    for i in range(5):
        cache = EmbeddingCache(tmp_path, "m", memory=400)
        cache.get({"a": [f"text {i}", f"more {i}"]}, Embedder())
    assert len(caches._memo) == 1
    cache.get({"a": ["text", "more", "too", "many"]}, Embedder())  # 256 bytes of at most 200
    assert len(caches._memo) == 1


def test_nobody_has_text(tmp_path: Path) -> None:
    rows, owner = EmbeddingCache(tmp_path, "m").get({"a": [], "b": []}, Embedder())
    assert rows.shape == (0, 16)
    assert owner.shape == (0,)


def test_an_interruption_keeps_the_batches_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "BATCH", 2)
    done = Embedder()

    def interrupted(texts: list[str]) -> npt.NDArray[np.float32]:
        if done.asked:
            raise KeyboardInterrupt
        return done(texts)

    with pytest.raises(KeyboardInterrupt):
        EmbeddingCache(tmp_path, "m").get(USERS, interrupted)
    assert read(tmp_path, USERS)[1] == ["three", "one", "vier"]


@pytest.mark.parametrize("shape", [(4, 3), (5,), (5, 0)])
def test_public_embeddings_of_the_wrong_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="5 texts"):
        cached_embeddings(tmp_path, "m", list("abcde"), lambda _: np.zeros(shape))


def hammer(folder: str, start: int) -> None:
    for turn in range(8):
        users = {f"u{(start + i) % 30}": [f"text {i % 3} {turn % 2}"] for i in range(20)}
        caches._memo.clear()
        rows, _ = EmbeddingCache(Path(folder), "m").get(users, Embedder())
        np.testing.assert_array_equal(rows, Embedder()([t for own in users.values() for t in own]))


@pytest.mark.slow
def test_several_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=hammer, args=(str(tmp_path), 7 * i)) for i in range(3)]
    for process in running:
        process.start()
    for process in running:
        process.join(timeout=120)
    assert [process.exitcode for process in running] == [0, 0, 0]


@pytest.mark.slow
def test_many_users_and_a_repeat_is_free(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users = {
        f"user-{i}": [f"text {k} of {i} " + "word " * 40 for k in range(8)] for i in range(3000)
    }

    def embed(texts: list[str]) -> npt.NDArray[np.float32]:
        return rng.standard_normal((len(texts), 384), dtype=np.float32)

    def refuse(texts: list[str]) -> npt.NDArray[np.float32]:
        raise AssertionError("all rows are kept")

    cache = EmbeddingCache(tmp_path, "m")
    written, _ = cache.get(users, embed)
    caches._memo.clear()
    rows, owner = cache.get(users, refuse)
    (tmp_path / "embeddings.sqlite").unlink()  # nor is the file read again
    assert cache.get({user: list(own) for user, own in users.items()}, refuse)[0] is rows
    np.testing.assert_array_equal(rows, written)
    assert owner[-1] == 2999


def test_public_embeddings_are_computed_once(tmp_path: Path) -> None:
    embedder = Embedder()
    rows = cached_embeddings(tmp_path / "p", "m", ["one", "two"], embedder)
    again = cached_embeddings(tmp_path / "p", "m", ["one", "two"], embedder)
    np.testing.assert_array_equal(rows, again)
    assert embedder.asked == ["one", "two"]
    cached_embeddings(tmp_path / "p", "m", ["two", "one"], embedder)
    cached_embeddings(tmp_path / "p", "other", ["one", "two"], embedder)
    assert len(embedder.asked) == 6
    assert {path.suffix for path in (tmp_path / "p").iterdir()} == {".npy"}


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="disk full"):
        cached_embeddings(tmp_path, "m", ["one"], Embedder())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_of_public_rows_is_named(tmp_path: Path, content: bytes) -> None:
    cached_embeddings(tmp_path, "m", ["a"], lambda texts: np.ones((len(texts), 2)))
    (path,) = tmp_path.glob("*.npy")
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path} is damaged"):
        cached_embeddings(tmp_path, "m", ["a"], lambda texts: np.ones((len(texts), 2)))


# Blocks


TEXTS = st.lists(st.sampled_from(["one", "two", "three", "vier", "five"]), max_size=5)
MANY = st.lists(TEXTS, max_size=9).map(lambda own: {f"u{i}": t for i, t in enumerate(own)})


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "BATCH", 3)


def embed_but_vier(texts: list[str]) -> npt.NDArray[np.float32]:
    if "vier" in texts:
        raise ValueError
    return Embedder()(texts)


@pytest.mark.usefixtures("small_batches")
@settings(max_examples=15, deadline=None)
@given(
    users=MANY,
    changed=MANY,
    memory=st.sampled_from([1, 16 * 64 * 2, 16 * 64 * 5, 2**20]),
)
def test_blocks_are_the_whole_in_parts(
    users: dict[str, list[str]],
    changed: dict[str, list[str]],
    memory: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of new users and kept ones, those without text and those whose text fails; three times."""
    folder = tmp_path_factory.mktemp("cache")
    for content in (users, users | changed, users | changed):
        caches._memo.clear()
        rows, owner = EmbeddingCache(folder / "whole", "m").get(content, embed_but_vier)
        cache = EmbeddingCache(folder / "parts", "m", memory)
        for _ in range(2):  # the second time perhaps from memory
            blocks = list(cache.blocks(content, embed_but_vier))
            assert [user for block in blocks for user in block.users] == list(content)
            assert [block.first for block in blocks] == np.cumsum(
                [0, *(len(block.users) for block in blocks)]
            )[:-1].tolist()
            if blocks:
                np.testing.assert_array_equal(np.concatenate([b.rows for b in blocks]), rows)
                owners = np.concatenate([b.owner + b.first for b in blocks])
                np.testing.assert_array_equal(owners, owner)
            if memory == 1:  # from the first rows on, it is known how long a row is
                first = next((i for i, block in enumerate(blocks) if len(block.rows)), 0)
                assert all(len(np.unique(block.owner)) < 2 for block in blocks[first + 1 :])


@pytest.mark.usefixtures("small_batches")
def test_a_block_holds_no_more_than_its_share(tmp_path: Path) -> None:
    users = {f"u{i}": [f"{i} {k}" for k in range(3)] for i in range(40)}
    cache = EmbeddingCache(tmp_path, "m", memory=16 * 64 * 10)  # a block: ten rows of 64 bytes
    for _ in range(2):
        caches._memo.clear()
        sizes = [len(block.rows) for block in cache.blocks(users, Embedder())]
        assert sum(sizes) == 120 and max(sizes) <= 10 and len(sizes) == 14
    assert not caches._memo  # half of the memory is less than all


@pytest.mark.usefixtures("small_batches")
def test_a_cache_that_is_lost_between_two_blocks_is_done_without(tmp_path: Path) -> None:
    users = {f"u{i}": [f"text {i}"] for i in range(12)}
    cache = EmbeddingCache(tmp_path, "m", memory=16 * 64 * 4)
    list(cache.blocks(users, Embedder()))
    caches._memo.clear()
    rows = []
    for number, block in enumerate(cache.blocks(users, Embedder())):
        rows.append(block.rows)
        if not number:
            (tmp_path / "embeddings.sqlite").write_bytes(b"no database " * 999)
    expected = Embedder()([text for own in users.values() for text in own])
    np.testing.assert_array_equal(np.concatenate(rows), expected)


MEASURED = """
import json, sys, resource
from pathlib import Path
import numpy as np
from privsyn_flower.config import DataConfig
from privsyn_flower.data import EmbeddingCache, Federation, prepare

folder, users = Path(sys.argv[1]), int(sys.argv[2])
with (folder / "users.jsonl").open("w") as file:
    for i in range(users):
        for k in range(2):
            text = f"text {k} of {i} " + "and so on " * 20
            file.write(json.dumps({"user_id": f"u{i}", "text": text}) + "\\n")
config = DataConfig(
    source="files", path=str(folder / "users.jsonl"), users=users - 10, held_out_users=10,
    development_users=0, near_duplicates="keep",
)
federation = Federation(prepare(config, folder))
row = np.ones((2, 512), dtype=np.float32)
for _ in range(2):
    shard = federation.shard(0, 1)
    for block in EmbeddingCache(folder / "node", "m", 2**24).blocks(shard, lambda texts: row):
        pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_is_flat_from_2000_to_20000_users(tmp_path: Path) -> None:
    """Text of 17 MB and rows of 82 MB, in a process that may hold 16 MB of rows."""
    peaks = []
    for users in (2000, 20_000):
        folder = tmp_path / str(users)
        folder.mkdir()
        command = [sys.executable, "-c", MEASURED, str(folder), str(users)]
        done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120)
        peaks.append(int(done.stdout))
    print(f"peaks {peaks} MB")
    assert peaks[1] - peaks[0] < 30
