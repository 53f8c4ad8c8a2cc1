"""A server that asks deployed nodes for rows of a matrix, one of them twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.participation import Participation
from privsyn_flower.privacy.encoding.dense import dense_numbers
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise, matrix_options
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.strategies.engine.aggregation import Attempt, PlainSum, SecureAggregation
from tests.rigs.updates import question

from .hostile import Row
from .rig import Seen, Stream, WireGrid
from .worlds import HOSTED, USERS, Case, answering, deployed

ASKED = ((1, 1), (2, 1), (3, 1), (3, 2), (4, 1))  # round, attempt
MATRIX = IntegerMatrix((64, 32, 16), Participation(4, 2))
Z = 1.0


def rows_world(
    case: Case, users: Mapping[str, list[Row]], models: Path, stream: Stream
) -> Callable[[Path], Callable[[Seen], None]]:
    """What asks these users' nodes so; all of the rotation's turns come."""
    plain = question(models)
    pattern = {"cycle": 2, "min-separation": 2, "max-participations": 0}
    query = replace(plain, options={**plain.options, **pattern, **matrix_options(MATRIX)})
    shape = (MATRIX.unit, MATRIX.row_norm)
    numbers = dense_numbers(query.bound, query.length, Z, USERS, USERS, rows=shape)
    noise = Noise(Z, numbers.sensitivity, numbers.bits, USERS, scale=numbers.scale)
    aggregation = PlainSum() if dict(case.values) else SecureAggregation()

    def prepare(place: Path) -> Callable[[Seen], None]:
        contexts = deployed(case, place, users, models)

        def run(seen: Seen) -> None:
            nodes = {context.node_id: answering(context) for context in contexts}
            cohort = {node: Hello(HOSTED, node - 1, deployed=False) for node in nodes}
            grid = WireGrid(nodes, seen, stream)
            for rnd, attempt in ASKED:
                ticket = Ticket("run", "update", rnd, attempt)
                asked = Attempt(
                    grid, cohort, query, ticket, noise, 20.0, 20.0, lambda n, of: None, lambda: None
                )
                total = aggregation.collect(asked).total
                seen.add(f"sum {rnd}.{attempt}", total.decoded(Z).vector.tobytes())
                left = len(list(place.glob("private-*/past/*")))
                assert left == (0 if rnd == 4 else 3 * min(rnd, 3))

        return run

    return prepare
