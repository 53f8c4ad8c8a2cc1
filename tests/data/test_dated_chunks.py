"""Rows as users, cut into consecutive samples and split by date, as POPri's data sets are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import DataConfig
from privsyn_flower.data import DataError, Federation, prepare
from tests.rigs.users import write_jsonl

ROWS = 40
WORDS = 20  # of a text; samples of 8 words: two whole ones, and a rest of 4


def write_rows(path: Path, *, column: str = "abstract", words: int = WORDS) -> Path:
    """A day of 2023 for each row in a shuffled order; word k of row i is `w<i>x<k>`."""
    days = np.random.default_rng(5).permutation(ROWS)
    rows = [
        {
            column: " ".join(f"w{i}x{k}" for k in range(words)),
            "posted": f"2023-{1 + day // 20:02d}-{1 + day % 20:02d}",
            "area": f"area {i % 3}",
        }
        for i, day in enumerate(days)
    ]
    return write_jsonl(path, rows)


def options(path: Path, **more: Any) -> DataConfig:
    values: dict[str, Any] = {
        "source": "files",
        "path": str(path),
        "user_column": "",
        "text_column": "abstract",
        "date_column": "posted",
        "label_column": "area",
        "partition": "date",
        "chunk": True,
        "sample_words": 8,
        "users": 20,
        "held_out_users": 4,
        "development_users": 3,
    }
    return DataConfig(**{**values, **more})


def dates(users: dict[str, Any]) -> list[str]:
    return [own[0].date for own in users.values()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl")


def test_a_text_becomes_consecutive_samples_of_one_user(path: Path, tmp_path: Path) -> None:
    users = Federation(prepare(options(path), tmp_path)).shard_samples(0, 1)
    assert len(users) == 20
    for name, own in users.items():
        row = int(name.removeprefix("row-")) - 1
        assert [s.text for s in own] == [
            " ".join(f"w{row}x{k}" for k in range(start, min(start + 8, WORDS)))
            for start in (0, 8, 16)
        ]
        assert {s.label for s in own} == {f"area {row % 3}"}
        assert len({s.date for s in own}) == 1


def test_without_chunks_a_text_is_one_sample(path: Path, tmp_path: Path) -> None:
    users = Federation(prepare(options(path, chunk=False), tmp_path)).shard(0, 1)
    assert {len(own) for own in users.values()} == {1}
    assert {len(text.split()) for (text,) in users.values()} == {WORDS}


def test_the_cap_keeps_the_first_samples(path: Path, tmp_path: Path) -> None:
    users = Federation(prepare(options(path, samples_per_user=2), tmp_path)).shard(0, 1)
    assert all(own[0].split()[0].endswith("x0") and len(own) == 2 for own in users.values())


def test_the_newest_users_are_held_out(path: Path, tmp_path: Path) -> None:
    federation = Federation(prepare(options(path), tmp_path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    newest = sorted((row["posted"] for row in rows), reverse=True)

    def days(texts: dict[str, list[str]]) -> list[str]:
        return [rows[int(name.removeprefix("row-")) - 1]["posted"] for name in texts]

    assert days(federation.held_out("test")) == newest[:4]
    assert days(federation.held_out("development")) == newest[4:7]
    private = dates(federation.shard_samples(0, 1))
    assert private == sorted(newest[7:27])  # the newest of the rest, oldest first


def test_the_window_is_inclusive(path: Path, tmp_path: Path) -> None:
    window = {"date_from": "2023-01-05", "date_to": "2023-02-10"}
    config = options(path, users=19, **window)
    federation = Federation(prepare(config, tmp_path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    inside = sorted(r["posted"] for r in rows if "2023-01-05" <= r["posted"] <= "2023-02-10")
    assert len(inside) == 26
    assert dates(federation.shard_samples(0, 1)) == inside[:19]
    with pytest.raises(DataError, match=r"data\.users = 20, but the source gives only 19"):
        prepare(options(path, **window), tmp_path)


def test_a_partition_by_date_needs_dates(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.date-column"):
        prepare(options(path, date_column=""), tmp_path)


def test_near_duplicates_are_removed_or_kept(tmp_path: Path) -> None:
    """Every text ends in the same 13 words: only the newest users would be left."""
    rows = [
        {
            "abstract": f"text number {i} " + " ".join(f"common{k}" for k in range(13)),
            "posted": f"2023-01-{i + 1:02d}",
        }
        for i in range(20)
    ]
    path = write_jsonl(tmp_path / "same.jsonl", rows)
    config = options(
        path, chunk=False, label_column="", users=15, held_out_users=3, development_users=2,
        near_duplicates="remove",
    )  # fmt: skip
    with pytest.raises(DataError, match=r"held-out-users = 3, .* only 1 .* = 'remove'"):
        prepare(config, tmp_path)
    kept = Federation(prepare(config.model_copy(update={"near_duplicates": "keep"}), tmp_path))
    assert len(kept.shard(0, 1)) == 15
    assert len(kept.held_out("test")) == 3


def test_kept_duplicates_need_enough_samples_too(path: Path, tmp_path: Path) -> None:
    config = options(path, near_duplicates="keep", min_samples_per_user=4)
    with pytest.raises(DataError, match="only 0 such users"):
        prepare(config, tmp_path)


def test_public_text_has_a_column_of_its_own_and_is_cut_too(path: Path, tmp_path: Path) -> None:
    public = write_rows(tmp_path / "public.jsonl", column="text", words=24)
    more = {"public_path": str(public), "public_pool": 30, "public_validation": 16}
    # another text than the private one, or it would be removed from the public side
    public.write_text(public.read_text().replace("w", "v"))
    config = options(path, public_text_column="text", **more)
    federation = Federation(prepare(config, tmp_path))
    assert len(federation.public()) == 30
    assert {len(text.split()) for text in federation.public_corpus()} == {8}
    assert len(federation.public_corpus()) + 16 <= 3 * ROWS
    with pytest.raises(DataError, match="'abstract'"):
        prepare(config.model_copy(update={"public_text_column": ""}), tmp_path)
