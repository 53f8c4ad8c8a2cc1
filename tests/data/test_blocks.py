"""Embeddings in blocks: the same rows wherever a block ends, in memory that does not grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.data import EmbeddingCache, caches
from tests.rigs.caches import Embedder

TEXTS = st.lists(st.sampled_from(["one", "two", "three", "vier", "five"]), max_size=5)
USERS = st.lists(TEXTS, max_size=9).map(lambda own: {f"u{i}": t for i, t in enumerate(own)})


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "BATCH", 3)


def embed(texts: list[str]) -> npt.NDArray[np.float32]:
    if "vier" in texts:
        raise ValueError
    return Embedder()(texts)


@settings(max_examples=15, deadline=None)
@given(
    users=USERS,
    changed=USERS,
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
        rows, owner = EmbeddingCache(folder / "whole", "m").get(content, embed)
        cache = EmbeddingCache(folder / "parts", "m", memory)
        for _ in range(2):  # the second time perhaps from memory
            blocks = list(cache.blocks(content, embed))
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


def test_a_block_holds_no_more_than_its_share(tmp_path: Path) -> None:
    users = {f"u{i}": [f"{i} {k}" for k in range(3)] for i in range(40)}
    cache = EmbeddingCache(tmp_path, "m", memory=16 * 64 * 10)  # a block: ten rows of 64 bytes
    for _ in range(2):
        caches._memo.clear()
        sizes = [len(block.rows) for block in cache.blocks(users, Embedder())]
        assert sum(sizes) == 120 and max(sizes) <= 10 and len(sizes) == 14
    assert not caches._memo  # half of the memory is less than all


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
