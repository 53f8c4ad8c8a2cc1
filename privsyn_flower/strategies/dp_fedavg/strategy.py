"""DP-FedAvg: federated averaging whose rounds have independent noise."""

from __future__ import annotations

from typing import Any

from privsyn_flower.config import AveragingConfig
from privsyn_flower.privacy.accounting.sampling import EVERYBODY, Sampler
from privsyn_flower.privacy.plan import ROUNDS, Phase
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from privsyn_flower.strategies.engine.arguments import check_arguments


class DPFedAvg(TrainingStrategy):
    """DP-FedAvg (McMahan et al. 2018, "Learning differentially private recurrent language models").

    Each user's update is clipped over all arrays together; the sum gets noise of its own in every
    round and is divided by a fixed, public number of users.

    Parameters
    ----------
    config : clip_norm, adaptive_clipping, server_optimizer, noise, ... (`[training]`); or these as
        keywords, DPFedAvg(clip_norm=0.5).
    sampler : who takes part in a round; what it draws by is accounted. Sampler("poisson", q):
        client-side Poisson sampling; the node trains for all and discards the others': amplifies
        privacy, saves devices nothing. Sampler("fixed", nodes=m): m nodes that the server draws;
        the others do nothing.
    seed : of the server's choices; never of noise.
    """

    method = "dp-fedavg"

    def __init__(
        self,
        config: AveragingConfig | None = None,
        *,
        sampler: Sampler = EVERYBODY,
        seed: int = 0,
        **keys: Any,
    ) -> None:
        check_arguments(sampler=sampler)
        super().__init__(config, seed=seed, **keys)
        self.sampler = sampler

    def settings(self) -> dict[str, Any]:
        """And who takes part in a round."""
        return {**super().settings(), "sampler": self.sampler.name}

    def expected_users(self, users: int, nodes: int) -> float:
        """n q: those who are sampled on average, or the share of the nodes that is drawn."""
        drawn = self.sampler.nodes / nodes if self.sampler.nodes else 1.0
        return users * self.sampler.rate * drawn

    def phase(self, rounds: int, spare_rounds: int = 1, *, nodes: int = 0) -> Phase:
        """Rounds with independent noise, of the nodes or of an aggregator."""
        if self.sampler.nodes > nodes:
            raise ValueError(
                f"sampler = 'fixed' draws {self.sampler.nodes} of nodes = {nodes}: raise nodes, or "
                "draw fewer"
            )
        if self.config.noise == "aggregator":
            from privsyn_flower.privacy.correlated import Participation, factorization

            one, always = factorization("independent", rounds), Participation(rounds)
            return Phase(ROUNDS, rounds, spare_rounds, self.sampler, "aggregator", one, always)
        return Phase(ROUNDS, rounds, spare_rounds, self.sampler)
