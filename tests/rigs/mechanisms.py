"""What several tests share about noise of a trusted aggregator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from privsyn_flower.privacy.correlated import (
    Factorization,
    NoiseKey,
    Participation,
    factorization,
)
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import evaluation_phases, plan_privacy
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import Aggregation, PlainSum
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import NodeNoise
from privsyn_flower.strategies.engine.rounds import Rounds
from privsyn_flower.strategies.engine.session import trusted_noise
from tests.rigs.rounds import Counting, Rig, VotingNode

EPSILON, DELTA, T = 4.0, 1e-6, 5
Kill = Callable[[pytest.MonkeyPatch, dict[int, VotingNode]], None]
BANDED = factorization("banded", T, bands=2)
TWICE = Participation(T, min_separation=2, max_participations=2)


class Voting(Counting):
    """A fixed vote question with the schedule that the noise is made for."""

    options: ClassVar[dict[str, Any]] = {"min-separation": 2, "max-participations": 2}

    def ask(self, rnd: int) -> Query:
        query = super().ask(rnd)
        return replace(query, options={**query.options, **self.options})


def aggregator(
    keys: Path,
    matrix: Factorization = BANDED,
    participation: Participation = TWICE,
    *,
    evaluations: int = 0,
) -> AggregatorNoise:
    rounds = Phase(
        rounds=matrix.rounds, source="aggregator", correlation=matrix, participation=participation
    )
    beside = evaluation_phases(rounds, evaluations)
    return trusted_noise(plan_privacy(EPSILON, DELTA, [rounds, *beside]).main, keys, "r")


def book(tmp_path: Path) -> Ledger:
    return Ledger.open(
        tmp_path / "ledger.jsonl", population="people", total_epsilon=EPSILON, total_delta=DELTA
    )


PLAN = RoundPlan(
    run="r",
    users=100,
    noise_multiplier=1.0,
    spare_rounds=0,
    min_surviving_weight=0.75,
    nodes=4,
    round_timeout=0.1,
    node_timeout=1.0,
)


def with_key(keys: Path, content: bytes = bytes(range(32))) -> Path:
    """A key that is known, so that the noise is."""
    (NoiseKey.create(keys, "r").place / "key").write_bytes(content)
    return keys


def noise_of(tmp_path: Path, mechanism: AggregatorNoise, length: int) -> list[np.ndarray[Any, Any]]:
    """The noise of each round under the known key, at standard deviation 1 of z."""
    with_key(tmp_path / "copy")
    key = NoiseKey.open(tmp_path / "copy", "r")
    stream = mechanism.factorization.stream(key, length, keep="memory", binding=mechanism.binding)
    return [stream.noise(rnd) for rnd in range(1, mechanism.factorization.rounds + 1)]


def rounded(tmp_path: Path, mechanism: AggregatorNoise, sums: list[float]) -> np.ndarray[Any, Any]:
    """What Voting releases under the known key, noise to the grid of 4096 integers a vote."""
    drawn = noise_of(tmp_path, mechanism, 4)
    noise = [np.rint(mechanism.z * 4096 * unit) / 4096 for unit in drawn]
    return np.round([total + one for total, one in zip(sums, noise, strict=True)], 9)


def releases(tmp_path: Path, rounds: int = T) -> list[np.ndarray[Any, Any]]:
    found = [RunFolder(tmp_path / "run").load_release(rnd) for rnd in range(1, rounds + 1)]
    return [array for array in found if array is not None]


class KeyRig(Rig):
    """A run whose noise an aggregator adds, and where its keys lie."""

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    def engine(
        self,
        strategy: Counting | None = None,
        mechanism: AggregatorNoise | NodeNoise | None = None,
        *,
        aggregation: Aggregation | None = None,
        plan: RoundPlan = PLAN,
    ) -> Rounds:
        return Rounds(
            self.grid,
            strategy or Voting(T),
            plan,
            RunFolder(self.folder / "run"),
            book(self.folder),
            aggregation or PlainSum(),
            mechanism=mechanism or aggregator(self.keys),
        )

    def die(self, kill: Kill) -> None:
        """Run until it is killed there."""
        with pytest.MonkeyPatch.context() as patch:
            kill(patch, self.nodes)
            with pytest.raises(KeyboardInterrupt):
                self.engine().run()


@pytest.fixture
def rig(tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode]) -> KeyRig:
    return KeyRig(tmp_path, loopback, nodes)


@pytest.fixture
def keys(rig: KeyRig) -> Path:
    return rig.keys
