"""A record that cannot be read affects itself only: the next one may be another user's."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.data import DataError, check_file, load_samples, load_users, reading, users


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("bad", ['"never closed', '"closed" and more', 'a "b"", c"'])
def test_a_bad_csv_row_is_that_rows_alone(tmp_path: Path, kind: str, bad: str) -> None:
    path = tmp_path / f"u.{kind}"
    lines = ["user_id,text", 'a,"x, y"', f"mallory,{bad}", "b,fine", 'c,"said ""so"""', "d,"]
    path.write_text("\r\n".join(lines).replace(",", "\t" if kind == "tsv" else ","))
    found = load_users(path)
    mallory = found.pop("mallory", [])
    comma = "\t" if kind == "tsv" else ","
    assert found == {"a": [f"x{comma} y"], "b": ["fine"], "c": ['said "so"'], "d": []}
    if not bad.startswith("a"):
        assert mallory == []
        first = next(finding for finding in check_file(path) if finding.line == 3)
        assert "quote" in first.problem
        assert "CSV library" in first.advice
        assert "never clo" not in repr(first).replace("is never closed", "")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_one_stray_quote_removes_no_later_user(tmp_path: Path, encoding: str, end: str) -> None:
    """Beyond any number of rows that could be remembered; and in the first row."""
    names = [f"é{i}" for i in range(70_000 if (encoding, end) == ("utf-8", "\n") else 9_000)]
    path = tmp_path / "u.csv"
    rows = ["user_id,text", 'm,"open', *(f"{name},x" for name in names)]
    path.write_bytes(end.join(rows).encode(encoding))
    assert load_users(path) == {name: ["x"] for name in names}
    assert [finding.line for finding in check_file(path)] == [2]
    assert reading.column_names(path) == ["user_id", "text"]


@pytest.mark.slow
@pytest.mark.parametrize("close", ['"', ""], ids=["correct", "cut off"])
def test_a_text_of_many_lines_is_one_text(tmp_path: Path, close: str) -> None:
    """What lies in it are rows only where it never ends."""
    path = tmp_path / "u.csv"
    text = "\nvictim,evil" * 70_000
    path.write_text(f'user_id,text\na,one\nm,"{text}{close}\nb,two\n')
    found = load_users(path)
    assert (found["a"], found["b"]) == (["one"], ["two"])
    assert found.keys() - {"a", "b"} == ({"m"} if close else {"victim"})
    rows = [row["text"] for _, row in reading.read_rows(path, lambda *_: None) if row]
    assert rows == ["one", *([text] if close else ["evil"] * 70_000), "two"]


def test_bytes_that_are_read_twice_are_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "u.csv"
    path.write_bytes(b'user_id,text\nm,"open\na,\xff\n')
    assert load_users(path) == {"a": ["\ufffd"]}
    assert sorted(finding.line for finding in check_file(path)) == [2, 3]


def test_a_csv_that_is_replaced_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies below a broken record is never looked up in another file."""
    path, other = tmp_path / "u.csv", tmp_path / "other.csv"
    original, opened = reading._opened, 0

    def replaced(path: Path, newline: str) -> Any:
        nonlocal opened
        opened += 1
        return original(other if opened == 5 else path, newline)

    for file in (path, other):
        file.write_text("user_id,text\na,one\n")
    monkeypatch.setattr(reading, "_opened", replaced)
    with pytest.raises(DataError, match="replaced"):
        load_users(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_the_first_one_does(tmp_path: Path, end: str) -> None:
    """In a file with line feeds a lone carriage return is text, which writers leave unquoted."""
    path = tmp_path / "u.csv"
    other = "\n" if end == "\r" else "\r"
    rows = ["user_id,text", f"m,x{other}b,evil", "b,fine", 'c,"two\r\nlines"']
    path.write_bytes(end.join(rows).encode())
    found = load_users(path)
    assert found["b"] == ["fine"] and found["c"] == ["two\r\nlines"]
    assert [finding.line for finding in check_file(path)] == [2]


@pytest.mark.parametrize(
    ("kind", "end"),
    [("jsonl", "\n"), ("jsonl", "\r\n"), ("csv", "\n"), ("csv", "\r\n"), ("csv", "\r")],
)
def test_a_line_that_is_too_long(
    tmp_path: Path, kind: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_LINE", 64)
    path = tmp_path / f"u.{kind}"
    if kind == "csv":
        rows = ["user_id,text", "a,one", f"m,{'x' * 200}", f'm,"{"y" * 60}"', "b,two"]
    else:
        texts = [("a", "one"), ("m", "x" * 200), ("m", "y" * 60), ("b", "two")]
        rows = [f'{{"user_id": "{user}", "text": "{text}"}}' for user, text in texts]
    path.write_bytes(end.join(rows).encode())
    found = load_users(path)
    assert (found.pop("a"), found.pop("b")) == (["one"], ["two"])
    assert found == {"m": ["x" * 200, "y" * 60]}
    assert check_file(path) == []


def test_a_carriage_return_in_a_text_of_json_costs_its_own_line(tmp_path: Path) -> None:
    """In the first line, too, where a csv file says what ends its lines."""
    path = tmp_path / "u.jsonl"
    rows = [f'{{"user_id": "{user}", "text": "{text}"}}' for user, text in
            (("m", "one\rtwo"), ("a", "one"), ("b", "two"))]  # fmt: skip
    path.write_bytes("\n".join(rows).encode())
    assert load_users(path) == {"a": ["one"], "b": ["two"]}
    assert [finding.line for finding in check_file(path)] == [1]


def test_a_bad_csv_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "u.csv"
    path.write_text('user_id,"text\na,one\nb,two\n')
    with pytest.raises(DataError, match=r"header in line 1 .*a quote in it is never closed"):
        load_users(path)
    assert any("header" in finding.problem for finding in check_file(path))
    path.write_text(",".join(["user_id", "text"] * 600) + "\na,one\n")
    with pytest.raises(DataError, match="more than 1000 columns"):
        load_users(path)


def test_blank_lines_before_a_csv_header(tmp_path: Path) -> None:
    path = tmp_path / "u.csv"
    path.write_text("\n\nuser_id,text\na,one\n")
    assert load_users(path) == {"a": ["one"]}


def test_a_json_line_that_breaks_the_parser(tmp_path: Path) -> None:
    deep = '{"user_id": "m", "text": ' + "[" * 100_000
    long = '{"user_id": "m", "text": ' + "9" * 5000 + "}"
    path = tmp_path / "u.jsonl"
    good = ['{"user_id": "a", "text": "one"}', '{"user_id": "b", "text": "two"}']
    path.write_text("\n".join([good[0], deep, long, good[1]]))
    assert load_users(path) == {"a": ["one"], "m": [], "b": ["two"]}
    assert [finding.line for finding in check_file(path)] == [2, 3, 3]


def test_whatever_one_record_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = users.to_name

    def breaks(value: object) -> str:
        if value == "m":
            raise MemoryError
        return original(value)

    monkeypatch.setattr(users, "to_name", breaks)
    path = tmp_path / "u.jsonl"
    path.write_text("".join(f'{{"user_id": "{user}", "text": "x"}}\n' for user in "amb"))
    assert load_users(path) == {"a": ["x"], "b": ["x"]}
    assert [(f.line, f.problem) for f in check_file(path)] == [(2, "the row cannot be read")]


def write_parquet(path: Path, **columns: Any) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path)
    return path


def far_away(count: int, bad: int) -> Any:
    """Timestamps in seconds, one of them in the year 300000."""
    arrow = pytest.importorskip("pyarrow")
    seconds = [1706659200] * count
    seconds[bad] = 9_000_000_000_000
    return arrow.array(seconds, arrow.int64()).cast(arrow.timestamp("s"))


@pytest.mark.parametrize(("kind", "most"), [("float32", 2**24), ("float16", 2**11)])
def test_ids_in_a_narrow_float_column_merge_nobody(tmp_path: Path, kind: str, most: int) -> None:
    arrow = pytest.importorskip("pyarrow")
    kept = {"user_id": arrow.array([1.0, float(most)]).cast(kind), "text": ["a b", "c d"]}
    assert set(load_users(write_parquet(tmp_path / "k.parquet", **kept))) == {"1", str(most)}
    ids = arrow.array([most + 2.0, most + 4.0]).cast(kind)
    with pytest.raises(DataError, match="lost its last digits"):
        load_users(write_parquet(tmp_path / "u.parquet", user_id=ids, text=["a b", "c d"]))


def test_an_unrelated_parquet_column_is_not_read(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    path = write_parquet(tmp_path / "u.parquet", user_id=names, text=names, seen=far_away(3, 1))
    assert load_users(path) == {"a": ["a"], "b": ["b"], "c": ["c"]}
    assert check_file(path) == []
    assert reading.column_names(path) == ["user_id", "text", "seen"]


def test_a_bad_parquet_value_is_that_rows_alone(tmp_path: Path) -> None:
    names = [f"u{i}" for i in range(2500)]
    path = write_parquet(
        tmp_path / "u.parquet", user_id=names, text=names, seen=far_away(2500, 1200)
    )
    found = load_samples(path, date_column="seen")
    assert list(found) == names
    assert found.pop("u1200") == []
    assert {own[0].date for own in found.values()} == {
        datetime.datetime.fromtimestamp(1706659200, datetime.UTC).date().isoformat()
    }
    findings = check_file(path, date_column="seen")
    assert {finding.line for finding in findings} == {1201}
    assert findings[0].problem == "a value of the row cannot be read"


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    raw = arrow.array([b"one", b"\xff\xfe", b"two"], arrow.binary())
    text = arrow.Array.from_buffers(arrow.string(), 3, raw.buffers())
    path = write_parquet(tmp_path / "u.parquet", user_id=["a", "m", "b"], text=text)
    assert load_users(path) == {"a": ["one"], "m": [], "b": ["two"]}


def test_a_missing_parquet_column_names_those_there_are(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "u.parquet", user_id=["a"], body=["x"], extra=[1])
    with pytest.raises(DataError, match=r"'text'.*'body', 'extra', 'user_id'"):
        load_users(path)


ODD_FORMS = {
    "semi": ("u.csv", 'user_id;text\na;"x; y"\nb;1,5\n', "separated by ';'"),
    "sep": ("u.csv", "sep=;\nuser_id;text,x\na;x; y\nb;1,5\n", "';' as line 1 says"),
    "tab": ("u.csv", "user_id\ttext\na\tx; y\nb\t1,5\n", "separated by '\\t'"),
    "pipe": ("u.tsv", "user_id|text\na|x; y\nb|1,5\n", "separated by '|'"),
    "quoted": ("u.csv", '"user_id";"text";"a, b"\na;"x; y";1\nb;1,5;1\n', "separated by ';'"),
    "blank": ("u.csv", 'user_id, text, z\na, "x; y", 1\nb,  "1,5",2\n', "blanks after"),
    "usual": ("u.csv", 'user_id,text,a;b\na,x; y,1\nb,"1,5",1\n', ""),
}


@pytest.mark.parametrize("form", ODD_FORMS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32"])
def test_how_a_csv_file_is_written_is_found_in_its_header(
    tmp_path: Path, form: str, encoding: str
) -> None:
    name, content, words = ODD_FORMS[form]
    path = tmp_path / name
    path.write_bytes(content.encode(encoding))
    column = "text,x" if form == "sep" else "text"
    lines = [line for line, _ in reading.read_rows(path, lambda *_: None)]
    assert lines == [2 + (form == "sep"), 3 + (form == "sep")]
    if form == "sep":  # the row of one field too few is that row's alone
        assert load_users(path, text_column=column)["b"] == ["1,5"]
    else:
        assert load_users(path) == {"a": ["x; y"], "b": ["1,5"]}
    told = reading.form_of(path)
    assert words in told and ("encoding" in told) == (encoding != "utf-8")


def test_jsonl_without_a_mark_of_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes('{"user_id": "a", "text": "世界 é"}\n'.encode(encoding))
        assert load_users(path) == {"a": ["世界 é"]}
        assert reading.form_of(path) == f"the encoding is {encoding}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[\n {"user_id": "secret", "text": "x"}\n]', r"begins with '\['.*jq -c '\.\[\]'"),
        (b'\n [ {"user_id": "secret", "text": "x"} ]\n', r"begins with '\['.*a JSON array"),
        (b'{\n "user_id": "secret",\n "text": "x"\n}\n', r"begins with '\{'.*several lines"),
        (b"PK\x03\x04rest", "an Excel workbook"),
        (b"\x1f\x8brest", "compressed by gzip"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "u.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        load_users(path)
    assert "secret" not in str(caught.value)


def test_a_line_that_is_a_list_is_no_array_of_rows(tmp_path: Path) -> None:
    """A record that is no object affects itself only."""
    path = tmp_path / "u.jsonl"
    path.write_text('["x"]\n{"user_id": "a", "text": "one"}\n')
    assert load_users(path) == {"a": ["one"]}
