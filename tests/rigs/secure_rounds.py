"""What several tests share about secure rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.rounds import Rounds
from tests.rigs.answers import question
from tests.rigs.rounds import Counting


class Asking(Counting):
    """One fixed vote question a round."""

    def ask(self, rnd: int) -> Query:
        self.asked.append(rnd)
        return question()


def engine(
    tmp_path: Path, grid: Any, strategy: Asking, *, multiplier: float = 5.0, spare: int = 1
) -> Rounds:
    ledger = Ledger.open(
        tmp_path / "ledger.jsonl",
        population="people",
        total_epsilon=1e9 if multiplier < 1 else 2.0,
        total_delta=1e-5,
    )
    plan = RoundPlan(
        run="r",
        users=20,
        noise_multiplier=multiplier,
        spare_rounds=spare,
        min_surviving_weight=0.75,
        nodes=4,
        round_timeout=0.5,
        stage_timeout=0.5,
        node_timeout=1.0,
    )
    return Rounds(grid, strategy, plan, RunFolder(tmp_path / "run"), ledger)


def states(run: Rounds) -> list[tuple[int, int, str, bool]]:
    return [(c.round, c.attempt, c.state, c.sent) for c in run.ledger.charges(run="r")]
