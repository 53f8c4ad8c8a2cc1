"""DP-FedAvg: federated averaging whose rounds have independent noise."""

from __future__ import annotations

from typing import Literal

from privsyn_flower.privacy.accounting.sampling import EVERYBODY, Sampler
from privsyn_flower.privacy.correlated import Participation, factorization
from privsyn_flower.privacy.promise import ROUNDS, Phase
from privsyn_flower.strategies.averaging.adaptive_clipping import AdaptiveClipping
from privsyn_flower.strategies.averaging.server_optimizers import ServerOptimizerName
from privsyn_flower.strategies.averaging.server_optimizers import server_optimizer as make_optimizer
from privsyn_flower.strategies.averaging.start import TrainingStrategy


class DPFedAvg(TrainingStrategy):
    """DP-FedAvg (McMahan et al. 2018, "Learning differentially private recurrent language models").

    Each user's update is clipped over all arrays together; the sum gets noise of its own in every
    round and is divided by a fixed, public number of users.

    Parameters
    ----------
    clip_norm : float (default: 1.0)
        L2 norm of one user's update, over all arrays; with adaptive clipping that of round 1.
    server_optimizer : str (default: "fedavg")
        "fedavg", "fedavgm", "fedadam" or "fedyogi".
    server_learning_rate : float (default: 1.0)
        Of the server's step; 1 with "fedavg" takes the mean update as it is.
    server_momentum : float (default: 0.9)
        Of "fedavgm"; beta_1 of "fedadam" and "fedyogi".
    beta_2, tau : float (default: 0.99, 1e-3)
        Of "fedadam" and "fedyogi".
    noise : str (default: "nodes")
        "nodes": integer noise on the nodes, so that nobody has a sum without it. "aggregator":
        Gaussian noise of an aggregator that is trusted with the sums.
    adaptive_clipping : bool (default: False)
        The clip norm follows `target_quantile` (default: 0.5) of the users' norms, in geometric
        steps of `clip_learning_rate` (default: 0.2). `indicator` (default: 0, derived) is the
        share of the bound that says whether a user's update was within.
    sampling_rate : float (default: 1.0)
        Probability with which each user takes part in a round, by a coin of its own node, which
        trains and discards where it fails: amplifies privacy, saves devices nothing.
    cohort_nodes : int (default: 0)
        Nodes that the server draws for a round; 0: all of them. The others do nothing.
    seed : int (default: 0)
        Of the server's choices; never of noise.
    """

    def __init__(
        self,
        clip_norm: float = 1.0,
        *,
        server_optimizer: ServerOptimizerName = "fedavg",
        server_learning_rate: float = 1.0,
        server_momentum: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        noise: Literal["nodes", "aggregator"] = "nodes",
        adaptive_clipping: bool = False,
        target_quantile: float = 0.5,
        clip_learning_rate: float = 0.2,
        indicator: float = 0.0,
        sampling_rate: float = 1.0,
        cohort_nodes: int = 0,
        seed: int = 0,
    ) -> None:
        clipping = AdaptiveClipping(target_quantile, clip_learning_rate, indicator)
        super().__init__(
            clip_norm,
            optimizer=make_optimizer(
                server_optimizer,
                learning_rate=server_learning_rate,
                momentum=server_momentum,
                beta_2=beta_2,
                tau=tau,
            ),
            clipping=clipping if adaptive_clipping else None,
            seed=seed,
        )
        self.noise, self.sampling_rate, self.cohort_nodes = noise, sampling_rate, cohort_nodes
        self.nodes = 0  # to wait for; known when the rounds are
        _check(noise, sampling_rate, cohort_nodes)

    def expected_users(self, users: int) -> float:
        """n q: those whose coins come up on average, or the share of the nodes that is drawn."""
        drawn = self.cohort_nodes / self.nodes if self.cohort_nodes else 1.0
        return users * self.sampling_rate * drawn

    def phase(self, rounds: int, spare_rounds: int = 1, *, nodes: int = 0) -> Phase:
        """Rounds with independent noise, of the nodes or of an aggregator."""
        self.nodes = nodes or self.nodes
        if self.cohort_nodes > self.nodes:
            raise ValueError(
                f"cohort_nodes = {self.cohort_nodes} are drawn from nodes = {self.nodes}: raise "
                "nodes"
            )
        sampler = EVERYBODY
        if self.cohort_nodes:
            sampler = Sampler("fixed", nodes=self.cohort_nodes)
        elif self.sampling_rate < 1:
            sampler = Sampler("poisson", self.sampling_rate)
        if self.noise == "nodes":
            return Phase(ROUNDS, rounds, spare_rounds, sampler)
        independent, always = factorization("independent", rounds), Participation(rounds)
        return Phase(ROUNDS, rounds, spare_rounds, sampler, "aggregator", independent, always)


def _check(noise: str, sampling_rate: float, cohort_nodes: int) -> None:
    if noise not in ("nodes", "aggregator"):
        raise ValueError(f"noise = {noise!r} must be 'nodes' or 'aggregator'")
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"sampling_rate = {sampling_rate} must be above 0 and at most 1")
    if cohort_nodes < 0 or (cohort_nodes and sampling_rate < 1):
        raise ValueError(
            f"cohort_nodes = {cohort_nodes} with sampling_rate = {sampling_rate}: the server draws "
            "nodes, or users toss coins, not both; 0 draws none"
        )
    if noise == "aggregator" and sampling_rate < 1:
        raise ValueError(
            f"sampling_rate = {sampling_rate} with noise = 'aggregator': secret coins amplify "
            "nothing where the aggregator adds the noise; use noise = 'nodes'"
        )
