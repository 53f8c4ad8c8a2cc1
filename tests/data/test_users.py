"""Files of users: encodings, odd rows, and what their owner is told about them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.data import (
    DataError,
    Finding,
    check_file,
    load_samples,
    load_users,
    reading,
    users,
)
from tests.rigs.users import write, write_jsonl

ROWS: list[dict[str, Any]] = [
    {"user_id": "b", "text": "first, with a comma", "label": "x", "date": "2024-01-31"},
    {"user_id": "a", "text": 'a "quoted"\nsecond line', "label": "y", "date": "2024-02-01"},
    {"user_id": "b", "text": "Grüße, 世界 🎉", "label": "x", "date": "2024-02-29"},
    {"user_id": "c", "text": "", "label": "", "date": "2024-03-01"},
    {"user_id": "b", "text": "first, with a comma", "label": "x", "date": "2024-03-02"},
]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_users(tmp_path: Path, kind: str) -> None:
    loaded = load_samples(write(tmp_path, kind, ROWS), label_column="label", date_column="date")
    assert list(loaded) == ["b", "a", "c"]  # file order; c has no text but is a user
    assert [(s.text, s.label, s.date) for s in loaded["b"]] == [
        ("first, with a comma", "x", "2024-01-31"),
        ("Grüße, 世界 🎉", "x", "2024-02-29"),
    ]
    assert [s.text for s in loaded["a"]] == ['a "quoted"\nsecond line']
    assert loaded["c"] == []


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_numbers_as_ids_and_dates_mean_the_same_everywhere(tmp_path: Path, kind: str) -> None:
    rows = [
        {"user_id": 7, "text": "one", "when": 1706659200},
        {"user_id": 7, "text": "two", "when": 20240201},
    ]
    loaded = load_samples(write(tmp_path, kind, rows), date_column="when")
    assert {user: [s.date for s in own] for user, own in loaded.items()} == {
        "7": ["2024-01-31", "2024-02-01"]
    }


def test_cap_and_date_window(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "u.jsonl", ROWS)
    assert load_users(path, samples_cap=1)["b"] == ["first, with a comma"]
    window = {"date_column": "date", "date_from": "2024-02-01", "date_to": "2024-02-29"}
    assert load_users(path, **window) == {  # whoever has nothing in the window is there as well
        "a": ['a "quoted"\nsecond line'],
        "b": ["Grüße, 世界 🎉"],
        "c": [],
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text_column": "body"}, ["'body'", "data.text-column", "user_id"]),
        ({"user_column": "author"}, ["'author'", "data.user-column", "text"]),
        ({"date_column": "when"}, ["'when'", "data.date-column"]),
        ({"date_from": "2024-01-01"}, ["data.date-column", "2024-01-01"]),
        ({"date_column": "date", "date_from": "January"}, ["data.date-from", "January"]),
        ({"samples_cap": -1}, ["-1", "at least 0"]),
        (
            {"date_column": "date", "date_from": "2024-02-01", "date_to": "2024-01-01"},
            ["data.date-from", "data.date-to"],
        ),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, options: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        load_users(write_jsonl(tmp_path / "u.jsonl", ROWS), **options)
    assert all(word in str(caught.value) for word in words)


def test_unknown_format_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\.xml.*jsonl"):
        load_users(tmp_path / "u.xml")
    with pytest.raises(FileNotFoundError):
        load_users(tmp_path / "none.jsonl")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_marked_encodings(tmp_path: Path, kind: str, encoding: str) -> None:
    path = write(tmp_path, kind, [ROWS[0], ROWS[2]])
    path.write_bytes(path.read_text(encoding="utf-8").encode(encoding))
    assert load_users(path)["b"][1] == "Grüße, 世界 🎉"
    assert check_file(path) == []


def test_latin1_bytes_are_replaced_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    path.write_bytes(
        b'{"user_id": "a", "text": "na\xefve"}\n{"user_id": "a", "text": "caf\\u00e9"}\n'
    )
    assert load_users(path) == {"a": ["na\ufffdve", "café"]}
    assert [(f.line, "UTF-8" in f.problem) for f in check_file(path)] == [(1, True)]


def test_half_a_surrogate_pair_becomes_valid_text(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    path.write_text('{"user_id": "a", "text": "half \\ud83d smile"}\n')
    (text,) = load_users(path)["a"]
    assert text.encode("utf-8") == b"half ? smile"
    assert [f.line for f in check_file(path)] == [1]


def test_enormous_lines_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE", 1000)
    monkeypatch.setattr(users, "MAX_TEXT", 100)
    path = write_jsonl(
        tmp_path / "u.jsonl",
        [
            {"user_id": "a", "text": "x" * 5000},
            {"user_id": "a", "text": "y" * 500},
            {"user_id": "a", "text": "short"},
        ],
    )
    assert load_users(path) == {"a": ["x" * 100, "y" * 100, "short"]}
    assert [f.line for f in check_file(path)] == [1, 2]


def test_a_large_csv_field_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path, "csv", [{"user_id": "a", "text": "word " * 60_000}])
    assert len(load_users(path)["a"][0]) == users.MAX_TEXT


def test_findings_name_the_line_and_never_the_text(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    path.write_text(
        '{"user_id": "a", "text": "secret"}\n'
        "not json secret\n"
        '["secret"]\n'
        '{"text": "secret"}\n'
        '{"user_id": "a", "text": 5}\n'
        '{"user_id": "a", "text": "  "}\n'
        "\n"
        '{"user_id": "a", "text": "secret"}\n'
        '{"user_id": "secret-user", "text": null}\n'
        '{"user_id": true, "text": "secret"}\n'
    )
    findings = check_file(path)
    assert [f.line for f in findings] == [2, 3, 4, 5, 6, 8, 9, 9, 10]
    assert all(f.problem and f.advice for f in findings)
    assert "secret" not in repr(findings)
    assert load_users(path) == {"a": ["secret"], "secret-user": []}


def test_csv_rows_of_the_wrong_width(tmp_path: Path) -> None:
    path = tmp_path / "u.csv"
    path.write_text("user_id,text\na,fine\nb,one,two\nc\nd,\n")
    assert load_users(path) == {"a": ["fine"], "d": []}
    assert [f.line for f in check_file(path)] == [3, 4, 5, 5]


def test_missing_column_and_empty_file_are_findings(tmp_path: Path) -> None:
    (finding,) = check_file(write_jsonl(tmp_path / "u.jsonl", [{"user_id": "a", "body": "t"}]))[:1]
    assert isinstance(finding, Finding)
    assert finding.line == 0
    assert "'text'" in finding.problem
    (tmp_path / "e.csv").write_text("")
    assert [f.problem for f in check_file(tmp_path / "e.csv")] == ["the file holds no rows"]
    assert load_users(tmp_path / "e.csv") == {}


class Lines(logging.Handler):
    """Collects what a logger is told."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.text = ""
        self.logger = logging.getLogger(name)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


def test_the_log_counts_without_quoting_and_stays_on_the_node(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Counts are private: they reach a node's own handler, never Flower's log or stderr."""
    handlers = [Lines(name) for name in ("privsyn_flower.node", "privsyn_flower", "")]
    load_users(write_jsonl(tmp_path / "u.jsonl", ROWS))
    for handler in handlers:
        handler.logger.removeHandler(handler)
    local, ours, root = (handler.text for handler in handlers)
    assert (ours, root, *capfd.readouterr()) == ("", "", "", "")
    assert "1 users have no text" in local
    assert "repetitions" in local
    assert "comma" not in local


def test_importing_data_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'datasets', 'pyarrow', 'pandas', 'scipy'}"
    code = f"import sys, privsyn_flower.data; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(("value", "label"), [(True, "true"), (4.5, "4.5"), (4, "4"), (4.0, "4")])
def test_a_label_is_the_same_from_every_format(
    tmp_path: Path, kind: str, value: object, label: str
) -> None:
    said = str(value).lower() if kind == "csv" else value
    path = write(tmp_path, kind, [{"user_id": "a", "text": "t", "label": said}])
    assert load_samples(path, label_column="label")["a"][0].label in {label, str(value)}
    assert check_file(path, label_column="label") == []


def test_texts_without_a_label_are_told(tmp_path: Path) -> None:
    rows = [{"user_id": "a", "text": f"text {i}", "label": own} for i, own in enumerate(("x", ""))]
    path = write(tmp_path, "jsonl", rows)
    assert [(f.line, f.problem) for f in check_file(path, label_column="label")] == [
        (2, "the text has no label")
    ]
    assert check_file(path) == []


def test_ids_that_a_reader_takes_for_one_are_told(tmp_path: Path) -> None:
    names = ["Jos\u00e9", "Jose\u0301", "JOS\u00c9", "Josef"]
    path = write(tmp_path, "jsonl", [{"user_id": name, "text": "t"} for name in names])
    assert [f.line for f in check_file(path)] == [1, 2, 3]
    assert list(load_samples(path)) == names  # all the same each is a user


def test_one_users_label_does_not_decide_about_the_others(tmp_path):
    """On a node a record changes nothing but its own user's samples."""
    rows = [{"user_id": f"u{i}", "text": f"text of user {i}"} for i in range(4)]
    labelled = [{**rows[0], "label": "x"}, *rows[1:]]
    options = {"label_column": "label", "strict": False}
    with_label = load_samples(write(tmp_path, "jsonl", labelled), **options)
    without = load_samples(write(tmp_path, "jsonl", rows), **options)
    assert list(with_label) == list(without) == ["u0", "u1", "u2", "u3"]
    assert {u: without[u] for u in ("u1", "u2", "u3")} == {
        u: with_label[u] for u in ("u1", "u2", "u3")
    }
    assert with_label["u0"][0].label == "x" and without["u0"][0].label == ""


def test_what_is_left_out_on_purpose_is_counted_on_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "jsonl", ROWS)
    window = {"date_column": "date", "date_from": "2024-01-31", "date_to": "2024-03-01"}
    log = logging.getLogger("privsyn_flower.node")
    log.addHandler(caplog.handler)
    load_users(path, samples_cap=1, **window)
    log.removeHandler(caplog.handler)
    assert "users.jsonl: 1 texts are left out: of other dates" in caplog.text
    assert "users.jsonl: 1 texts are left out: beyond 1 of a user" in caplog.text
