"""A run ends with some of its texts, its claim and what they were worth, in about twenty lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from privsyn_flower.app.cli.ending import ending, product_lines, shortened
from privsyn_flower.evaluation.verdict import benchmark_verdict
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.runs import write_jsonl
from tests.rigs.display import BENCHMARK, SUMMARY

STATEMENT = PrivacyStatement(1.29, 3e-6, 9.99, 8, 1, 0.85, aggregation="secure", simulated=True)
BOTH = {**BENCHMARK, "loss_difference": {"synthetic-random_public": [-0.042, -0.061, -0.023]}}
MEASURED = {**BOTH, "verdict": benchmark_verdict(BOTH)}
WHOLE = {**SUMMARY, "privacy_short": STATEMENT.short(), "benchmark": MEASURED}
HEARD = "the votes can be told from noise, with 1.8 times the noise's norm (p = 1e-30)"
WHOLE |= {"verdict": {"signal": "above the noise", "sentences": [HEARD]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that wrote a hundred texts."""
    write_jsonl(tmp_path / "synthetic.jsonl", ({"text": f"text {i} " * 40} for i in range(100)))
    return tmp_path


def test_texts_then_the_claim_then_what_they_were_worth(folder: Path) -> None:
    lines = ending(WHOLE, folder).splitlines()
    assert lines[0].startswith("1,508 synthetic texts in synthetic.jsonl; 5 of them")
    assert [line.split()[1] for line in lines[1:6]] == ["0", "20", "40", "60", "80"]
    told = " ".join(" ".join(lines[6:]).split())
    assert told.startswith("privacy Epsilon = 1.29 at delta = 3e-06 for each user")
    assert "Simulated: one machine saw everything. Not covered: see privacy.md." in told
    assert f"verdict {HEARD} worth accuracy 0.2209 on next tokens of 150 held-out users" in told
    assert "against random public text: accuracy +0.0076 [+0.0045, +0.0107], better" in told
    assert "loss saved +0.0420 [+0.0230, +0.0610], better. Not covered by epsilon" in told
    assert "leave out the draw of the noise" in told
    near = {"accuracy_difference": {"synthetic-minority_public": [0.0, -0.003, 0.003]}}
    told = ending({**WHOLE, "benchmark": {**MEASURED, "verdict": [
        *MEASURED["verdict"], *benchmark_verdict(near),
    ]}}, folder)  # fmt: skip
    assert "like the users': accuracy +0.0000 [-0.0030, +0.0030], unclear." in " ".join(
        told.split()
    )
    assert lines[-1].startswith("more ") and "pretext on docstrings:scipy" in lines[-1]


@pytest.mark.parametrize(("columns", "most"), [(40, 40), (80, 20), (100, 20), (200, 20)])
def test_nothing_is_wider_than_the_terminal_or_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch, columns: int, most: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = ending(WHOLE, folder).splitlines()
    assert max(map(len, lines)) <= columns and len(lines) <= most
    assert "adjacency" in " ".join(lines)


def test_a_text_is_cut_to_columns_and_steers_nothing() -> None:
    assert shortened("Two\n lines \x1b[31m\u202e", 40) == "Two lines \\x1b[31m\\u202e"
    assert shortened("w" * 41, 40) == "w" * 37 + "..."
    wide = shortened("\u6f22" * 40, 41)  # two columns each
    assert wide == "\u6f22" * 19 + "..." and cell_len(wide) == 41


def test_what_was_not_measured_is_said_so(folder: Path) -> None:
    lines = ending(SUMMARY, folder)
    assert "worth    not measured: a simulation measures it with benchmark = true" in lines
    assert "privacy  Epsilon = 7.58 for each user." in lines
    alone = {**BENCHMARK, "accuracy_difference": {}, "verdict": []}
    told = " ".join(ending({**SUMMARY, "benchmark": alone}, folder).split())
    assert "not covered by epsilon; no control on random public text" in told
    classes = {**MEASURED, "task": "classification"}
    assert "on classes of 150" in ending({**SUMMARY, "benchmark": classes}, folder)


def test_a_run_that_ended_early_says_why(folder: Path) -> None:
    early = {"rounds": 1, "rounds_planned": 2, "ended_early": "the ledger of X is used up"}
    told = ending({**SUMMARY, **early}, folder)
    assert "ended early after 1 of 2 rounds: the ledger of X is used up" in told


def test_seeds_that_are_the_result_are_told_as_such(tmp_path: Path) -> None:
    for name in ("synthetic", "seeds"):
        write_jsonl(tmp_path / f"{name}.jsonl", ({"text": f"seed {i}"} for i in range(9)))
    lines = ending({**SUMMARY, "synthetic_samples": 9, "seeds": 9}, tmp_path).splitlines()
    assert lines[0] == "9 texts that the users' votes picked, seeds.jsonl; of most votes:"
    assert lines[1:6] == [f"    seed {i}" for i in range(5)]


def test_what_was_written_is_told_and_not_the_seeds_in_front(folder: Path) -> None:
    facts = {**SUMMARY, "synthetic_samples": 100, "seeds": 60, "seeds_in_front": 60}
    lines = ending(facts, folder).splitlines()
    head = "40 synthetic texts, after 60 seeds in synthetic.jsonl; 5 of them, evenly spaced:"
    assert " ".join(lines[:2]).startswith(head) or lines[0] == head
    assert [line.split()[1] for line in lines[1:6]] == ["60", "68", "76", "84", "92"]
    write_jsonl(folder / "seeds.jsonl", [{"text": "a seed"}])
    lines = ending({**facts, "seeds_in_front": 100, "seeds": 100}, folder).splitlines()
    assert lines[1] == "    a seed"  # nothing was written


def test_notes_stand_before_the_last_line(folder: Path) -> None:
    lines = ending({**SUMMARY, "notes": ["it writes fragments"]}, folder).splitlines()
    assert lines[-2:-1] == ["note     it writes fragments"]


def test_what_the_text_is_like_stands_there_and_what_is_wrong_with_it_once(folder: Path) -> None:
    own = {"sentences": ["most texts are copies", "no words"], "copies": 0.6, "public": {"x": 1},
           "synthetic": {"unknown_words": 0.02, "repetitive": 0.01}}  # fmt: skip
    lines = ending({**SUMMARY, "quality": own, "unusable": ["no words"]}, folder).splitlines()
    assert lines[0] == "NOT USABLE: no words" and "no words" not in "".join(lines[1:])
    assert "text     most texts are copies" in lines
    line = "2.0% of the words unknown, 1.0% repetitive, 60.0% copies of public text"
    assert f"         {line}" in lines
    assert product_lines({**SUMMARY, "quality": own}, folder)[-1] == f"text: {line}"


def test_models_that_were_measured_stand_in_the_place_of_texts(tmp_path: Path) -> None:
    figures = {"accuracy": 0.2, "accuracy_low": 0.1, "accuracy_high": 0.3}
    figures |= {"loss": 4.0, "loss_low": 3.0, "loss_high": 5.0}
    measured: dict[str, Any] = {"against": "own", "models": {"own": figures}, "gained": {}}
    trained = {**SUMMARY, "synthetic_samples": 0, "measured": measured}
    lines = ending(trained, tmp_path).splitlines()
    assert lines[0].startswith("privacy") and "worth" not in "\n".join(lines)
    assert "own: accuracy 0.2000 [0.1000, 0.3000]" in lines[1]


def test_the_product_is_told_before_its_benchmark(folder: Path) -> None:
    lines = product_lines({**SUMMARY, "privacy_short": "Epsilon = 7.58."}, folder)
    assert lines[0].startswith(f"the result is ready in {folder}: its benchmark follows")
    assert "Ctrl-C" in lines[0] and len(lines) == 8
    assert lines[-1] == "privacy: Epsilon = 7.58."
    unusable = product_lines({**SUMMARY, "unusable": ["no words"]}, folder)
    assert unusable[0] == "NOT USABLE: no words"
