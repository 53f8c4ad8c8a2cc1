"""Who shares secrets with whom: the complete graph, or a random ring of sufficient degree.

Source: Bell, Bonawitz, Gascon, Lepoint, Raykova 2020 (ePrint 2020/704), "Secure single-server
aggregation with (poly)logarithmic overhead": nodes on a ring in random order, each joined to the
degree / 2 next on either side. Three things may fail, and the degree follows from how rarely they
may:

privacy 1     some neighbourhood holds more colluders than the threshold allows for;
privacy 2     the honest survivors fall apart into groups with sums of their own: only when
              degree / 2 consecutive places of the ring are colluding or gone. Who is gone may
              be chosen with the ring in view, so nodes refuse a list of survivors that leaves
              fewer in some stretch than may collude there;
correctness   a neighbourhood or a stretch has fewer survivors than that, so nothing is unmasked.

The threshold exceeds (neighbours + colluders) / 2 in every neighbourhood: whatever lists of
survivors a server shows to whom, it cannot collect both kinds of share of one node, because an
honest neighbour hands out only one kind (see `node.unmask`).

What this does not know: colluders who choose their keys after all others can try 2^g rings, and
fail with 2^g times the probabilities below.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

COMPLETE_BELOW = 32  # nodes; a sparse graph saves nothing there
PRIVACY_BITS = 40
CORRECTNESS_BITS = 20


@dataclass(frozen=True)
class Graph:
    """degree: neighbours of each node. threshold: shares that rebuild a secret. stretch:
    survivors needed in any degree / 2 consecutive places of the ring (0: complete graph)."""

    degree: int
    threshold: int
    stretch: int = 0


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
    """The graph of this degree when all failure probabilities are small enough."""
    privacy = 2.0 ** -(PRIVACY_BITS + 1) / nodes  # split between the two ways, and the nodes
    correctness = 2.0 ** -(CORRECTNESS_BITS + 1) / nodes
    run = degree // 2
    threshold = (degree + _most(nodes - 1, colluders, degree, privacy)) // 2 + 1
    stretch = _most(nodes, colluders, run, privacy) + 1
    if (
        threshold + _most(nodes - 1, dropouts, degree, correctness) > degree
        or stretch + _most(nodes, dropouts, run, correctness) > run
    ):
        return None
    return Graph(degree, threshold, stretch)


def _most(population: int, marked: int, drawn: int, rare: float) -> int:
    """The least count with P[more than `count` marked among `drawn`] <= rare, drawn without
    replacement."""
    marked = min(marked, population)
    total, ways = math.comb(population, drawn), 0
    for count in range(min(marked, drawn), 0, -1):
        ways += math.comb(marked, count) * math.comb(population - marked, drawn - count)
        if ways / total > rare:
            return count
    return 0


def ring(ids: Sequence[int], digest: bytes) -> list[int]:
    """Positions in `ids` in the order of the ring, from the cohort's digest.

    A hash of everybody's fresh keys, which no party fixes alone.
    """

    def place(i: int) -> bytes:
        name = b"privsyn-secagg-1 ring" + digest + ids[i].to_bytes(8, "big")
        return hashlib.sha256(name).digest()

    return sorted(range(len(ids)), key=place)


def neighbourhoods(ring: Sequence[int], degree: int) -> list[list[int]]:
    """Each position's neighbours, ascending: the next degree / 2 on either side of the ring."""
    nodes = len(ring)
    if degree >= nodes - 1:
        return [[j for j in range(nodes) if j != i] for i in range(nodes)]
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    found: list[list[int]] = [[] for _ in range(nodes)]
    for at, i in enumerate(ring):
        found[i] = sorted(ring[(at + step) % nodes] for step in steps)
    return found


def fewest(ring: Sequence[int], listed: Sequence[bool], run: int) -> int:
    """The fewest listed among any `run` consecutive places of the ring."""
    here = np.asarray(listed, dtype=np.int64)[list(ring)]
    sums = np.cumsum(np.concatenate([[0], here, here[: run - 1]]))
    return int((sums[run:] - sums[:-run]).min())
