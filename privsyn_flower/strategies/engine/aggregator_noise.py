"""Gaussian noise of a TRUSTED aggregator, independent or correlated across rounds.

DP-FTRL: Kairouz et al. 2021 (arXiv 2103.00039), "Practical and private (deep) learning without
sampling or shuffling"; Denisov et al. 2022 (arXiv 2202.08312), "Improved differential privacy for
SGD via optimal private linear operators on adaptive streams". The sums that it gets from the nodes
are PRIVATE.
"""

from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import replace_private
from privsyn_flower.privacy.correlated import (
    Factorization,
    NoiseKey,
    NoiseKeyMissing,
    Participation,
    Stream,
)
from privsyn_flower.privacy.encoding.dense import DensePlan
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.privacy.ledger import LedgerError
from privsyn_flower.privacy.release import NoisySum, ReleaseRefused, check_weight
from privsyn_flower.protocol.noise import Noise, encoded_bound, encoded_length
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import ModularSum
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import encoding_of

# A round that adds nothing to the sensitivity of those before is charged this share of the whole
# run's cost, divided by the rounds: a charge needs a finite noise multiplier. All of them together
# stay below the rounding that calibrated noise has room for.
LEAST_CHARGE = 1e-12
# Beside the key: the newest round whose noise is in a release; and the newest attempt whose
# release was about to be written, so may be out.
RELEASED, CLAIMED = "released.json", "claimed.json"

logger = logging.getLogger("privsyn_flower")


def charged_norm(cumulative: F64, rnd: int) -> float:
    """Norm that round `rnd` adds to the sensitivity of those before. cumulative: (T,), of the first
    1, 2, ... rounds."""
    before = float(cumulative[rnd - 2]) if rnd > 1 else 0.0
    after, whole = float(cumulative[rnd - 1]), float(cumulative[-1])
    return math.sqrt(max(after**2 - before**2, LEAST_CHARGE * whole**2 / len(cumulative)))


@dataclass
class AggregatorNoise:
    """Gaussian noise that a trusted aggregator adds to each sum before anything else.

    The released vectors, one row a round, are X + z C^-1 Z for sums X (in units of one user's
    bound), the strategy matrix C of `factorization` and a standard Gaussian Z (of trees: their
    nodes' sums are C X): a function of C X + z Z, row by row. z: standard deviation in those units.
    participation: the pattern that the nodes enforce for each user. folder, run: where the
    key of the noise is (PRIVATE, mode 0600, outside the run folder) and its name there. Raises
    ValueError on a z that is not positive and on a participation in other rounds than the
    factorization's.
    """

    factorization: Factorization
    participation: Participation
    z: float
    folder: Path
    run: str

    trusted: ClassVar[bool] = True
    last_once: ClassVar[bool] = False
    _key: NoiseKey | None = field(default=None, init=False, repr=False)
    _stream: Stream | None = field(default=None, init=False, repr=False)
    _held: BinaryIO | None = field(default=None, init=False, repr=False)
    _drawn: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.z < math.inf:
            raise ValueError(f"z = {self.z} must be finite and above 0")
        self.folder = Path(self.folder)
        self._cumulative: F64 = self.factorization.cumulative_sensitivity(self.participation)

    @property
    def name(self) -> str:
        """The factorization's."""
        return self.factorization.name

    @property
    def binding(self) -> str:
        """What the run's noise is made for, beside the factorization; public."""
        apart = self.participation.min_separation
        return f"z {self.z!r} min-separation {apart} max-participations {self.participations}"

    @property
    def participations(self) -> int:
        """k: rounds that one user takes part in, at most."""
        return self.participation.most

    @property
    def multiplier(self) -> float:
        """Of independent Gaussian noise that costs a user with k participations as much."""
        return self.z * math.sqrt(self.participations) / float(self._cumulative[-1])

    def charged(self) -> list[float]:
        """The noise multiplier that the ledger is charged for each round, see `charge`."""
        return [self._charged_multiplier(rnd) for rnd in range(1, self.factorization.rounds + 1)]

    @cached_property
    def accounting_multiplier(self) -> float:
        """Of independent Gaussian noise that costs users of any count at least as much: what nodes
        are told. They count participation by participation, and j < k of them may cost more than
        j / k of the run, so it is at most `multiplier`."""
        squares = self.factorization.sensitivity_by_count(self.participation) ** 2
        return self.z / math.sqrt(float((squares / np.arange(1, len(squares) + 1)).max()))

    def begin(self, rounds: int, released: int, *, fresh: bool) -> None:
        """Open the key of the noise, until `close` for nobody else; a run without charges makes it.

        Raises ValueError for more rounds than the noise was made for, LedgerError when a later
        round was released before, NoiseKeyMissing when the key of a begun run is gone, and
        NoiseKeyHeld while another process has it.
        """
        if rounds > self.factorization.rounds:
            raise ValueError(
                f"{rounds} rounds are asked, the noise was made for {self.factorization.rounds}: "
                "a user's sensitivity counts every round (key rounds)"
            )
        self._take_key(fresh)
        bound = self._bound()
        if bound > released:
            raise LedgerError(
                f"round {bound} of run {self.run} was released, but the run folder ends with round "
                f"{released}: the same noise on another sum would uncover both; restore the run "
                "folder, or start a new run"
            )
        self._drawn = released

    def check_claim(self, released: int, charge: str, attempt: int) -> None:
        """Raises LedgerError unless the run folder is the one that drew the newest noise.

        Then it knows whether that round's release is there. Its facts name the claimed charge, or
        a later attempt, which began after the folder had passed here and died before its claim.
        """
        path = self._opened().place / CLAIMED
        if not path.exists():
            return
        newest = json.loads(path.read_text("utf-8"))
        rnd, drawn = int(newest["round"]), str(newest["charge"])
        own = charge == drawn or attempt > int(newest["attempt"])
        if rnd <= released or (rnd == released + 1 and own):
            return
        raise LedgerError(
            f"the noise of round {rnd} of run {self.run} was drawn under charge {drawn}, which "
            "this run folder does not know: the folder was put back, or another copy of it went "
            "on, and may have released that round; the same noise on another sum would uncover "
            "both; go on with that copy, or start a new run in another folder"
        )

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """The encoding of the answers; the nodes add nothing."""
        if plan.sampling_rate != 1.0:
            raise ValueError(
                f"sampling-rate = {plan.sampling_rate}: sampling amplifies nothing where "
                "the aggregator adds the noise; set sampler = 'full' or training.noise = 'nodes'"
            )
        self._check_schedule(plan, query)
        if self._key is not None:
            self._opened_stream(query)  # what would fail later fails before asking
        encoding = self.encoding(plan, query)
        return Noise(
            multiplier=self.accounting_multiplier,
            sensitivity=encoding.sensitivity,
            bits=encoding.bits,
            min_weight=plan.min_weight,
            colluding=plan.colluding,
            scale=encoding.scale if query.dense else 0.0,
            source="aggregator",
        )

    def encoding(self, plan: RoundPlan, query: Query) -> IntegerPlan | DensePlan:
        """One for all rounds: its range holds the sum with the noise of the loudest release."""
        loudest = self.z * float(self.factorization.release_std().max())
        return encoding_of(plan, query, loudest, shared=False)

    def charge(
        self, query: Query, noise: Noise, rnd: int, *, repeated: bool = False
    ) -> dict[str, Any]:
        """What round `rnd` adds to the cost of the released prefix.

        The releases up to round t are a function of rows of C X + z Z that form a Gaussian release
        of sensitivity cum_t. They cost mu^2 = cum_t^2 / z^2, and round t is charged the difference
        to round t - 1. That is right under a filter, where later questions, other charges and the
        end of the run depend on earlier releases: given the past, the rows of round t are Gaussian
        of std z, with a mean that one user moves by some d_t, and the filter needs the sum of
        |d_t|^2 / z^2 within the charges on every path (Smith and Thakurta 2022). |d_t|^2 itself
        may exceed round t's charge, but |d_1|^2 + ... + |d_t|^2 = |(C X)_{1..t}|^2 <= cum_t^2 for
        every pattern and every choice of bounded rows, also one made with the past in view
        (Denisov et al. 2022, Theorem 2.1). A run that ends early has paid for its prefix alone.
        """
        return {"noise_multiplier": self._charged_multiplier(rnd)}

    def finish(self, rnd: int, summed: ModularSum, *, repeated: bool = False) -> NoisySum:
        """The sum with the noise of round `rnd`, which no other sum may get.

        The residues of `summed` are overwritten, so that no copy without noise stays. Raises
        TooFewSurvivors before noise is drawn, ReleaseRefused on a sum that has noise, or noise
        that was drawn for another sum.
        """
        asked = summed.noise
        check_weight(summed.weight, asked.colluding, asked.min_weight)
        newest = max(self._drawn, self._bound())
        if asked.source != "aggregator" or rnd <= newest:
            raise ReleaseRefused(
                f"round {rnd}: noise is to be added by the {asked.source} and rounds up to "
                f"{newest} have theirs: the aggregator adds the noise of a round to one sum "
                "only"
            )
        self._drawn = rnd
        summed.add(self._opened_stream(summed.query).noise(rnd), self.z)
        return summed.decoded(self._charged_multiplier(rnd))

    def released_std(
        self, rnd: int, plan: RoundPlan, query: Query, noise: Noise, weight: float
    ) -> float:
        """Of this release alone, whoever answered; rounds together have less (their prefix)."""
        return self.guaranteed_std(rnd, query, noise)

    def guaranteed_std(self, rnd: int, query: Query, noise: Noise) -> float:
        """All of it, whoever answered."""
        std = float(self.factorization.release_std()[rnd - 1])
        return std * self.z * encoded_bound(query, noise)

    def learned(self, rnd: int, folder: RunFolder) -> F64 | None:
        """The release as it is."""
        return folder.load_release(rnd)

    def claim(self, rnd: int, charge: str, attempt: int) -> None:
        """Remember beside the key that the release of this attempt may be out from now on."""
        content = json.dumps({"round": rnd, "charge": charge, "attempt": attempt}).encode()
        replace_private(self._opened().place / CLAIMED, content)

    def bind(self, rnd: int) -> None:
        """Remember beside the key that round `rnd` is out: a run folder can be put back."""
        content = json.dumps({"round": rnd}).encode()
        replace_private(self._opened().place / RELEASED, content)

    def close(self, *, complete: bool) -> None:
        """complete: erase the key and all that was made from it; else both stay for a resume."""
        self._stream = None
        try:
            if complete:
                with suppress(NoiseKeyMissing):  # erased before
                    if self._key is None:
                        self._take_key(fresh=False)
                    self._opened().erase()
            elif self._key is not None:
                place = self._key.place
                logger.warning("the key of the noise stays at %s: the run may go on", place)
        finally:
            self._key = None
            if self._held is not None:
                self._held.close()
                self._held = None

    def _charged_multiplier(self, rnd: int) -> float:
        return self.z / charged_norm(self._cumulative, rnd)

    def _check_schedule(self, plan: RoundPlan, query: Query) -> None:
        """What the sensitivity counts on is asked of the nodes, who enforce it."""
        apart, most = self.participation.min_separation, self.participations
        asked = int(query.options.get("min-separation", 1))
        if (apart > 1 and asked < apart) or 0 < plan.cycle < apart:
            raise ValueError(
                f"min-separation = {asked} is asked of the nodes (cycle = {plan.cycle}), but the "
                f"noise is made for users who take part every {apart} rounds at most"
            )
        asked = int(query.options.get("max-participations", 0))
        if most < Participation(self.participation.rounds, apart).most and not 0 < asked <= most:
            raise ValueError(
                f"max-participations = {asked} is asked of the nodes, but the noise is made for "
                f"users who take part in at most {most} rounds"
            )

    def _opened_stream(self, query: Query) -> Stream:
        """Raises ValueError on another length, or other settings, than the run began with."""
        length = encoded_length(query)
        if self._stream is None:
            self._stream = self.factorization.stream(self._opened(), length, binding=self.binding)
        if self._stream.length != length:
            raise ValueError(
                f"the question has length = {length}, the noise of this run {self._stream.length}: "
                "all rounds of a run train the same parameters"
            )
        return self._stream

    def _opened(self) -> NoiseKey:
        if self._key is None:
            raise ReleaseRefused("the key of the noise is not open: `begin` comes first")
        return self._key

    def _take_key(self, fresh: bool) -> None:
        try:
            key = NoiseKey.open(self.folder, self.run)
        except NoiseKeyMissing:
            if not fresh:
                raise
            key = NoiseKey.create(self.folder, self.run)
        self._held = key.hold()
        self._key = key

    def _bound(self) -> int:
        """The newest round whose noise is in a release."""
        path = self._opened().place / RELEASED
        return int(json.loads(path.read_text("utf-8"))["round"]) if path.exists() else 0
