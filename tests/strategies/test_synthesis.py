"""`start` in anyone's ServerApp: the example on the page, and what the statement says."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.config import PreTextConfig
from privsyn_flower.runs import read_jsonl
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.text import load_embedder
from tests.conftest import sentences
from tests.rigs.strategies_popri import (
    EMBEDDER,
    PRIVATE_WORDS,
    ToyGenerator,
    ToyTrainer,
    distance_to_users,
    federation,
)
from tests.rigs.synthesis import Counting, grid_of

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_strategy_on_the_page_runs(tmp_path: Path, loopback: Any) -> None:
    code = next(
        c for c in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "POPri" in c
    )
    generators: list[ToyGenerator] = []

    def generator(model: str, **_: Any) -> ToyGenerator:
        generators.append(ToyGenerator())
        return generators[-1]

    # Small stand-ins for the models; everything else is as on the page.
    page: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), page)
    page["HuggingFaceGenerator"] = generator
    page["load_embedder"] = lambda name: load_embedder(EMBEDDER, "cpu")
    page["PreferenceTrainer"] = lambda model, **_: ToyTrainer()
    public = [*sentences(200, 3, PRIVATE_WORDS), *sentences(100, 0)]
    grid = federation(tmp_path, loopback, users=60, weight=66)
    folder = tmp_path / "run"

    def started() -> list[str]:
        texts = page["popri"](public).start(
            grid, folder=folder, users=200, nodes=8, epsilon=4.0, delta=1e-6, samples=100
        )
        return [one.text for one in texts.texts]

    texts = started()
    base = ToyGenerator().complete([""], 100, np.random.default_rng(0))[0]
    assert len(set(texts)) == 100
    assert distance_to_users(texts) < 0.95 * distance_to_users(base)
    rows = read_jsonl(folder / "metrics.jsonl")
    assert [row["round"] for row in rows] == [1]
    # The same call again only reads the folder.
    sent = len(grid.sent)
    assert started() == texts
    assert len(grid.sent) == sent and generators[1].calls == []


@pytest.mark.parametrize(
    ("deployed", "simulated"), [([False] * 3, True), ([True] * 3, False), ([False, True], False)]
)
def test_the_statement_says_whether_this_was_a_simulation(
    deployed: list[bool], simulated: bool, tmp_path: Path, loopback: Any
) -> None:
    grid, options = grid_of(loopback, deployed), {"aggregation": PlainSum(), "delta": 1e-5}
    users = 25 * len(deployed)
    for _ in range(2):  # the second call finds a finished run, and greets nobody
        strategy = Counting()
        result = strategy.start(
            grid, folder=tmp_path, users=users, nodes=len(deployed), epsilon=4.0, **options
        )
        assert result.rounds == 1 and result.texts == []
        assert result.statement.simulated is simulated
        assert ("This was a simulation" in result.statement.sentence()) is simulated
        assert strategy.attached == [tmp_path]


def test_the_statement_says_which_machines_saw_everything(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")

    def said(folder: str, deployed: bool = False) -> str:
        options: dict[str, Any] = {"aggregation": PlainSum(), "delta": 1e-5, "epsilon": 4.0}
        grid, place = grid_of(loopback, [deployed] * 3), tmp_path / folder
        found = Counting().start(grid, folder=place, users=75, nodes=3, **options)
        return found.statement.short()

    assert "Simulated: one machine saw everything." in said("one")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "Simulated: its machines saw everything." in said("cluster")
    assert "Simulated" not in said("devices", deployed=True)
    monkeypatch.delenv("RAY_ADDRESS")  # and is resumed without one: the others have seen it
    assert "Simulated: its machines saw everything." in said("cluster")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 4.0}, []),
        ({"epsilon": 0.001}, ["epsilon = 0.001: the noise of a released sum"]),
        ({"epsilon": 4.0, "delta": 0.5}, ["delta = 0.5 is not below 1 / users"]),
    ],
)
def test_numbers_that_give_nothing_are_warnings_in_flowers_log(
    changes: dict[str, Any],
    words: list[str],
    tmp_path: Path,
    loopback: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    grid, options = grid_of(loopback, [False] * 3), {"aggregation": PlainSum(), "delta": 1e-5}
    Counting().start(grid, folder=tmp_path, users=75, nodes=3, **{**options, **changes})
    warned = [
        r.getMessage() for r in caplog.records if r.name == "flwr" and r.levelname == "WARNING"
    ]
    assert len(warned) == len(words)
    assert all(word in text for word, text in zip(words, warned, strict=True))


def test_a_start_logs_settings_claim_and_rounds_as_training_does(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO)
    strategy, grid = Counting(), grid_of(loopback, [False] * 3)
    strategy.config = PreTextConfig(population=16)  # type: ignore[attr-defined]
    options: dict[str, Any] = {"users": 75, "nodes": 3, "epsilon": 4.0, "delta": 1e-5}
    options["aggregation"] = "plain"
    result = strategy.start(grid, folder=tmp_path, **options)
    assert result.statement.aggregation == "plain"
    lines = [r.getMessage() for r in caplog.records if r.name == "flwr"]
    settings, claim = lines[:4], lines[4]
    assert [line.strip("\t│├─>└ ") for line in settings] == [
        "Counting settings:", "rounds: 1", "population: 16", "Aggregation: sums over nodes"
    ]  # fmt: skip
    assert claim.startswith("privacy: Epsilon = 4 at delta = 1e-05 for each user")
    assert [line[:11] for line in lines if "ROUND" in line] == ["[ROUND 0/1]", "[ROUND 1/1]"]
    caplog.clear()
    asked: list[str] = []
    strategy.start(
        grid, folder=tmp_path / "two", progress=lambda stage, *_: asked.append(stage), **options
    )
    assert "[ROUND" not in caplog.text and "rounds" in asked
