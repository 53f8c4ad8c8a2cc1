"""`privsyn data check`, and no torch where none is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from privsyn_flower.config import RunConfig, flatten
from tests.rigs.command_line import privsyn

check = partial(privsyn, "data", "check")


@pytest.mark.parametrize(
    ("command", "about"),
    [
        ("plan", "TOML file; default: the demo"),
        ("report", "Run folders, or their summary.json."),
        ("publish", "Folder of a finished run."),
        ("data check", "jsonl, csv, tsv or parquet"),
    ],
)
def test_the_help_of_a_command_is_also_that_of_its_arguments(command: str, about: str) -> None:
    assert about in privsyn(*command.split(), "--help").stdout


def test_data_check(tmp_path: Path) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text('{"user_id": "a", "text": "one two"}\n')
    assert check(good).exit_code == check(good, "--strict").exit_code == 0
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"user_id": "a", "text": ""}\n{"user_id": "b", "text": "x"}\nnot json\n')
    result = check(bad)
    assert result.exit_code == 0 and f"{bad}:3" in result.output  # a script goes on
    assert check(bad, "--strict").exit_code == 1
    for none in ("none.jsonl", "none.parquet"):
        assert check(tmp_path / none).exit_code == 2
    assert "convert it to" in check(tmp_path / "a.xml").output
    long = tmp_path / "long.jsonl"
    long.write_text('{"user_id": "a", "text": "%s"}\n' % ("word " * 400))
    assert "reads the beginning of only: 1, of more than 256 tokens" in check(long).output
    assert "beginning" not in check(long, "--embedder", "ngram-64").output


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ids.csv", "user_id,text\n1.58222E+18,a\n1.58222E+18,b\n", "export the column of ids"),
        ("nan.csv", "user_id,text\nu1,a\nnan,b\n", "'nan', which stands for no one person"),
        ("array.jsonl", '[\n {"user_id": "u1", "text": "x"}\n]\n', "begins with '['"),
        ("blank.csv", "user_id,text\n", "no user has a text"),
        ("other.csv", "id;body\n1;x\n", "has: 'body', 'id'; rename the column that is meant"),
        (
            "lines.csv",
            '{"user_id": "u1", "text": "x"}\n',
            "begins with '{', so it is JSON: call it",
        ),
        ("table.jsonl", "user_id,text\nu1,x\nu2,y\n", "3 x the line is no JSON object"),
        ("two.csv", "user_id,text,text\nu1,x,y\n", "has 2 columns 'text': rename all but one"),
        ("a table.parquet", "user_id,text\nu1,x\n", "does not begin with PAR1"),
        ("my array.jsonl", '[{"user_id": "u1", "text": "x"}]\n', "my array.jsonl' > lines.jsonl"),
        ("words.csv", "user_id,text\nnan,a\nNone,b\n", "no one person, or the like (lines 2, 3)"),
        ("book.csv", "PK\x03\x04 and so on", "an Excel workbook"),
    ],
)
def test_data_check_of_what_no_run_takes(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    result = check(path)
    assert result.exit_code == 1
    assert "error: no run takes this file: " in result.output and words in result.output


def test_data_check_counts_by_kind_and_ends_with_a_start(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    rows = [f"u{i % 7},{'' if i % 3 else f'the text {i}'},{i % 2}\n" for i in range(3000)]
    path.write_text("user_id,text,kind\n" + "".join(rows))
    result = check(path, "--label-column", "kind")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith(f"{path}:3: 2,000 x the text is empty (lines 3, 4, 6, 7, 9, ...);")
    assert lines[1:5] == [
        "2,000 findings",
        "columns: user_id, text, kind",
        "users: 7, 0 of them without text",
        "rows: 3,000, texts: 1,000",
    ]
    assert "the text 3" not in result.output
    starter = tomllib.loads(result.output.partition("simulation):\n\n")[2])
    keys = [
        line for line in result.output.partition("simulation):\n\n")[2].splitlines() if "=" in line
    ]
    assert len(keys) > 10 and all("  # " in line for line in keys)  # a sentence a key
    config = RunConfig.from_flat(flatten(starter))
    assert (config.data.users, config.data.path) == (7, str(path))
    assert config.data.label_column == "kind" and config.delta < 1 / 7
    found = json.loads(check(path, "--label-column", "kind", "--json").output)
    assert found["findings"] == found["kinds"][0]["count"] == 2000
    assert found["words"] == {"least": 3, "median": 3, "most": 3}


def test_data_check_of_a_file_without_users_is_short(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,text\n" + "".join(f"{i},text {i}\n" for i in range(5000)))
    result = check(path)
    assert result.exit_code == 1
    assert len(result.output.splitlines()) < 8
    assert "'user_id' (data.user-column)" in result.output and "'id', 'text'" in result.output
    assert "with --user-column '' every row is a user" in result.output  # as printed
    result = check(path, "--user-column", "")
    assert result.exit_code == 0
    assert "users: 5,000" in result.output and 'user-column = ""' in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "from privsyn_flower.app.cli.main import app",
        "import privsyn_flower.client_apps.main",
        "import privsyn_flower.privacy, privsyn_flower.queries, privsyn_flower.data",
        "from privsyn_flower.strategies import PrEText",
    ],
)
def test_light_imports(code: str) -> None:
    heavy = "{'torch', 'transformers', 'datasets', 'pandas', 'dp_accounting', 'scipy'}"
    check = f"{code}; import sys; found = {heavy} & set(sys.modules); assert not found, found"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_node_with_cached_embeddings_votes_without_torch(tmp_path: Path) -> None:
    """A device that has embedded its text once loads no model to vote again."""
    code = f"""
import sys
from pathlib import Path
from typing import Any
import numpy as np
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.answers import Participants
from privsyn_flower.client_apps.votes import user_votes
from privsyn_flower.data import EmbeddingCache
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, integer_plan
from privsyn_flower.protocol.question import Query
users = {{"a": ["one", "two"], "b": ["three"]}}
folder = Path({str(tmp_path)!r})
node = Node(Hello(2, 0, False), folder, "minilm", "cpu", None, None, lambda: users)
query = Query.votes(np.eye(4, 384, dtype=np.float32), bound=1.0, model="fp")
cache = EmbeddingCache(node.cache / "embeddings", "fp")
cache.get(users, lambda texts: np.eye(len(texts), 384, dtype=np.float32))
plan = integer_plan(query, Noise(1.0, 4096.0, 24, 2.0))
both = Participants(np.ones(2, bool), np.ones(2, bool))
assert user_votes(query, users, both, plan, node).sum() > 0
sys.exit("torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
