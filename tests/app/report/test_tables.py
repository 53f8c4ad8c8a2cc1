"""Runs side by side, and never one kind of trust beside the other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app
from privsyn_flower.app.report.summaries import (
    DISTRIBUTED,
    NONE,
    TRUSTED,
    ReportError,
    epsilon_of,
    read_named,
    read_summary,
)
from privsyn_flower.app.report.tables import report
from tests.rigs.tables import CENTRAL, SECURE, summary


def test_each_kind_of_trust_has_a_table_of_its_own() -> None:
    text = report(
        [
            summary("dp-ftrl", CENTRAL, participations_per_user=2),
            summary("pretext", SECURE),
            summary("dp-fedavg", SECURE),
            summary("popri", "none: the noise came from the run's seed"),
        ]
    )
    tables = text.split("\n\n**")
    assert [table.lstrip("*").partition("**")[0] for table in tables] == [
        DISTRIBUTED, TRUSTED, NONE,
    ]  # fmt: skip
    assert "| pretext |" in tables[0] and "| dp-fedavg |" in tables[0]
    assert "dp-ftrl" not in tables[0]
    (row,) = [line for line in tables[1].splitlines() if line.startswith("| dp-ftrl")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "dp-ftrl", "0.2500", "+0.0500 [+0.0400, +0.0600]", "4.250", "70.1", "-", "7.5799",
        "3e-06", "exact", "user, zero-out", "trusted aggregator", "8 / 2", "0.299 MB", "0.012 MB",
        "0.042 s", "0.337 s", "81 s",
    ]  # fmt: skip


def test_runs_of_folders_are_named_with_their_seeds(tmp_path: Path) -> None:
    places = [tmp_path / "a|b", tmp_path / "plain", tmp_path / "kept.json"]
    for place in places[:2]:
        place.mkdir()
        (place / "summary.json").write_text(json.dumps(summary("pretext", SECURE)))
    (places[0] / "config.toml").write_text("seed = 7\n")
    places[2].write_text(json.dumps(summary("pretext", SECURE)))
    (tmp_path / "config.toml").write_text("seed = 9\n")  # of no run
    found = [read_named(place) for place in [*places, places[0] / "summary.json"]]
    assert [(one["run"], one["seed"]) for one in found] == [
        ("a|b", 7), ("plain", None), ("kept", None), ("a|b", 7),
    ]  # fmt: skip
    out = CliRunner().invoke(app, ["report", "--markdown", *map(str, places)]).stdout
    assert "| run | seed | method |" in out
    assert "| a\\|b | 7 | pretext |" in out and "| plain | - | pretext |" in out
    told = summary("pretext", SECURE, run="plain", verdict={"sentences": ["heard"]})
    assert "- plain, pretext, epsilon 7.5799: verdict: heard" in report([told])
    useless = summary("pretext", SECURE, run="plain", unusable=["no words"])
    assert "- plain, pretext, epsilon 7.5799: NOT USABLE: no words" in report([useless])


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_command_fits_the_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    names = [f"pretext-of-the-clinics-with-a-long-name-epsilon-7.58-seed-{n}" for n in range(5)]
    for name in names:
        (tmp_path / name).mkdir()
        found = summary("pretext", SECURE, verdict={"sentences": ["the votes " * 20]})
        (tmp_path / name / "summary.json").write_text(json.dumps(found))
    out = CliRunner().invoke(app, ["report", *(str(tmp_path / name) for name in names)]).stdout
    assert max(map(len, out.splitlines())) <= columns
    assert "\u2026" not in out, "nothing is cut"
    words = " ".join(re.sub("[\u2500-\u257f]", " ", out).split())
    assert "gained over" in words and words.count("+0.0500") == 5 and "server, run" in words
    assert "signal / noise" not in out, "no run has one"


def test_a_verdict_without_privacy_is_at_infinite_epsilon() -> None:
    none = summary("expand-private", "none: epsilon is infinite", epsilon=None)
    none["verdict"] = {"sentences": ["something was heard"]}
    assert "- expand-private, epsilon infinity: verdict: something was heard" in report([none])


def test_no_epsilon_is_shown_smaller_than_it_is() -> None:
    told = report([summary("pretext", SECURE, epsilon=12.34001)])
    assert " 12.3401 " in told and " 12.34 " not in told
    assert [epsilon_of({"epsilon": value}) for value in (None, 4.0, 7.5799999)] == [
        "infinity", "4", "7.58",
    ]  # fmt: skip


def test_runs_on_other_users_are_said_not_to_be_comparable() -> None:
    other = summary("dp-fedavg", SECURE, users=900)
    other["benchmark"]["held_out_tokens"] = 8999
    text = report([summary("pretext", SECURE), other])
    assert text.startswith("These runs are not comparable: users differs: 1000, 900; held_out_tok")
    assert not report([summary("pretext", SECURE)]).startswith("These")
    places = [f"files:/home/ada b/{one}/users.jsonl" for one in ("x", "y")]
    text = report([summary("pretext", SECURE, dataset=dataset) for dataset in places])
    assert 'dataset differs: "files:\u2026/users.jsonl" in 2 places.' in text and "ada" not in text


def test_a_run_without_a_benchmark_has_no_figures_made_up() -> None:
    bare = summary("pretext", SECURE)
    del bare["benchmark"]
    (row,) = [line for line in report([bare]).splitlines() if line.startswith("| pretext")]
    assert row.count("| - ") == 8


def test_a_summary_that_lacks_a_figure_has_a_dash() -> None:
    whole = summary("pretext", SECURE)
    text = report([{key: whole[key] for key in ("method", "epsilon", "threat_model")}])
    assert "| pretext | - |" in text and "7.5799" in text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for name, trust in (("one", SECURE), ("two", CENTRAL)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(summary("pretext", trust)))
    paths = [str(tmp_path / "one"), str(tmp_path / "two" / "summary.json")]
    found = CliRunner().invoke(app, ["report", *paths])
    assert found.exit_code == 0 and DISTRIBUTED in found.stdout and TRUSTED in found.stdout
    missing = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert missing.exit_code == 2 and "summary.json" in missing.stderr


@pytest.mark.parametrize("text", ["", "[]", '{"method": "pretext"}'])
def test_what_is_no_summary_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ReportError, match=r"summary\.json"):
        read_summary(tmp_path)


def test_text_by_topic_is_shown() -> None:
    topics = {
        "count": 64, "used": 40,
        "largest": [{"keywords": ["graph", "edge"], "share": 0.25, "texts": ["A graph.\nIt has"]}],
    }  # fmt: skip
    text = report([summary("ctcl", SECURE, topics=topics), summary("pretext", SECURE)])
    assert "The largest of 40 topics with a noisy share, of 64:" in text
    assert "- 25.0%: graph, edge\n  - A graph. It has" in text
    assert text.count("Text by topic") == 1


def test_what_the_trained_model_keeps() -> None:
    """Without a benchmark how much is left; with one, the new LSTMs beside each other."""
    share = {"before": 0.05, "after": 0.124107}
    kept = {"kept": 6438, "of": 24000, "minority_share": share}
    alone = report([summary("dp-ftrl", CENTRAL, proximity=kept)])
    assert "6,438 of 24,000 texts are kept; the minority's share was 5.0% and is 12.4%" in alone
    assert "(s) minus" not in alone
    run = summary("dp-ftrl", CENTRAL, proximity=kept)
    found = run["benchmark"]
    found["methods"] = {"scratch_random": "(s1) random", "scratch_filtered": "(s) kept"}
    found["accuracy"] = {"pretrained": 0.1, "scratch_random": 0.11, "scratch_filtered": 0.125}
    found["loss"] = {"pretrained": 5.0, "scratch_random": 5.1, "scratch_filtered": 4.75}
    found["proximity"] = {
        "texts": {"pretrained": 24000, "scratch_random": 6438, "scratch_filtered": 6438},
        "minority_share": {"pretrained": 0.05, "scratch_random": 0.06, "scratch_filtered": 0.124},
    }
    for measure, value in (("accuracy", 0.015), ("loss", -0.25)):
        found[f"{measure}_difference"] = {
            "scratch_filtered-scratch_random": [value, value - 0.001, value + 0.001],
            "trained-pretrained": [0.5, 0.4, 0.6],
        }
    lines = report([run]).splitlines()
    assert "| (s) kept | 6,438 | 12.4% | 0.1250 | 4.750 |" in lines
    assert "| of all public text | 24,000 | 5.0% | 0.1000 | 5.000 |" in lines
    assert "| (s1) random | +0.0150 [+0.0140, +0.0160] | -0.2500 [-0.2510, -0.2490] |" in lines
    assert not any("+0.5000" in line for line in lines)
