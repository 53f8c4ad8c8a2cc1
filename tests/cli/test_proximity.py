"""`privsyn public proximity`: a finished run's model chooses, and its statement goes along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from privsyn_flower.cli.main import app
from privsyn_flower.privacy.wording import CHOSEN_TEXT
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.server_apps.methods.proximity import remember_start
from tests.text.conftest import SENTENCES

torch = pytest.importorskip("torch")
from privsyn_flower.text.models import lstm  # noqa: E402 - it imports torch

SUMMARY: dict[str, Any] = {
    "method": "dp-ftrl",
    "epsilon": 6.55,
    "delta": 1e-10,
    "rho_zcdp": 0.5,
    "threat_model": "trusted aggregator: and so on",
    "privacy": "Epsilon = 6.55 of that training.",
}
TINY: dict[str, Any] = {"words": 60, "hidden": 12, "embedding": 6}
ROWS = [
    {"text": text, "stage": "chat" if i % 2 else "filter"}
    for i, text in enumerate([*SENTENCES, "zebra zebra zebra zebra"])
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with what the command reads of it."""
    folder = tmp_path_factory.mktemp("finished")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    lstm.make_lstm(folder / "start", SENTENCES, steps=3, **TINY)
    lstm.make_lstm(folder / "run" / "model", SENTENCES, steps=60, **TINY)
    torch.set_num_threads(before)
    run = folder / "run"
    (run / "config.toml").write_text(
        'method = "dp-ftrl"\n[training]\nnoise = "aggregator"\n[models]\ndevice = "cpu"\n'
        "[proximity]\nleast-score = -9.0\n"
    )
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    remember_start(RunFolder(run), folder / "start")
    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "mix.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def privsyn(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["public", "proximity", *map(str, arguments)])


def test_the_text_its_report_and_what_it_carries(
    finished: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = privsyn(finished, "--texts", corpus, "--out", out)
    assert found.exit_code == 0, found.stderr
    assert found.stdout == f"{out / 'proximity.jsonl'}\n"
    assert "carries the training's epsilon = 6.55 at delta = 1e-10" in found.stderr
    rows, report = (
        read_jsonl(out / "proximity.jsonl"),
        json.loads((out / "report.json").read_text()),
    )
    assert len(rows) == report["kept"] == 6 and report["of"] == 7  # all but the unknown words
    assert report["by"]["chat"]["kept"] == 3 and report["by"]["filter"]["of"] == 4
    assert report["run"]["rho_zcdp"] == 0.5 and report["run"]["epsilon"] == 6.55
    said = (out / "privacy.md").read_text()
    assert CHOSEN_TEXT in said and SUMMARY["privacy"] in said

    # Other thresholds: the scores stay. Other text: another folder.
    stored = (out / "scores" / "000000.npy").stat().st_mtime_ns
    least = sorted(row["after"] for row in rows)[3]
    again = privsyn(finished, "--texts", corpus, "--out", out, "--least-score", least - 1e-6)
    assert again.exit_code == 0 and len(read_jsonl(out / "proximity.jsonl")) == 3
    assert (out / "scores" / "000000.npy").stat().st_mtime_ns == stored
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(SENTENCES[:2]))
    other = privsyn(finished, "--texts", plain, "--out", out)
    assert other.exit_code == 2 and "scores that differ in: texts" in other.stderr
    fine = privsyn(finished, "--texts", plain, "--out", tmp_path / "other", "--most-unknown", "1")
    assert fine.exit_code == 0 and read_jsonl(tmp_path / "other" / "proximity.jsonl")


def test_the_start_is_named_where_it_has_gone(finished: Path, corpus: Path, tmp_path: Path) -> None:
    value = finished / "checkpoints" / "start.json"
    kept = value.read_text()
    try:
        value.unlink()
        found = privsyn(finished, "--texts", corpus, "--out", tmp_path / "out")
        assert found.exit_code == 2 and "name it with --start" in found.stderr
        start = finished.parent / "start"
        found = privsyn(finished, "--texts", corpus, "--out", tmp_path / "out", "--start", start)
        assert found.exit_code == 0, found.stderr
    finally:
        value.write_text(kept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text-column", "body"], "has no column 'body' but text, stage"),
        (["--least-score", "5"], "the paper's 5 is -5"),
        (["--start", "/nowhere"], "no model folder"),
    ],
)
def test_what_cannot_be(
    finished: Path, corpus: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    found = privsyn(finished, "--texts", corpus, "--out", tmp_path / "out", *arguments)
    assert found.exit_code == 2 and message in found.stderr
    assert not (tmp_path / "out" / "proximity.jsonl").exists()


def test_only_a_finished_training_has_a_model(finished: Path, corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = ("--texts", corpus, "--out", tmp_path / "out")
    assert "has no config.toml" in privsyn(run, *given).stderr
    run.mkdir()
    (run / "config.toml").write_text('method = "pretext"\n')
    assert "trains no model on the nodes" in privsyn(run, *given).stderr
    (run / "config.toml").write_text((finished / "config.toml").read_text())
    found = privsyn(run, *given)
    assert found.exit_code == 2 and "not the summary of a finished run" in found.stderr
