"""What several tests share about preflight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import sentences

CONFIG = """
nodes = 3
epsilon = 50.0
cache = "cache"

[data]
source = "files"
path = "users.jsonl"
public-path = "public.jsonl"
users = 40
held-out-users = 10
development-users = 5
public-pool = 200
public-validation = 20

[models]
embedder = "ngram-64"
generator = "small"  # of the tiny one's seeds alone there is a word

[pretext]
population = 24
variation = "retrieval"

[expand]
samples = 0
"""


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with run.toml, 60 users of four texts and 400 public texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    texts = sentences(640, 0)
    write(Path("users.jsonl"), [{"user_id": n % 60, "text": texts[n]} for n in range(240)])
    write(Path("public.jsonl"), [{"text": text} for text in texts[240:]])
    Path("run.toml").write_text(CONFIG)
    return tmp_path
