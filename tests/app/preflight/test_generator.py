"""On own English text a generator that can write is the default where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.preflight import data
from privsyn_flower.app.preflight.data import default_generator
from tests.rigs.languages import ENGLISH, FOREIGN
from tests.rigs.preflight_preflight import place, write  # noqa: F401

CHOSEN = {"models.generator": "smollm2"}


@pytest.fixture
def own(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file that names no generator, English public text, and the extra installed."""
    path = place / "run.toml"
    path.write_text(path.read_text().replace("generator =", "# ").replace("samples = 0", ""))
    public(ENGLISH)
    monkeypatch.setattr(data, "missing", lambda *_: [])
    return path


def public(lines: list[str]) -> None:
    write(Path("public.jsonl"), [{"text": f"{line} {n}"} for n in range(60) for line in lines])


def test_english_text_has_it_by_default(own: Path) -> None:
    found, why = default_generator(own, {})
    assert found == CHOSEN and why.startswith("models.generator = 'smollm2': it is here, and")
    assert default_generator(own, {"method": "popri", "pretext.population": 64})[0] == CHOSEN


@pytest.mark.parametrize("language", ["German", "Russian", "Chinese"])
def test_other_languages_keep_the_seeds_and_are_told(own: Path, language: str) -> None:
    public(FOREIGN[language] * 3)
    found, why = default_generator(own, {})
    assert not found and why.startswith("models.generator stays 'tiny': 'smollm2' writes English")
    assert "data.public-path is not (" in why and "at most 2)" in why


def test_private_text_decides_nothing(own: Path) -> None:
    rows = [{"user_id": n % 60, "text": FOREIGN["Russian"][n % 2]} for n in range(240)]
    write(Path("users.jsonl"), rows)
    assert default_generator(own, {})[0] == CHOSEN


@pytest.mark.parametrize(
    "overrides",
    [
        {"models.generator": "tiny"},
        {"data.source": "docstrings"},
        {"method": "dp-fedavg", "pretext.population": 64, "pretext.variation": "mixed"},
        {"generation.backend": "openai", "generation.base-url": "http://127.0.0.1:1/v1"},
    ],
)
def test_what_is_named_or_writes_nothing_here_stays(own: Path, overrides: dict[str, Any]) -> None:
    text = own.read_text()
    if overrides.get("method") == "dp-fedavg":
        own.write_text(text.partition("[pretext]")[0])
        overrides = {"method": "dp-fedavg"}
    assert default_generator(own, overrides) == ({}, "")


def test_without_the_extra_there_is_no_choice(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "missing", lambda *names: list(names))
    assert default_generator(own, {}) == ({}, "")


def test_a_language_that_cannot_be_told_is_said(own: Path) -> None:
    write(Path("public.jsonl"), [{"text": "two words"}])
    found, why = default_generator(own, {})
    assert not found and why.endswith("the language of data.public-path cannot be told here")
    Path("public.jsonl").unlink()
    assert default_generator(own, {}) == ({}, "")  # the checks of the run name the file


def test_plan_goes_by_it(own: Path) -> None:
    found = CliRunner().invoke(app, ["plan", str(own)])
    assert found.exit_code == 0, found.output
    assert "models.generator = 'smollm2': it is here" in found.stderr
    assert "models.generator = 'smollm2'" in found.stdout and "fragments" not in found.stdout
