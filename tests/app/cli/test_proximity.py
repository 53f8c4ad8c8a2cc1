"""`privsyn public proximity`: a finished run's model chooses, and its statement goes along."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.cli.proximity import described, texts_at
from privsyn_flower.app.public import source
from privsyn_flower.config import RunConfig
from privsyn_flower.privacy.wording import CHOSEN_TEXT
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.server_apps.methods.proximity import remember_start
from tests.rigs import command_line
from tests.text.conftest import SENTENCES

torch = pytest.importorskip("torch")
from privsyn_flower.text.models import lstm  # noqa: E402 - it imports torch

privsyn = partial(command_line.privsyn, "public", "proximity")
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
    lstm.make_lstm(folder / "start", SENTENCES, lstm.WordTraining(3), **TINY)
    lstm.make_lstm(folder / "run" / "model", SENTENCES, lstm.WordTraining(60), **TINY)
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
    # Of another run, whose claim is not made of text that this one chose.
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    lstm.make_lstm(copy / "model", SENTENCES, lstm.WordTraining(5), **TINY)
    (copy / "summary.json").write_text(json.dumps({**SUMMARY, "privacy": "Another."}))
    other = privsyn(copy, "--texts", corpus, "--out", out)
    assert other.exit_code == 2 and "scores that differ in: after" in other.stderr
    assert (out / "privacy.md").read_text() == said
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
        (["--text-column", "body"], "has no column 'body' but 'text', 'stage'"),
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


@pytest.mark.parametrize(
    "name", ["summary.json", "chat.state.json", "report.json", "proximity.jsonl"]
)
def test_a_folder_of_something_else_is_left_alone(
    finished: Path, corpus: Path, tmp_path: Path, name: str
) -> None:
    """Its statement or its report would be this one's."""
    out = tmp_path / "out"
    out.mkdir()
    for own in (name, "privacy.md"):
        (out / own).write_text("its own")
    found = privsyn(finished, "--texts", corpus, "--out", out)
    assert found.exit_code == 2 and "which is of something else" in found.stderr
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        name: "its own", "privacy.md": "its own",
    }  # fmt: skip


def test_users_text_is_not_public_text(finished: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.jsonl", tmp_path / "out"
    texts.write_text("".join(f"{json.dumps({'user_id': 'a', 'text': t})}\n" for t in SENTENCES))
    found = privsyn(finished, "--texts", texts, "--out", out)
    assert (
        found.exit_code == 2 and "column 'user_id'" in found.stderr and "--public" in found.stderr
    )
    assert not out.exists()
    found = privsyn(finished, "--texts", texts, "--out", out, "--public")
    assert found.exit_code == 0, found.stderr

    # The run's own column, and its own file whatever its columns are.
    config = finished / "config.toml"
    kept = config.read_text()
    try:
        config.write_text(f'{kept}[data]\nsource = "files"\nuser-column = "phone"\n')
        texts.write_text('{"phone": "a", "text": "one"}\n')
        assert "column 'phone'" in privsyn(finished, "--texts", texts, "--out", out).stderr
        config.write_text(f'{kept}[data]\nsource = "files"\npath = "{texts}"\n')
        found = privsyn(finished, "--texts", texts, "--out", out, "--public")
        assert found.exit_code == 2 and "its users' own text" in found.stderr
    finally:
        config.write_text(kept)


def test_text_that_was_chosen_before_carries_both(
    finished: Path, corpus: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert privsyn(finished, "--texts", corpus, "--out", first).exit_code == 0
    said = first / "privacy.md"
    earlier = "# Privacy of this text\n\nEpsilon = 3 of an earlier training."
    said.write_text(earlier)
    found = privsyn(finished, "--texts", first / "proximity.jsonl", "--out", second)
    assert found.exit_code == 0 and "its source carried before" in found.stderr
    page = (second / "privacy.md").read_text()
    assert SUMMARY["privacy"] in page and "Epsilon = 3 of an earlier training." in page
    assert "CARRIED AN EPSILON ALREADY" in page
    report = json.loads((second / "report.json").read_text())
    assert report["texts_carry"] == earlier
    said.write_text("# Privacy\n\nWhat this site does with your data.")  # somebody else's page
    found = privsyn(finished, "--texts", first / "proximity.jsonl", "--out", tmp_path / "third")
    assert found.exit_code == 2 and "carry the epsilon of its training" in found.stderr
    assert not (tmp_path / "third").exists()


def test_what_the_training_began_with_is_carried(
    finished: Path, corpus: Path, tmp_path: Path
) -> None:
    summary, start = finished / "summary.json", finished.with_name("start")
    statement = start / "privacy.md"
    statement.write_text("# Privacy of this run\n\nEpsilon = 4 of the start.")
    summary.write_text(json.dumps({**SUMMARY, "carries": "# Privacy of this run\n\nEpsilon = 3"}))
    try:
        found = privsyn(finished, "--texts", corpus, "--out", tmp_path / "out")
    finally:
        statement.unlink()
        summary.write_text(json.dumps(SUMMARY))
    assert found.exit_code == 0, found.stderr
    page = (tmp_path / "out" / "privacy.md").read_text()
    assert "Epsilon = 3" in page and "Epsilon = 4 of the start." in page


def test_every_row_of_a_file_is_looked_at(finished: Path, tmp_path: Path) -> None:
    """The first row says which columns jsonl has, and others may have more."""
    texts, out = tmp_path / "texts.jsonl", tmp_path / "out"
    plain = json.dumps({"text": SENTENCES[0]})
    for more, said in (
        ({"user_id": "u1"}, "column 'user_id' in row 2"),
        ({"unknown": 0.0, "before": -3.0, "after": -2.0}, "carry the epsilon of its training"),
    ):
        texts.write_text(f"{plain}\n{json.dumps({'text': SENTENCES[1], **more})}\n")
        found = privsyn(finished, "--texts", texts, "--out", out)
        assert found.exit_code == 2 and said in found.stderr
        assert not out.exists()


def test_what_a_file_says_of_itself_is_no_terminals(finished: Path, tmp_path: Path) -> None:
    """Column names and stages are somebody else's words."""
    texts, out = tmp_path / "texts.jsonl", tmp_path / "out"
    texts.write_text(json.dumps({"\x1b[31m" + "n" * 5000: 1}) + "\n")
    found = privsyn(finished, "--texts", texts, "--out", out)
    assert found.exit_code == 2 and r"no column 'text' but '\x1b[31mnnn" in found.stderr
    assert "\x1b[31mn" not in found.stderr and len(found.stderr) < 500
    rows = [{"text": t, "stage": f"\x1b[2J{i}"} for i, t in enumerate(SENTENCES)]
    rows += [{"text": "half a pair \ud800", "stage": "chat"}]
    texts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = privsyn(finished, "--texts", texts, "--out", out)
    assert found.exit_code == 0, found.stderr
    assert set(json.loads((out / "report.json").read_text())["by"]) == {"chat", "other"}
    assert "\x1b[2J" not in found.stderr


def test_a_line_without_an_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_LINE", 8)
    path = tmp_path / "plain.txt"
    path.write_text("one\n" + "x" * 100 + "\n12345678\ntwo")
    pool = texts_at(path, "text", RunConfig().data, False)
    assert [row["text"] for row in pool.rows()] == ["one", "x" * 8, "12345678", "two"]


def test_a_printed_epsilon_is_rounded_up() -> None:
    counts = {"kept": 0, "of": 0, "bytes_kept": 0, "bytes_of": 0}
    run = {**SUMMARY, "epsilon": 6.5480814}
    told = described({**counts, "run": run, "texts_carry": None})
    assert "epsilon = 6.5481 at" in told
