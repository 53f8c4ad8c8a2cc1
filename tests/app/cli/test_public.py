"""`privsyn public`: all commands on a small configuration, against the canned server."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.data.reading import text_file
from tests.app.public.conftest import Canned, canned, quick
from tests.rigs import command_line

__all__ = ["canned", "quick"]  # fixtures

privsyn = partial(command_line.privsyn, "public")
RULES = [
    ["Black Hat SEO", "0"],
    ["Would people bring up", "1"],
    ["Who might that be", "1. Mom\n2. Dad"],
    ["What might it be about", "- dinner"],
    ["It is about this", "**Me:** hi mom {digest}\n**Mom:** Sure, see you!"],
    ["Turn the text below", "Anna: did you read of dogs?\nBo: yes. {digest}"],
]
FAULTS = [
    {"kind": "status", "status": 429, "retry_after": 0, "part": "dogs 3"},
    {"kind": "half", "part": "dogs 4"},
    {"kind": "cut", "part": "dogs 6"},
]


@pytest.fixture
def file(canned: Callable[..., Canned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in an empty working directory, and its server."""
    monkeypatch.chdir(tmp_path)
    server = canned(rules=RULES, faults=FAULTS)
    texts = [f"{'Dogs love it' if i % 3 else 'Black Hat SEO'}. See dogs {i}." for i in range(12)]
    Path("web.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    Path("words.txt").write_text("dogs\nmom\nhi\nzebra\n")
    path = tmp_path / "public.toml"
    path.write_text(
        f'folder = "corpus"\nvocabulary = "words.txt"\n[models]\ngenerator = "canned"\n'
        f'[generation]\nbackend = "openai"\nbase-url = "{server.url}"\napi-key-env = ""\n'
        '[filter]\nsource = "web.jsonl"\ntext-column = "body"\n[chat]\npersonas = 2\n'
        "[convert]\nshare = 1.0\n"
    )
    return path


def test_all_commands_make_one_corpus(file: Path) -> None:
    for stage, last in (
        ("filter", "corpus/filter.jsonl"),
        ("chat", "corpus/chat.jsonl"),
        ("convert", "corpus/convert.jsonl"),
        ("mix", "corpus/mix.jsonl"),
    ):
        result = privsyn(stage, file)
        assert result.exit_code == 0, result.stderr
        assert result.stdout == f"{last}\n"
    assert "convert: 8 texts" in result.stderr and "mix: 40 texts" in result.stderr
    assert text_file(Path("corpus")) == Path("corpus/mix.jsonl")
    result = privsyn("coverage", file, "--source")
    assert result.exit_code == 0, result.stderr
    shares = "filter 25.0%, chat 50.0%, convert 25.0%, mix 75.0%, source 25.0%"
    assert f"coverage of 4 words: {shares}, chat and convert 75.0%" in result.stderr
    report: dict[str, Any] = json.loads(Path(result.stdout.strip()).read_text())
    assert {name: stage["texts"] for name, stage in report["stages"].items()} == {
        "filter": 8, "chat": 4, "convert": 8, "mix": 8 * 2 + 4 * 2 + 8 * 2
    }  # fmt: skip
    assert all(stage["complete"] for stage in report["stages"].values())
    assert report["coverage"]["shares"]["mix"] == 0.75
    again = privsyn("filter", file)
    assert again.exit_code == 0 and "filter: 8 texts" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("filter", "--set", "models.generator="), "models.generator is empty"),
        (("filter", "--set", "filter.source=none.jsonl"), "none.jsonl: No such file"),
        (("filter", "--set", "filter.source="), "filter.source is empty"),
        (("chat", "--set", "generation.base-url="), "needs the server: set base-url"),
        (("convert",), "no filtered text to convert"),
        (("mix",), "names 'filter', and corpus has no text of it"),
        (("coverage",), "corpus holds no text"),
        (("coverage", "--set", "vocabulary="), "vocabulary is empty"),
        (("coverage", "--set", "vocabulary=none.txt", "--source"), "none.txt: No such file"),
        (("filter", "--set", "chat.persona=1"), "did you mean 'chat.personas'"),
    ],
)
def test_what_cannot_be_done_is_said_on_one_line(
    file: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = privsyn(arguments[0], file, *arguments[1:])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert result.stdout == "" and words in result.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["filter.state.json", "coverage.json"])
@pytest.mark.parametrize("damage", ["{", "[]", '{"bytes": 0}'])
def test_a_damaged_file_of_the_folder_is_named(file: Path, name: str, damage: str) -> None:
    assert privsyn("filter", file).exit_code == 0
    Path("corpus", name).write_text(damage)
    for command, words in (("filter", f"corpus/{name} is damaged"), ("convert", "is damaged")):
        result = privsyn(command, file)
        assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception
        assert words in result.stderr.splitlines()[-1]
    # What ended the work is said, not what hinders its report.
    result = privsyn("filter", file, "--set", "filter.source=none.jsonl")
    assert "none.jsonl: No such file" in result.stderr.splitlines()[-1]


def test_a_server_that_is_not_there_ends_the_command_and_keeps_the_folder(file: Path) -> None:
    result = privsyn(
        "filter", file, "--set", "generation.base-url=http://127.0.0.1:9", "--set",
        "generation.retries=0",
    )  # fmt: skip
    assert result.exit_code == 2 and "Is the server running" in result.stderr.splitlines()[-1]
    report = json.loads(Path("corpus/report.json").read_text())
    assert report["stages"]["filter"]["complete"] is False
    assert privsyn("filter", file).exit_code == 0
