"""Noise of the nodes that is correlated across rounds: they answer rows of C X with fresh noise.

X + C^-1 Z = C^-1 (C X + Z): what a trusted aggregator makes of its own noise, the server makes of
noisy rows, which is post-processing of them (Denisov et al. 2022, arXiv 2202.08312, Section 2). A
release is the row; what is learned from it is row t of C^-1 (rows 1 to t).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.encoding.dense import DensePlan
from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.privacy.release import NoisySum
from privsyn_flower.protocol.noise import Noise, encoded_bound, matrix_of, total_variation
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import ModularSum
from privsyn_flower.strategies.engine.aggregator_noise import charged_norm
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import NodeNoise, encoding_of, integer_noise
from privsyn_flower.text.models.parameters import pack_parameters


class MatrixNoise(NodeNoise):
    """Discrete Gaussian noise, a share of it on every node, on the rows of a matrix.

    z: standard deviation of the noise per unit of one user's bound in one round, with the matrix's
    diagonal taken as 1. folder: of the run, with its releases. Raises ValueError on a z that is
    not positive.
    """

    last_once = True

    def __init__(self, matrix: IntegerMatrix, z: float, folder: RunFolder) -> None:
        if not 0 < z < math.inf:
            raise ValueError(f"z = {z} must be finite and above 0")
        self.matrix, self.z, self.folder = matrix, z, folder
        self.name = f"nodes, {matrix.name}"
        self.binding = _binding(matrix, z)
        self._norms = charged_norms(matrix)
        self._weights = dict[int, float]()  # of who answered, by round

    def noise(self, plan: RoundPlan, query: Query) -> Noise:
        """Over the guaranteed weight. Raises ValueError for a question without this matrix, or
        one that only some nodes are asked."""
        if matrix_of(query) != self.matrix:
            raise ValueError("the question's matrix is not the one that the noise is made for")
        if plan.sampling_rate != 1.0 or plan.cohort_nodes or plan.cycle:
            raise ValueError(
                f"sampling-rate = {plan.sampling_rate}, cohort-nodes = {plan.cohort_nodes}, cycle "
                f"= {plan.cycle}: rows of a matrix are asked of all nodes in every round"
            )
        return integer_noise(replace(plan, noise_multiplier=self.z), query)

    def encoding(self, plan: RoundPlan, query: Query) -> IntegerPlan | DensePlan:
        """The finest integers whose rows, summed, fit with the noise of all nodes."""
        return encoding_of(plan, query, self.z)

    def charge(
        self, query: Query, noise: Noise, rnd: int, *, repeated: bool = False
    ) -> dict[str, Any]:
        """What this attempt adds to the cost of all rows that are out.

        The first one of a round adds a row to C X + z Z, and costs what it does of an aggregator's
        noise (`AggregatorNoise.charge` says why that is right under a filter); nodes that are
        missing leave out coordinates of it. A further one tells the same row again with fresh
        noise, and in it one user's norm is at most `row_norm`, whatever its other rows were.
        """
        return {
            "noise_multiplier": self._charged(rnd, repeated),
            "total_variation": total_variation(query, noise),
        }

    def finish(self, rnd: int, summed: ModularSum, *, repeated: bool = False) -> NoisySum:
        """The sum of the rows as it is: the nodes have added the noise."""
        return summed.decoded(self._charged(rnd, repeated))

    def _charged(self, rnd: int, repeated: bool) -> float:
        return self.z / (self.matrix.row_norm if repeated else self._norms[rnd - 1])

    # What is made of the rows ----------------------------------------------------------------

    def released_std(
        self, rnd: int, plan: RoundPlan, query: Query, noise: Noise, weight: float
    ) -> float:
        """Of what is learned from: of this row's noise and that of earlier ones, each as large as
        the nodes that answered it make it."""
        weights = np.array([*map(self._weight, range(1, rnd)), weight]) / noise.min_weight
        variance = float(np.square(self._inverse[rnd - 1 :: -1]) @ weights)
        return self.z * encoded_bound(query, noise) * math.sqrt(variance)

    def guaranteed_std(self, rnd: int, query: Query, noise: Noise) -> float:
        """That of survivors who weighed W_min in every round."""
        variance = float(np.square(self._inverse[:rnd]).sum())
        return self.z * encoded_bound(query, noise) * math.sqrt(variance)

    @cached_property
    def _inverse(self) -> F64:
        return self.matrix.toeplitz.inverse()

    def _weight(self, rnd: int) -> float:
        if rnd not in self._weights:
            facts = self.folder.load_value(f"round-{rnd:04d}-facts")
            self._weights[rnd] = float(facts["surviving_weight"])
        return self._weights[rnd]

    def learned(self, rnd: int, folder: RunFolder) -> F64 | None:
        """The release without the earlier rounds in it.

        Those that later rounds need are kept beside the releases, and made again of these where
        one is missing. Raises ValueError where a release is.
        """
        bands = self.matrix.bands
        if bands == 1 or not folder.has_release(rnd):
            return folder.load_release(rnd)
        kept = self._kept(folder, rnd)
        if kept is not None:
            return kept
        recent = range(max(1, rnd - bands + 1), rnd)
        whole = all(folder.has_arrays(_name(past)) for past in recent)
        for now in range(rnd if whole else 1, rnd + 1):
            kept = self._made(folder, now)
        return kept

    def _made(self, folder: RunFolder, rnd: int) -> F64:
        """Round `rnd`'s, kept on disk in the place of the one that no later round needs."""
        row = folder.load_release(rnd)
        if row is None:
            raise ValueError(f"{folder.path} lacks the release of round {rnd}: restore the folder")

        def earlier(past: int) -> F64:
            found = self._kept(folder, past)
            if found is None:
                raise ValueError(f"{folder.path} lacks models/{_name(past)}.safetensors")
            return found

        own = self.matrix.decorrelate(rnd, row, earlier)
        folder.save_arrays(_name(rnd), pack_parameters({"released": own}).tobytes())
        folder.drop_arrays(_name(rnd - self.matrix.bands + 1))
        return own

    def _kept(self, folder: RunFolder, rnd: int) -> F64 | None:
        from safetensors.numpy import load

        packed = folder.load_arrays(_name(rnd))
        if packed is None:
            return None
        found: F64 = load(packed)["released"]
        return found

    def close(self, *, complete: bool) -> None:
        """No round needs the earlier ones any more."""
        if complete:
            for rnd in range(1, self.matrix.rounds + 1):
                self.folder.drop_arrays(_name(rnd))


def charged_norms(matrix: IntegerMatrix) -> list[float]:
    """What each round that is asked once costs: z over this is its noise multiplier."""
    cumulative = matrix.toeplitz.cumulative_sensitivity(matrix.participation)
    return [charged_norm(cumulative, rnd) for rnd in range(1, matrix.rounds + 1)]


def _binding(matrix: IntegerMatrix, z: float) -> str:
    """The noise and what identifies the matrix, in few words."""
    users, numbers = matrix.participation, repr(matrix.coefficients).encode()
    return (
        f"of the nodes z {z!r} bands {matrix.bands} {hashlib.sha256(numbers).hexdigest()[:16]} "
        f"min-separation {users.min_separation} max-participations {users.most}"
    )


def _name(rnd: int) -> str:
    return f"decorrelated-{rnd:04d}"
