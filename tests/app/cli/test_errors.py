"""Every command ends with "error: ..." and a status, never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli import generate as cli_generate
from privsyn_flower.app.cli import run as cli_run
from privsyn_flower.app.cli.ending import ending
from privsyn_flower.app.cli.errors import fail
from privsyn_flower.app.cli.main import app
from privsyn_flower.app.local import layout as federation_layout
from privsyn_flower.app.local.layout import FACTS
from privsyn_flower.app.report import summaries

SUMMARY = {
    "method": "pretext", "dataset": "files:Größe.jsonl", "users": 3, "rounds": 1, "epsilon": 1.0,
    "delta": 1e-6, "noise_multiplier": 2.0, "synthetic_samples": 1, "wall_seconds": 1,
    "bytes_down_per_user_round": 1, "bytes_up_per_user_round": 1, "privacy": "Größe",
    "threat_model": "none",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """folder/, latin.toml (not UTF-8), run/ (a begun run whose config.toml is not UTF-8)."""
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "run", "done", "broken", "damaged"):
        Path(name).mkdir()
    Path("latin.toml").write_bytes('run-folder = "Größe"\n'.encode("latin-1"))
    Path("run/config.toml").write_bytes(b"\xff")
    Path("real.toml").write_text('nodes = 3\n[data]\nsource = "files"\nusers = 3\n')
    Path("damaged", FACTS).write_bytes(b"\xff{")
    for name, text in (("done", json.dumps(SUMMARY)), ("broken", "{")):
        Path(name, "config.toml").write_text('nodes = 3\n[data]\nsource = "docstrings"\n')
        Path(name, "summary.json").write_text(text, "utf-8")
    Path("done", "synthetic.jsonl").write_text('{"text": "Größe \U0001f600"}\n', "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "folder"], 1, "folder cannot be read: Is a directory"),
        (["run", "latin.toml"], 1, "latin.toml is not UTF-8 (byte 17)"),
        (["run", "none.toml"], 1, "no configuration file at none.toml"),
        (["run", "--resume", "run"], 1, "run/config.toml is not UTF-8"),
        (["run", "--resume", "latin.toml"], 1, "holds no run"),
        (["run", "--resume", "broken"], 1, "broken/summary.json is damaged"),
        (["run", "real.toml", "--federation", "damaged"], 1, "damaged/federation.json is damaged"),
        (["audit", "folder"], 2, "folder cannot be read"),
        (["audit", "latin.toml"], 2, "latin.toml is not UTF-8"),
        (["report", "folder"], 2, "folder/summary.json"),
        (["report", "latin.toml"], 2, "latin.toml is damaged"),
        (["data", "check", "none.jsonl"], 2, "none.jsonl: No such file or directory"),
        (["node", "status", "--policy", "folder"], 2, "folder cannot be read"),
        (["node", "status", "--policy", "latin.toml"], 2, "latin.toml cannot be read"),
        (["node", "key", "--folder", "latin.toml"], 2, "latin.toml: File exists"),
        (["node", "forget", "u", "--folder", "latin.toml/x"], 2, "latin.toml/x"),
        (["node", "roster", "check", "folder"], 2, "folder cannot be read"),
        (["federation", "start", "latin.toml/x"], 2, "latin.toml/x"),
        (["federation", "start", "new", "--data", "none.jsonl"], 2, "none.jsonl: No such file"),
        (["federation", "status", "damaged"], 2, "damaged/federation.json is damaged"),
        (["federation", "stop", "damaged"], 2, "damaged/federation.json is damaged"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_name(
    place: Path, arguments: list[str], code: int, words: str
) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1].startswith("error: ") and words in result.stderr


@pytest.mark.parametrize(
    ("arguments", "module", "name", "code"),
    [
        (["run"], cli_run, "load_config", 1),
        (["run", "--resume", "done"], cli_run, "lock_holder", 1),
        (["report", "done"], summaries, "read_summary", 2),
        (["federation", "start", "new", "--data", "x"], federation_layout, "create", 2),
    ],
)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/srv/p"), "error: /srv/p: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (
            UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"),
            "surrogates not allowed",
        ),
    ],
)
def test_what_the_system_refuses_is_no_traceback(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    module: Any,
    name: str,
    code: int,
    error: Exception,
    words: str,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, name, refuse)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code and words in result.stderr.splitlines()[-1]


def test_an_error_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("two\nlines of Gr\xf6\xdfe\x1b[2J\u202e\x9b\r", 7).exit_code == 7
    assert capsys.readouterr().err == ("error: two\nlines of Gr\xf6\xdfe\\x1b[2J\\u202e\\x9b\\r\n")


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    for module in [name for name in sys.modules if name.startswith("privsyn_flower.app.audit")]:
        monkeypatch.delitem(sys.modules, module)
    result = CliRunner().invoke(app, ["audit", "--trials", "200", "--set", "data.users=50"])
    assert result.exit_code == 2
    assert "scipy" in result.stderr and "privsyn-flower[strategies]" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "drawn"),
    [
        ({"LC_ALL": "C"}, "    Größe \U0001f600"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "    Gr"),
        ({"PYTHONIOENCODING": "latin-1"}, "    Größe"),
    ],
)
def test_no_locale_ends_a_resume(place: Path, variables: dict[str, str], drawn: str) -> None:
    folder = place / "Größe"
    (place / "done").rename(folder)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "privsyn_flower.app.cli.main",
            "run",
            "--resume",
            os.fsencode(folder),
        ],
        capture_output=True,
        env={**os.environ, **variables},
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    assert done.stdout.splitlines()[-1].decode(encoding) == str(folder)
    assert drawn in done.stdout.decode(encoding) and b"Traceback" not in done.stderr


def test_the_end_keeps_what_the_terminal_can_show(tmp_path: Path) -> None:
    assert "files:Größe.jsonl" in ending(SUMMARY, tmp_path)


def test_ctrl_c_promises_no_resumed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only generators of CTCL's kind go on where they were; the others write anew."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_generate, "generate_command", stop)
    result = CliRunner().invoke(app, ["generate", "run", "--samples", "3"])
    assert result.exit_code == 130 and "interrupted; call it again" in result.stderr
