"""A single question beside the rounds of a run: one release more on the run's own ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from privsyn_flower.arrays import F64
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.progress import Progress, silent
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import Aggregation
from privsyn_flower.strategies.engine.cohort import Cohort, RoundPlan
from privsyn_flower.strategies.engine.mechanisms import Mechanism
from privsyn_flower.strategies.engine.rounds import Rounds, Strategy


class OneQuestion(Strategy):
    """One question for the round engine. names: what its coordinates are about, in their order.

    released, noise_std: the noisy sum, once it was asked.
    """

    rounds = 1

    def __init__(self, query: Query, names: Sequence[str]) -> None:
        self.query, self.names = query, list(names)
        self.released: list[float] = []
        self.noise_std = 0.0

    def digest(self) -> str:
        """What the question is about; another one must not be answered from a stored release."""
        state = hashlib.sha256(repr((self.names, self.query.model, self.query.bound)).encode())
        state.update(repr(sorted(self.query.options.items())).encode())
        for array in self.query.arrays():
            state.update(hashlib.sha256(array.tobytes()).digest())
        return state.hexdigest()

    def ask(self, rnd: int) -> Query:
        """The question."""
        return self.query

    def learn(self, rnd: int, released: F64, noise_std: float) -> dict[str, Any]:
        """Keep the noisy sums; whoever asked makes figures of them."""
        self.released, self.noise_std = [float(value) for value in released], noise_std
        return {"released": self.released}

    def state(self) -> dict[str, Any]:
        """JSON state."""
        return {"released": self.released, "noise_std": self.noise_std}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.released, self.noise_std = list(state["released"]), float(state["noise_std"])


def ask_once(
    question: OneQuestion,
    *,
    grid: Grid,
    folder: RunFolder,
    name: str,
    plan: RoundPlan,
    ledger: Ledger,
    aggregation: Aggregation,
    mechanism: Mechanism,
    spare: int = 0,
    progress: Progress = silent,
    cohort: Cohort | None = None,
    node_caches: Path | None = None,
) -> None:
    """Fill in `question`'s release, which is read from disk when it was made before.

    folder, plan, ledger: the run's; the question keeps its files in `evaluations/NAME`, and is
    charged under the run RUN-NAME with the plan's noise multiplier. All nodes are asked, whoever's
    turn it is. spare: attempts that may fail after they were charged. cohort: of the run, whose
    nodes and weights are then known; None greets them. node_caches: as of `Rounds`. Raises
    NoRelease, TooFewNodes and AllNodesFailed, and ValueError when NAME was another question.
    """
    own = RunFolder(folder.path / "evaluations" / name)
    asked = own.load_value("asked")
    if asked not in (None, question.digest()):
        raise ValueError(
            f"{own.path} holds an evaluation of other models, or with another config: give it "
            "those, or choose another name"
        )
    own.save_value("asked", question.digest())
    plan = replace(plan, run=f"{plan.run}-{name}", spare_rounds=spare, cycle=0)
    engine = Rounds(
        grid, question, plan, own, ledger, aggregation, progress, mechanism, node_caches
    )
    if cohort is not None:
        engine.cohort = Cohort(grid, plan, folder, progress, cohort.nodes)
    engine.run()
