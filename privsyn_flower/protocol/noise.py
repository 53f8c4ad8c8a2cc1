"""The noise that the sum of a query must carry, and the integers that it is counted in. PUBLIC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from privsyn_flower.common.arrays import F64, U64
from privsyn_flower.privacy.encoding.dense import (
    ONE_ROUND,
    DensePlan,
    check_dense,
    decode_dense,
    padded_length,
)
from privsyn_flower.privacy.encoding.quantize import IntegerPlan, decode
from privsyn_flower.privacy.encoding.sizing import check_plan
from privsyn_flower.privacy.noise.integer_noise import release_distance

if TYPE_CHECKING:
    from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
    from privsyn_flower.protocol.question import Query

Source = Literal["nodes", "aggregator"]


@dataclass(frozen=True)
class Noise:
    """What the nodes of one query add, and what its sum must carry (rule 6).

    Users' vectors become integers of L2 norm at most `sensitivity`, summed mod 2^bits. A node
    that stands for w users adds discrete Gaussian noise of variance w / min_weight times
    (multiplier * sensitivity)^2 + 1/12 to every coordinate: survivors of honest weight W_min =
    min_weight carry the guaranteed noise, `colluding` weight on top of that is assumed to take its
    own noise off.

    Where the question has a matrix (`matrix_of`), answers are rows of it, and in place of
    `sensitivity`, of one round's integers, stands a_0 times as much.

    scale: integers per unit of the vector; 0: sensitivity / bound. source "aggregator": the nodes
    add nothing, the sum that they give away is PRIVATE, and a trusted aggregator adds noise to it
    before anything else; `multiplier` is then that of independent Gaussian noise which would cost
    a user as much for each participation.
    """

    multiplier: float
    sensitivity: float
    bits: int
    min_weight: float
    colluding: float = 0.0
    sampling_rate: float = 1.0
    scale: float = 0.0
    source: Source = "nodes"


MATRIX, MATRIX_ROUNDS = "matrix", "rounds"  # options of a question whose answers are rows of C X


def matrix_options(matrix: IntegerMatrix) -> dict[str, Any]:
    """A matrix as options of a question, with the rounds of one user that it is made for."""
    users = matrix.participation
    return {
        MATRIX: json.dumps(matrix.coefficients),
        MATRIX_ROUNDS: matrix.rounds,
        "min-separation": users.min_separation,
        "max-participations": users.max_participations,
    }


def matrix_of(query: Query) -> IntegerMatrix | None:
    """The matrix that the nodes multiply their users' vectors by over the rounds; None: there is
    none. Raises ValueError on options that are no matrix, and for an answer that is not dense."""
    return query.once(_read_matrix)


def _read_matrix(query: Query) -> IntegerMatrix | None:
    options: Mapping[str, Any] = query.options
    if MATRIX not in options:
        return None
    # Here alone: a device that votes loads nothing of correlated noise.
    from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
    from privsyn_flower.privacy.correlated.participation import Participation

    names = (MATRIX_ROUNDS, "min-separation", "max-participations")
    numbers = [options.get(name, 0) for name in names]
    if not query.dense or not all(type(number) is int for number in numbers):
        raise ValueError(f"a matrix needs dense answers and whole numbers {names}, not {numbers}")
    try:
        coefficients = json.loads(str(options[MATRIX]))
    except (ValueError, RecursionError):
        raise ValueError("the matrix is not a list of whole numbers") from None
    if not isinstance(coefficients, list):
        raise ValueError("the matrix is not a list of whole numbers")
    rounds, apart, most = numbers
    return IntegerMatrix(tuple(coefficients), Participation(rounds, max(1, apart), most))


def unit_of(query: Query) -> int:
    """What one round's integers are multiplied by in an answer: a_0, or 1 without a matrix."""
    matrix = matrix_of(query)
    return matrix.unit if matrix else 1


def encoded_length(query: Query) -> int:
    """Coordinates of an answer as it travels: a dense one is padded for its rotation."""
    return padded_length(query.length) if query.dense else query.length


def integer_plan(query: Query, noise: Noise) -> IntegerPlan | DensePlan:
    """The integer encoding of a query's answers. Raises ValueError on numbers that fit none."""
    plan = DensePlan if query.dense else IntegerPlan
    return plan(
        bound=query.bound,
        sensitivity=noise.sensitivity,
        scale=noise.scale or noise.sensitivity / query.bound,
        bits=noise.bits,
        length=query.length,
    )


def total_variation(query: Query, noise: Noise) -> float:
    """How far, at most, the nodes' noise on one sum is from rounded Gaussian noise.

    0 where the aggregator adds it. Raises TooCoarse, a ValueError, on integers too coarse to say.
    """
    if noise.source == "aggregator":
        return 0.0
    numbers = (noise.multiplier, noise.sensitivity * unit_of(query), noise.min_weight)
    return release_distance(encoded_length(query), *numbers)


def charge_of(query: Query, noise: Noise) -> dict[str, float]:
    """What one release with the nodes' noise costs, as arguments of `Ledger.reserve`: the Gaussian
    that the noise is a rounding of, and how closely."""
    return {
        "noise_multiplier": noise.multiplier,
        "total_variation": total_variation(query, noise),
        "sampling_rate": noise.sampling_rate,
    }


def encoded_bound(query: Query, noise: Noise) -> float:
    """L2 norm of one user's vector in a decoded sum: the bound, and what rounding adds to it.

    The unit of the noise multiplier: noise of multiplier z has standard deviation z times this. A
    row of a matrix is decoded with the matrix's diagonal taken as 1.
    """
    return noise.sensitivity / noise.scale if noise.scale else query.bound


def decode_sum(residues: U64, query: Query, noise: Noise) -> F64:
    """A sum modulo 2^bits in units of the vectors: (encoded_length,) -> (length,) float64.

    PRIVATE as long as the residues are: with noise of the aggregator's, none is on it yet.
    """
    plan = integer_plan(query, noise)
    if isinstance(plan, DensePlan):
        return decode_dense(residues, plan, query.rotation) / unit_of(query)
    return decode(residues, plan)


def check_range(query: Query, noise: Noise, weight: float) -> None:
    """Raise WrapAround unless the modulus holds a sum of `weight` users, with the nodes' noise."""
    plan = integer_plan(query, noise)
    multiplier = noise.multiplier if noise.source == "nodes" else 0.0
    if isinstance(plan, DensePlan):
        rows = (matrix.unit, matrix.row_norm) if (matrix := matrix_of(query)) else ONE_ROUND
        check_dense(plan, multiplier, weight, noise.min_weight, noise.sampling_rate, rows)
    else:
        check_plan(plan, multiplier, weight, noise.min_weight)
