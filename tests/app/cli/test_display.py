"""The result table shows the figures of summary.json, whole and rounded."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from privsyn_flower.app.cli.display import Display, Pace, product_lines, result_table, spoken, width
from privsyn_flower.common.progress import stop
from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.runs import write_jsonl
from tests.rigs.display import BENCHMARK, SUMMARY

STATEMENT = PrivacyStatement(1.29, 3e-6, 9.99, 8, 1, 0.85, aggregation="secure", simulated=True)
CLAIMED = {
    **SUMMARY,
    "claim": asdict(STATEMENT),
    "privacy_short": STATEMENT.short(),
    "epsilon_ledger": 1.18061,
    "epsilon_ledger_total": 1.29,
}


def test_table_without_benchmark() -> None:
    text = result_table(SUMMARY)
    assert "149,570" in text
    assert "7.58" in text
    assert text.startswith("privacy  Epsilon = 7.58 for each user.\n")
    short = result_table({**SUMMARY, "privacy_short": "Epsilon = 7.58; see privacy.md."})
    assert short.startswith("privacy  Epsilon = 7.58; see privacy.md.\n")
    assert "for each user" not in short


def test_the_claim_is_four_lines_and_the_table_is_last(monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = result_table({**CLAIMED, "benchmark": BENCHMARK}).splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines[:4]] == [
        "what", "against", "assuming", "ledger",
    ]  # fmt: skip
    assert lines[0].endswith("for each user with all its texts on one node, zero-out adjacency.")
    assert "honest-but-curious server" in lines[1]
    assert lines[2].endswith("Simulated: one machine saw everything.")
    assert "1.1807 of 1.29 charged" in lines[3]
    last = "\n".join(lines).rpartition("\n\n")[2].splitlines()
    assert last[0] == "pretext on docstrings:scipy" and "wall_seconds" in last[-2]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_is_wider_than_the_terminal_or_cut_off(columns: int, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = result_table({**CLAIMED, "benchmark": BENCHMARK})
    assert max(map(len, text.splitlines())) <= columns
    words = " ".join(text.split())
    assert "adjacency" in words and "\u2026" not in words
    assert (max(map(len, text.splitlines())) > 100) == (columns == 200)


def test_width_where_there_is_no_terminal(monkeypatch: Any) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width() == 100  # pytest's stdout is a file
    monkeypatch.setenv("COLUMNS", "10")
    assert width() == 40


def test_bars_on_a_terminal_say_what_is_done() -> None:
    with Display() as display:
        display.live = True
        event = {"t": 0.0, "stage": "round 2: nodes", "done": 3, "total": 8, "note": "[red]"}
        display.show(event)
        display.show({"t": 0.0, "stage": "data", "done": 0, "total": 1, "note": ""})
        shown = []
        for columns in (60, 110):
            sheet = io.StringIO()
            Console(file=sheet, width=columns).print(display.progress.get_renderable())
            shown.append(sheet.getvalue().splitlines())
        display.live = False
    for first, second in shown:
        assert first.startswith("round 2: answers ") and "3 of 8 nodes, [red]" in first
        assert second.startswith("preparing the data ") and "0 of 1" not in second
    assert max(len(line) for line in shown[0]) <= 60


def test_table_of_a_run_that_ended_early() -> None:
    early = {"rounds": 1, "rounds_planned": 2, "ended_early": "the ledger of X is used up"}
    text = result_table({**SUMMARY, **early})
    assert "ended early after 1 of 2 rounds: the ledger of X is used up" in text
    assert "rounds planned" in text and "rounds planned" not in result_table(SUMMARY)


def test_table_with_benchmark() -> None:
    text = result_table({**SUMMARY, "benchmark": BENCHMARK})
    for part in ("(b) synthetic text", "0.2209", "4.4899", "+0.0076 [+0.0045, +0.0107]", "0.1948"):
        assert part in text
    assert "150 held-out users" in text
    assert "random public text" in text.partition("small model")[0]


def test_table_of_votes_within_classes() -> None:
    """Seeds are compared with public text by votes across classes, or not at all."""
    text = result_table({**SUMMARY, "benchmark": {**BENCHMARK, "true_votes": {"mean_ratio": 1.25}}})
    assert "1.25" in text and "seeds' share against" not in text


def test_table_of_classes() -> None:
    found = {key: value for key, value in BENCHMARK.items() if key != "loss"}
    found |= {"task": "classification", "macro_f1": {"random_public": 0.1, "synthetic": 0.31239}}
    text = result_table({**SUMMARY, "benchmark": found})
    assert "classes of 150 held-out users" in text and "macro-f1" in text and "0.3124" in text


def test_a_round_says_how_many_pairs_it_has(capsys: Any) -> None:
    with Display() as display:
        event = {
            "t": 0.0,
            "stage": "round 2: pairs",
            "done": 90,
            "total": 96,
            "note": "their margin 1.31",
        }
        display.show(event)
    assert capsys.readouterr().err.splitlines() == [
        "round 2: preference pairs: 90 of 96 pairs, their margin 1.31"
    ]


def test_a_file_has_a_line_of_a_stage_in_ten_seconds_and_its_last(capsys: Any) -> None:
    with Display() as display:
        for done in range(101):
            note = f"loss {done}"
            display.show(
                {"t": done / 4, "stage": "generating", "done": done, "total": 100, "note": note}
            )
        event = {"stage": "rounds", "done": 1, "total": 8, "note": "epsilon so far 2.1"}
        display.show({"t": 25.0, **event})
    assert capsys.readouterr().err.splitlines() == [
        "generating text: 0 of 100 texts, loss 0",
        "generating text: 40 of 100 texts, loss 40, about 20 s left",
        "generating text: 80 of 100 texts, loss 80, about 10 s left",
        "generating text: 100 of 100 texts, loss 100",
        "asking the users: 1 of 8 rounds, epsilon so far 2.1",
    ]


def test_a_stage_of_each_user_or_round_does_not_flood_a_file(capsys: Any) -> None:
    with Display() as display:
        for user in range(500):
            for done in (1, 8):
                event = {"t": user / 20, "stage": "embedding", "done": done, "total": 8, "note": ""}
                display.show(event)
                display.show({**event, "stage": f"round {user + 1}: nodes"})
        display.show({**event, "total": 6144, "done": 6144})
    lines = capsys.readouterr().err.splitlines()
    embedding = [line for line in lines if line.startswith("embedding texts: ")]
    assert embedding[:2] == ["embedding texts: 1 of 8 texts", "embedding texts: 8 of 8 texts"]
    assert embedding[-1] == "embedding texts: 6,144 of 6,144 texts" and len(embedding) <= 5
    assert "round 500: answers: 8 of 8 nodes" in lines and len(lines) <= 10


def test_a_stage_that_may_stop_early_foretells_no_end(capsys: Any) -> None:
    stage = "tuning the shipped infiller on public text"

    def show(stage: str, done: float, total: float, note: str = "") -> None:
        display.show({"t": 9.0 * done, "stage": stage, "done": done, "total": total, "note": note})

    with Display() as display:
        show(stage, 0, 240, "until its held-out loss stops falling")
        show(stage, 2, 240)
        stop(show, stage, 78, 240, "held-out loss 4.1 -> 3.9")
    assert capsys.readouterr().err.splitlines() == [
        f"{stage}: 0 of at most 240 steps, until its held-out loss stops falling",
        f"{stage}: 2 of at most 240 steps",
        f"{stage}: stopped after 78 of at most 240 steps, held-out loss 4.1 -> 3.9",
    ]


def at(t: float, done: float, stage: str = "embedding", note: str = "") -> dict[str, Any]:
    return {"t": t, "stage": stage, "done": done, "total": 1000, "note": note}


def test_what_is_left_follows_the_stages_own_speed() -> None:
    pace = Pace()
    assert pace.left(at(100.0, 10)) is None  # no speed yet
    assert pace.left(at(101.0, 60)) is None  # too soon to tell
    assert pace.left(at(110.0, 110)) == 89.0  # ten texts a second
    assert pace.left(at(111.0, 500, "other")) is None
    assert pace.left(at(210.0, 210)) == 790 / (200 / 110)  # slower since
    assert pace.left(at(300.0, 20)) is None  # the same stage of the next round
    assert pace.left(at(310.0, 30)) == 970.0
    assert pace.left(at(400.0, 1000)) is None


def test_time_left_in_words() -> None:
    told = [spoken(seconds) for seconds in (None, 3.0, 44.0, 89.0, 100.0, 1200.0)]
    assert told == [
        "", "about 10 s left", "about 40 s left", "about 90 s left", "about 2 min left",
        "about 20 min left",
    ]  # fmt: skip


def test_a_long_stage_says_how_long_it_will_take(capsys: Any) -> None:
    with Display() as display:
        for t, done in enumerate(range(0, 150, 10)):
            display.show(at(float(t), done))
        display.show(at(30.0, 240, note="three left"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "embedding texts: 0 of 1,000 texts",
        "embedding texts: 100 of 1,000 texts, about 2 min left",
        "embedding texts: 240 of 1,000 texts, three left, about 2 min left",
    ]


def test_the_product_is_told_before_its_benchmark(tmp_path: Path) -> None:
    texts = ["The first one.", "Two\n lines \x1b[31m", "w " * 99, "a fourth"]
    write_jsonl(tmp_path / "synthetic.jsonl", ({"text": text} for text in texts))
    lines = product_lines({**SUMMARY, "privacy_short": "Epsilon = 7.58."}, tmp_path)
    assert lines[0] == f"the result is ready in {tmp_path}: 1,508 synthetic texts, synthetic.jsonl"
    assert lines[1:3] == ["    The first one.", "    Two lines [31m"]
    assert len(lines[3]) == 94 and lines[4] == "privacy: Epsilon = 7.58."
    assert "Ctrl-C" in lines[5]
    trained = {**SUMMARY, "synthetic_samples": 0, "privacy_short": "Epsilon = 2."}
    model = product_lines(trained, tmp_path / "other")
    assert model[0].endswith(": a trained model, model/") and len(model) == 3
