"""`start` in anyone's ServerApp: the example on the page, and what the statement says."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.strategies import SynthesisStrategy
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.text import load_embedder
from tests.conftest import sentences
from tests.strategies.test_popri import (
    EMBEDDER,
    PRIVATE_WORDS,
    ToyGenerator,
    ToyTrainer,
    distance_to_users,
    federation,
)

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


class Counting(SynthesisStrategy):
    """One round of votes for nothing in particular."""

    rounds = 1

    def __init__(self) -> None:
        self.seeds: list[str] = []
        self.attached: list[Path] = []

    def attach(self, folder: RunFolder) -> None:
        self.attached.append(folder.path)

    def ask(self, rnd: int) -> Query:
        assert self.attached, "attached before the first question"
        return Query.votes(np.eye(4, dtype=np.float32), bound=1.0, model="m")

    def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


def grid_of(loopback: Any, deployed: list[bool]) -> Any:
    """Nodes of 25 users that answer zeros and say what they are."""

    def node(number: int, real: bool) -> Any:
        facts = Hello(25, number, real)

        def handle(message: Message) -> Message:
            if message.metadata.message_type == HELLO:
                return answer_hello(message, facts)
            query, ticket, noise = wire.read_ask(message, facts.weight)
            zeros = np.zeros(query.length, dtype=np.int64)
            return wire.answer(message, ticket, to_modulus(zeros, noise.bits), noise.bits)

        return handle

    return loopback({number: node(number, real) for number, real in enumerate(deployed, start=1)})


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
