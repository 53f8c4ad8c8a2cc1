"""scripts/popri_rounds.py on a small run folder: rows, intervals, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privsyn_flower.config import ConfigError
from privsyn_flower.runs import write_jsonl
from scripts import popri_rounds
from tests.conftest import sentences


@pytest.fixture
def run(tmp_path: Path) -> Path:
    users = tmp_path / "users.jsonl"
    rows = [{"user_id": f"u{i % 20}", "text": text} for i, text in enumerate(sentences(80, 0))]
    write_jsonl(users, rows)
    folder = tmp_path / "run"
    (folder / "popri").mkdir(parents=True)
    for number in (1, 2):
        own = sentences(30, number)
        found = {"prompts": [], "responses": [own[:15], own[10:]]}
        (folder / "popri" / f"round-000{number}.json").write_text(json.dumps(found))
    (folder / "popri" / "round-0001-learned.json").write_text("{}")
    write_jsonl(tmp_path / "rival.jsonl", ({"text": text} for text in sentences(25, 9)))
    (folder / "config.toml").write_text(
        f'method = "popri"\nbenchmark = true\ncache = "{tmp_path / "cache"}"\n'
        f'[data]\nsource = "files"\npath = "{users}"\nusers = 8\nheld-out-users = 10\n'
        f'public-path = "{tmp_path / "rival.jsonl"}"\npublic-pool = 9\npublic-validation = 2\n'
        "development-users = 2\nminority-share = 0\n"
        '[models]\nembedder = "ngram-64"\n'
        "[evaluation]\nsteps = 1\nbatch-size = 4\nsequence-length = 16\n"
    )
    return folder


@pytest.mark.slow
def test_each_round_and_file_has_its_row(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rival = f"PrE-Text={run.parent / 'rival.jsonl'}"
    popri_rounds.main([str(run), "--texts", rival, "--size", "20", "--against", "PrE-Text"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    names = [line.split("|")[1].strip() for line in table[2:]]
    assert names == ["responses of round-0001", "responses of round-0002", "PrE-Text"]
    assert "minus PrE-Text" in table[0] and table[-1].endswith("|  |")
    assert all(line.count("[") == 6 for line in table[2:4])


def test_what_it_refuses(run: Path) -> None:
    with pytest.raises(SystemExit, match="responses of round-0001 has 30 distinct texts"):
        popri_rounds.main([str(run)])
    with pytest.raises(SystemExit, match=r"--against PE: .* has responses of round-0001"):
        popri_rounds.main([str(run), "--against", "PE"])
    config = run / "config.toml"
    config.write_text(config.read_text().replace("benchmark = true", "benchmark = false"))
    with pytest.raises(ConfigError, match="benchmark = false"):
        popri_rounds.main([str(run)])
