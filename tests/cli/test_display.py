"""The result table shows the figures of summary.json, whole and rounded."""

from __future__ import annotations

from typing import Any

from privsyn_flower.cli.display import Display, result_table

SUMMARY: dict[str, Any] = {
    "method": "pretext",
    "dataset": "docstrings:scipy",
    "users": 1000,
    "rounds": 8,
    "threat_model": "honest-but-curious server",
    "epsilon": 7.58,
    "delta": 3e-6,
    "noise_multiplier": 1.97234,
    "synthetic_samples": 1508,
    "bytes_down_per_user_round": 149570,
    "bytes_up_per_user_round": 1760,
    "wall_seconds": 400.2,
    "privacy": "Epsilon = 7.58 for each user.",
}
BENCHMARK = {
    "held_out_users": 150,
    "accuracy": {"random_public": 0.21328, "synthetic": 0.22091},
    "loss": {"random_public": 4.53229, "synthetic": 4.48991},
    "methods": {"random_public": "(a) public text", "synthetic": "(b) synthetic text"},
    "accuracy_difference": {"synthetic-random_public": [0.00763, 0.0045, 0.01072]},
    "true_votes": {"mean_ratio": 1.697, "seeds_against_random": 0.7657},
    "frechet": {"seeds": {"seeds": 0.19481, "random_public": 0.27361}},
}


def test_table_without_benchmark() -> None:
    text = result_table(SUMMARY)
    assert "149,570" in text
    assert "7.58" in text
    assert text.endswith("Epsilon = 7.58 for each user.")
    short = result_table({**SUMMARY, "privacy_short": "Epsilon = 7.58; see privacy.md."})
    assert short.endswith("privacy: Epsilon = 7.58; see privacy.md.")
    assert "for each user" not in short


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


def test_table_of_classes() -> None:
    found = {key: value for key, value in BENCHMARK.items() if key != "loss"}
    found |= {"task": "classification", "macro_f1": {"random_public": 0.1, "synthetic": 0.31239}}
    text = result_table({**SUMMARY, "benchmark": found})
    assert "classes of 150 held-out users" in text and "macro-f1" in text and "0.3124" in text


def test_a_round_says_how_many_pairs_it_has(capsys: Any) -> None:
    with Display() as display:
        event = {"stage": "round 2: pairs", "done": 90, "total": 96, "note": "their margin 1.31"}
        display.show(event)
    assert capsys.readouterr().err.splitlines() == ["[round 2: pairs] 90/96 their margin 1.31"]


def test_progress_in_a_file_has_few_lines(capsys: Any) -> None:
    with Display() as display:
        for done in range(101):
            event = {"stage": "generating", "done": done, "total": 100, "note": ""}
            display.show(event)
        display.show({"stage": "rounds", "done": 1, "total": 8, "note": "epsilon so far 2.1"})
    lines = capsys.readouterr().err.splitlines()
    assert 4 <= len(lines) <= 8
    assert lines[-1] == "[rounds] 1/8 epsilon so far 2.1"
