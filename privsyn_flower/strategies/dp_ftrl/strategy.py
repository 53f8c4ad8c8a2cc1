"""DP-FTRL: federated averaging whose rounds have noise that is correlated, and so cancels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from privsyn_flower.config import AveragingConfig, FtrlConfig
from privsyn_flower.config.section import checked
from privsyn_flower.privacy.correlated import Factorization, Participation, factorization
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz
from privsyn_flower.privacy.plan import ROUNDS, Phase
from privsyn_flower.protocol.noise import matrix_options
from privsyn_flower.strategies.averaging.start import TrainingStrategy


class DPFTRL(TrainingStrategy):
    """DP-FTRL (Kairouz et al. 2021, "Practical and private (deep) learning without sampling or
    shuffling"), with any lower-triangular strategy matrix (Choquette-Choo et al. 2023).

    The model after t rounds is a function of the sum of t noisy sums. Noise that is correlated
    over the rounds makes these prefix sums far better than independent noise does, and needs no
    sampling. The nodes make it (`MatrixNoise`), or a TRUSTED aggregator.

    Parameters
    ----------
    config : clip_norm, server_optimizer ("fedavgm" has the papers' momentum), noise, ...
        (`[training]`). Or these as keywords.
    ftrl : mechanism, min_separation, max_participations, schedule, ... (`[ftrl]`): how the noise
        is correlated, and whose turn it is.
    seed : of the server's choices; never of noise.
    """

    method = "dp-ftrl"

    def __init__(
        self,
        config: AveragingConfig | None = None,
        ftrl: FtrlConfig | None = None,
        *,
        seed: int = 0,
        **keys: Any,
    ) -> None:
        super().__init__(config, seed=seed, **keys)
        self.ftrl = FtrlConfig() if ftrl is None else checked(ftrl)
        self.ftrl.check_noise(self.config)
        # Who takes turns every b rounds; all answer in every round when b = 1.
        self.cycle = self.ftrl.min_separation if self.ftrl.min_separation > 1 else 0
        self._correlated = dict[int, tuple[Factorization | IntegerMatrix, Participation]]()
        self.by_user = self.ftrl.schedule == "users"
        self.schedule = {
            "min-separation": self.ftrl.min_separation,
            "max-participations": self.ftrl.max_participations,
            "cycle": self.cycle if self.by_user else 0,
        }

    def settings(self) -> dict[str, Any]:
        """And how the noise is correlated, and whose turn it is."""
        own = {"mechanism": self.ftrl.mechanism, **self.ftrl.model_dump(exclude_defaults=True)}
        return {**super().settings(), **own}

    def expected_users(self, users: int, nodes: int) -> float:
        """Those whose turn it is."""
        return users / max(1, self.cycle)

    def begin(self, parameters: Mapping[str, NDArray[Any]], **numbers: Any) -> None:
        """The same, and the matrix whose rows are asked for, where the nodes make the noise."""
        super().begin(parameters, **numbers)
        found, _ = self.correlated(self.rounds)
        if isinstance(found, IntegerMatrix):
            self.schedule |= matrix_options(found)
            self.one_rotation = True  # vectors of different rounds are added

    def correlated(self, rounds: int) -> tuple[Factorization | IntegerMatrix, Participation]:
        """The correlation of the noise, and how often a user takes part; both public.

        Noise of the nodes: the matrix in whole numbers that is nearest to the mechanism's.
        """
        if rounds not in self._correlated:
            self._correlated[rounds] = self._chosen(rounds)
        return self._correlated[rounds]

    def _chosen(self, rounds: int) -> tuple[Factorization | IntegerMatrix, Participation]:
        ftrl = self.ftrl
        pattern = Participation(rounds, ftrl.min_separation, ftrl.max_participations)
        chosen = factorization(
            ftrl.mechanism,
            rounds,
            participation=pattern,
            restart_every=ftrl.restart_every,
            completion=ftrl.completion,
            bands=ftrl.bands,
            buffers=ftrl.buffers,
        )
        if self.config.noise == "aggregator":
            return chosen, pattern
        assert isinstance(chosen, Toeplitz)  # `check_noise`
        bands = ftrl.bands or (rounds if pattern.most == 1 else ftrl.min_separation)  # also a BLT's
        made = IntegerMatrix.nearest(chosen.coefficients, pattern, bands=bands, name=chosen.name)
        return made, pattern

    def phase(self, rounds: int, spare_rounds: int = 1, *, nodes: int = 0) -> Phase:
        """Rounds with correlated noise; failed attempts of an aggregator's give nothing away.

        Raises ValueError for turns that do not fit into the rounds.
        """
        self.ftrl.check_rounds(rounds)
        strategy_matrix, pattern = self.correlated(rounds)
        return Phase(
            ROUNDS,
            rounds,
            spare_rounds,
            source=self.config.noise,
            correlation=strategy_matrix,
            participation=pattern,
            cycle=0 if self.by_user else self.cycle,
        )
