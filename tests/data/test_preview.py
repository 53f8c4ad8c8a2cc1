"""A look at a file: exact where it is small, bounded where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.data import DataError, load_users, surveys
from privsyn_flower.data.surveys import Preview
from privsyn_flower.data.values import Columns


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def look(path: Path, **columns: str) -> Preview:
    return surveys.preview(path, Columns(**columns))


def test_a_small_file_is_counted_as_a_run_would_read_it(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"user_id": f"u{n % 7}", "text": f"text {n % 20}"} for n in range(40)
    ]
    rows += [{"user_id": "late", "text": ""}, {"user_id": 7, "text": "a number's user"}]
    path = write(tmp_path / "users.jsonl", rows)
    with path.open("a") as file:
        file.write("not json\n")
    seen, loaded = look(path), load_users(path)
    assert seen.whole and seen.rows == 42 and seen.records == 43
    assert seen.users() == len(loaded) == 9  # who has no text is one of them
    assert seen.users(1) == sum(bool(texts) for texts in loaded.values()) == 8
    assert len(seen.texts) == sum(map(len, loaded.values()))
    assert seen.users(5) == sum(len(texts) >= 5 for texts in loaded.values()) > 0
    assert seen.columns == {"user_id", "text"}


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_every_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"users.{suffix}"
    rows: list[dict[str, object]] = [{"user_id": "a", "text": f"t{n}", "n": n} for n in range(3)]
    if suffix == "jsonl":
        write(path, rows)
    elif suffix == "csv":
        path.write_text("user_id,text,n\n" + "".join(f"a,t{n},{n}\n" for n in range(3)))
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.Table.from_pylist(rows), path)
    seen = look(path)
    assert (seen.rows, seen.users(), len(seen.texts)) == (3, 1, 3)
    assert seen.columns == {"user_id", "text", "n"}
    assert look(path, user="").users() == 3  # every row is a user


def test_a_long_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "u.jsonl", [{"user_id": n, "text": f"text {n}"} for n in range(5000)])
    read: list[int] = []

    def counted(*args: object) -> object:
        for row in original(*args):
            read.append(row[0])
            yield row

    original = surveys.read_rows
    monkeypatch.setattr(surveys, "read_rows", counted)
    monkeypatch.setattr(surveys, "WHOLE", 1000)
    seen = look(path)
    assert not seen.whole and seen.rows == surveys.ROWS and len(read) == surveys.ROWS + 1
    monkeypatch.setattr(surveys, "CHARACTERS", 90)
    assert look(path).rows < 20


def test_what_is_no_text_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "users.docx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"users\.docx.*\.jsonl"):
        look(tmp_path / "users.docx")
    (tmp_path / "empty.csv").write_bytes(b"")
    assert look(tmp_path / "empty.csv").rows == 0
