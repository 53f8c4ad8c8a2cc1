"""Progress on a terminal and in a file, and how wide a table may be."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from privsyn_flower.app.cli.display import (
    Display,
    Pace,
    progress_text,
    spoken,
    stage_in_words,
    width,
)
from privsyn_flower.common.progress import stop


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
    stage = "tuning the infiller model on public text"

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


def test_stages_are_named_with_their_unit() -> None:
    assert stage_in_words("rounds") == ("asking the users", "rounds")
    assert stage_in_words("round 12: nodes") == ("round 12: answers", "nodes")
    assert stage_in_words("round 1: something new") == ("round 1: something new", "")
    assert stage_in_words("fine-tuning on random_public") == (
        "fine-tuning on random public",
        "steps",
    )
    assert stage_in_words("evaluation-0003") == ("evaluation-0003", "")


def test_counts_say_of_what() -> None:
    assert progress_text(3, 8, "nodes") == "3 of 8 nodes"
    assert progress_text(1500.0, 12000.0, "texts") == "1,500 of 12,000 texts"
    assert progress_text(0.5, 2, "") == "0.5 of 2"
    assert progress_text(0, 1, "") == "" and progress_text(0, 0, "texts") == ""
