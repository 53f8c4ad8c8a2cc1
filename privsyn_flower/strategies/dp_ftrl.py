"""DP-FTRL: federated averaging whose rounds have noise that is correlated, and so cancels."""

from __future__ import annotations

from typing import Literal, get_args

from privsyn_flower.privacy.correlated import (
    Factorization,
    Participation,
    factorization,
)
from privsyn_flower.privacy.promise import ROUNDS, Phase
from privsyn_flower.strategies.averaging.server_optimizers import ServerOptimizerName
from privsyn_flower.strategies.averaging.server_optimizers import server_optimizer as make_optimizer
from privsyn_flower.strategies.averaging.start import TrainingStrategy

MechanismName = Literal[
    "independent", "tree", "tree-honaker", "tree-restart", "banded", "banded-optimised", "blt"
]


class DPFTRL(TrainingStrategy):
    """DP-FTRL (Kairouz et al. 2021, "Practical and private (deep) learning without sampling or
    shuffling"), with any lower-triangular strategy matrix (Choquette-Choo et al. 2023).

    The model after t rounds is a function of the sum of t noisy sums. Noise that is correlated
    over the rounds makes these prefix sums far better than independent noise does, and needs no
    sampling. It has to be made in one place: the aggregator is TRUSTED with the sums.

    Parameters
    ----------
    clip_norm : float (default: 1.0)
        L2 norm of one user's update, over all arrays.
    mechanism : str (default: "blt")
        "blt", "banded", "banded-optimised", "tree", "tree-honaker", "tree-restart" or
        "independent": how the noise of the rounds is correlated.
    min_separation : int (default: 1)
        Rounds from one answer of a user to the next, at least; the nodes keep it. Above 1 the
        users take turns: each answers every min_separation rounds.
    max_participations : int (default: 0)
        Rounds that one user answers, at most; the nodes keep it. 0: as many as fit.
    schedule : str (default: "nodes")
        Who takes turns: "nodes" of one or a few users each, or the "users" of every node.
    buffers : int (default: 4)
        Of "blt": each is as large as the model.
    bands : int (default: 0)
        Of "banded" and "banded-optimised": rounds that share noise; 0: min_separation of them.
    restart_every, completion : int, bool (default: 0, True)
        Of "tree-restart": rounds of one tree, and whether each is completed before the next.
    server_optimizer : str (default: "fedavgm")
        "fedavg", "fedavgm" (the papers' momentum), "fedadam" or "fedyogi".
    server_learning_rate, server_momentum, beta_2, tau : float (default: 1.0, 0.9, 0.99, 1e-3)
        Of the server's step.
    seed : int (default: 0)
        Of the server's choices; never of noise.
    """

    def __init__(
        self,
        clip_norm: float = 1.0,
        *,
        mechanism: MechanismName = "blt",
        min_separation: int = 1,
        max_participations: int = 0,
        schedule: Literal["nodes", "users"] = "nodes",
        buffers: int = 4,
        bands: int = 0,
        restart_every: int = 0,
        completion: bool = True,
        server_optimizer: ServerOptimizerName = "fedavgm",
        server_learning_rate: float = 1.0,
        server_momentum: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        seed: int = 0,
    ) -> None:
        optimizer = make_optimizer(
            server_optimizer,
            learning_rate=server_learning_rate,
            momentum=server_momentum,
            beta_2=beta_2,
            tau=tau,
        )
        super().__init__(clip_norm, optimizer=optimizer, seed=seed)
        _check(mechanism, schedule, min_separation, max_participations)
        self.mechanism, self.restart_every, self.completion = mechanism, restart_every, completion
        self.bands, self.buffers = bands, buffers
        self.min_separation, self.max_participations = min_separation, max_participations
        # Who takes turns every b rounds; all answer in every round when b = 1.
        self.cycle = min_separation if min_separation > 1 else 0
        self.by_user = schedule == "users"
        self.schedule = {
            "min-separation": min_separation,
            "max-participations": max_participations,
            "cycle": self.cycle if self.by_user else 0,
        }

    def expected_users(self, users: int) -> float:
        """Those whose turn it is."""
        return users / max(1, self.cycle)

    def correlated(self, rounds: int) -> tuple[Factorization, Participation]:
        """The correlation of the noise, and how often a user takes part; both public."""
        pattern = Participation(rounds, self.min_separation, self.max_participations)
        chosen = factorization(
            self.mechanism,
            rounds,
            participation=pattern,
            restart_every=self.restart_every,
            completion=self.completion,
            bands=self.bands,
            buffers=self.buffers,
        )
        return chosen, pattern

    def phase(self, rounds: int, spare_rounds: int = 1, *, nodes: int = 0) -> Phase:
        """Rounds with correlated noise of an aggregator; failed attempts give nothing away."""
        strategy_matrix, pattern = self.correlated(rounds)
        return Phase(
            ROUNDS,
            rounds,
            spare_rounds,
            source="aggregator",
            correlation=strategy_matrix,
            participation=pattern,
            cycle=0 if self.by_user else self.cycle,
        )


def _check(mechanism: str, schedule: str, min_separation: int, max_participations: int) -> None:
    if mechanism not in get_args(MechanismName):
        raise ValueError(f"mechanism = {mechanism!r} must be one of {get_args(MechanismName)}")
    if schedule not in ("nodes", "users"):
        raise ValueError(f"schedule = {schedule!r} must be 'nodes' or 'users'")
    if min_separation < 1:
        raise ValueError(f"min_separation = {min_separation} must be at least 1 round")
    if max_participations < 0:
        raise ValueError(f"max_participations = {max_participations} must be at least 0 (as fit)")
