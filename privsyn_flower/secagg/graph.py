"""Who shares secrets with whom: the complete graph, or a random ring of sufficient degree.

Source: Bell, Bonawitz, Gascon, Lepoint, Raykova 2020, "Secure single-server aggregation with
(poly)logarithmic overhead": nodes on a ring in random order, each joined to the degree / 2 next
on either side. Three things may fail, and the degree follows from how rarely they may:

privacy 1     some neighbourhood holds more colluders than the threshold allows for;
privacy 2     the honest survivors fall apart into groups with sums of their own: only when
              degree / 2 consecutive places of the ring are colluding or gone;
correctness   a neighbourhood has fewer survivors than the threshold, so nothing is unmasked.

The threshold exceeds (neighbours + colluders) / 2 in every neighbourhood: whatever lists of
survivors a server shows to whom, it cannot collect both kinds of share of one node, because an
honest neighbour hands out only one kind (see `node.unmask`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

COMPLETE_BELOW = 32  # nodes; a sparse graph saves nothing there
PRIVACY_BITS = 40
CORRECTNESS_BITS = 20


@dataclass(frozen=True)
class Graph:
    """degree: neighbours of each node. threshold: shares that rebuild a secret."""

    degree: int
    threshold: int


def plan(weights: Sequence[int], min_weight: float, colluding: float) -> Graph:
    """The graph for nodes of these public weights (users), the same on every party.

    colluding: weight assumed colluding; min_weight: W_min, the honest weight that must survive.
    Weights become counts in the worst case: as many light nodes as fit. Raises ValueError when
    fewer than 3 nodes or too little weight is there.
    """
    if len(weights) < 3:
        raise ValueError(f"{len(weights)} nodes: secure aggregation needs at least 3")
    spare = sum(weights) - min_weight - colluding
    if spare < 0:
        raise ValueError(
            f"the nodes' weight {sum(weights)} is below W_min = {min_weight} plus {colluding} "
            "assumed colluding (keys min-surviving-weight, colluding-weight)"
        )
    return _plan(len(weights), _lightest(weights, colluding), _lightest(weights, spare))


def _lightest(weights: Sequence[int], total: float) -> int:
    """How many nodes at most weigh `total` together."""
    count, used = 0, 0.0
    for weight in sorted(weights):
        used += weight
        if used > total:
            break
        count += 1
    return count


@lru_cache(maxsize=256)
def _plan(nodes: int, colluders: int, dropouts: int) -> Graph:
    complete = nodes - 1
    if nodes >= COMPLETE_BELOW:
        for degree in range(4, complete, 2):
            graph = _sufficient(nodes, colluders, dropouts, degree)
            if graph is not None:
                return graph
    # All share with all: every node may meet every colluder, nothing is left to chance.
    threshold = (complete + min(colluders, complete)) // 2 + 1
    if threshold > complete:
        raise ValueError(
            f"{colluders} of {nodes} nodes assumed colluding leave no threshold that keeps them "
            "from unmasking: lower colluding-weight or ask more nodes"
        )
    return Graph(complete, threshold)


def _sufficient(nodes: int, colluders: int, dropouts: int, degree: int) -> Graph | None:
    """The graph of this degree when all three failure probabilities are small enough."""
    privacy = 2.0 ** -(PRIVACY_BITS + 1)  # split between the two ways to fail
    worst = next(
        count
        for count in range(degree + 1)
        if nodes * _tail(nodes - 1, colluders, degree, count) <= privacy
    )
    threshold = (degree + worst) // 2 + 1
    if threshold > degree:
        return None
    lost = nodes * _tail(nodes - 1, dropouts, degree, degree - threshold)
    gone = min(nodes, colluders + dropouts)
    run = degree // 2
    apart = nodes * math.prod(max(0, gone - i) / (nodes - i) for i in range(run))
    return Graph(degree, threshold) if lost <= 2.0**-CORRECTNESS_BITS and apart <= privacy else None


def _tail(population: int, marked: int, drawn: int, above: int) -> float:
    """P[more than `above` marked among `drawn`], drawn without replacement."""
    marked = min(marked, population)
    total = math.comb(population, drawn)
    ways = sum(
        math.comb(marked, count) * math.comb(population - marked, drawn - count)
        for count in range(above + 1, min(marked, drawn) + 1)
    )
    return ways / total


def neighbourhoods(ids: Sequence[int], degree: int, digest: bytes) -> list[list[int]]:
    """Each node's neighbours, as ascending positions in `ids`, from the cohort's digest.

    The ring's order is a hash of everybody's fresh keys, which no party fixes alone.
    """
    nodes = len(ids)
    if degree >= nodes - 1:
        return [[j for j in range(nodes) if j != i] for i in range(nodes)]

    def place(i: int) -> bytes:
        name = b"privsyn-secagg-1 ring" + digest + ids[i].to_bytes(8, "big")
        return hashlib.sha256(name).digest()

    ring = sorted(range(nodes), key=place)
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    found: list[list[int]] = [[] for _ in range(nodes)]
    for at, i in enumerate(ring):
        found[i] = sorted(ring[(at + step) % nodes] for step in steps)
    return found
