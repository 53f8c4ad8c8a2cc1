"""Of a file: a look that is exact where it is small and bounded where it is not; quantiles of its
sizes, which are printed alone; and a picture of public text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.data import load_users, surveys
from privsyn_flower.data.surveys import Preview, quantiles, statistics
from privsyn_flower.data.values import Columns
from privsyn_flower.evaluation.drawing import chosen, draw_clusters
from privsyn_flower.text.embedders import NgramEmbedder
from tests.rigs.users import write, write_jsonl

ROWS = [("a", "one two three", "x"), ("a", "four", "y"), ("b", "five six", "x"), ("c", " ", "x")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    keys = ("user_id", "text", "label")
    return write(tmp_path, "jsonl", [dict(zip(keys, row, strict=True)) for row in ROWS])


def test_sizes_by_hand(file: Path) -> None:
    columns = Columns("user_id", "text", "label")
    found = statistics(str(file), columns, lambda texts: [2 * len(t.split()) for t in texts])
    assert (found["users"], found["texts"], found["labels"]) == (3, 3, 2)
    assert found["texts_per_user"] == quantiles([2, 1, 0])
    assert found["words_per_text"] == quantiles([3, 1, 2])
    assert found["words_per_user"] == quantiles([4, 2, 0])
    assert found["tokens_per_user"] == quantiles([8, 4, 0])
    assert found["words_per_text"]["50%"] == 2 and found["words_per_text"]["mean"] == 2
    assert found["words_per_text"]["std"] == pytest.approx(np.std([1, 2, 3]))
    assert quantiles([]) == {}


def test_the_command_prints_and_keeps_nothing(file: Path) -> None:
    before = sorted(file.parent.rglob("*"))
    done = CliRunner().invoke(app, ["data", "statistics", str(file), "--json"])
    assert done.exit_code == 0 and "if it is private, so are they" in done.stderr
    assert json.loads(done.stdout)["users"] == 3
    table = CliRunner().invoke(app, ["data", "statistics", str(file)])
    assert "users 3, texts 3, labels 0" in table.stdout and "words per user" in table.stdout
    assert sorted(file.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("more", "told"),
    [(["--text-column", "body"], "'body'"), (["--tokenizer", "/none"], "no such model folder")],
)
def test_what_cannot_be_read_is_named(file: Path, more: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["data", "statistics", str(file), *more])
    assert done.exit_code == 2 and told in done.output


def test_the_picture_of_a_public_data_set(tmp_path: Path) -> None:
    """A file is refused unless its text is said to be public."""
    rows = [{"text": f"{word} " * 5 + str(n), "label": word} for word in "ab" for n in range(6)]
    path = write(tmp_path, "jsonl", [{"user_id": n, **row} for n, row in enumerate(rows)])
    beside = write_jsonl(tmp_path / "synthetic.jsonl", [{"text": "a new one"}])
    picture = tmp_path / "clusters.png"
    command = ["data", "clusters", str(path), "--label-column", "label", "--picture", str(picture)]
    command += ["--embedder", "ngram-64", "--beside", str(beside)]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2 and "add --public" in refused.output and not picture.exists()
    done = CliRunner().invoke(app, [*command, "--public"])
    assert done.exit_code == 0 and f"{beside}: 1 of 1 texts" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG") and "a: 6 of 6 texts" in done.stdout


def test_a_sample_of_the_texts_is_drawn_of_all_groups() -> None:
    groups = {"a": ["x", " ", "y"], "b": ["z"] * 7, "c": []}
    assert chosen(groups, 99, 0) == {"a": ["x", "y"], "b": ["z"] * 7}
    some = chosen(groups, 4, 1)
    assert sum(map(len, some.values())) == 4 and some == chosen(groups, 4, 1)
    with pytest.raises(ValueError, match="4 texts: a picture needs at least 8"):
        draw_clusters(some, NgramEmbedder(64), Path("never.png"), caption="")


def look(path: Path, **columns: str) -> Preview:
    return surveys.preview(path, Columns(**columns))


def test_a_small_file_is_counted_as_a_run_would_read_it(tmp_path: Path) -> None:
    rows = [{"user_id": f"u{n % 7}", "text": f"text {n % 20}"} for n in range(40)]
    more = [{"user_id": "late", "text": ""}, {"user_id": 7, "text": "a number's user"}]
    path = write(tmp_path, "jsonl", rows + more)
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
    path = write(tmp_path, suffix, [{"user_id": "a", "text": f"t{n}", "n": n} for n in range(3)])
    seen = look(path)
    assert (seen.rows, seen.users(), len(seen.texts)) == (3, 1, 3)
    assert seen.columns == {"user_id", "text", "n"}
    assert look(path, user="").users() == 3  # every row is a user


def test_a_long_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "jsonl", [{"user_id": n, "text": f"text {n}"} for n in range(5000)])
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
