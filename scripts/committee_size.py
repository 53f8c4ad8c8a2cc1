"""How large a committee must be that adds and opens a sum for all nodes, so that nodes send less.

    python scripts/committee_size.py [--colluding 0.1 --missing 0.15]

Each node shares its vector among m members drawn at random, and t of them open the sum of the
vectors on one list (DisAgg, arXiv 2605.13708). A member answers for one list alone, so
t > (m + its colluders) / 2 keeps a server from opening two; t members have to be there. Colluders
are more than counted with probability 2^-40 at most, silent members with 2^-20, as in
`privsyn_flower/secagg/graph.py`. A polynomial carries t - colluders coordinates (packed Shamir
shares), in a field that holds the sum without wrapping. "up": bytes of all shares of
one vector, against the vector's own; "down": what a member is sent, likewise.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from privsyn_flower.secagg.graph import CORRECTNESS_BITS, PRIVACY_BITS, _most

BITS = 32  # of a coordinate in today's sum


@dataclass(frozen=True)
class Committee:
    """members: how many. threshold: answers that open a sum. colluders: at most, but for chance."""

    members: int
    threshold: int
    colluders: int

    def up(self, nodes: int) -> float:
        """Bytes of one node's shares, in vectors."""
        return self.members / (self.threshold - self.colluders) * _field(nodes)

    def down(self, nodes: int) -> float:
        """Bytes of all nodes' shares for one member, in vectors."""
        return nodes / (self.threshold - self.colluders) * _field(nodes)


def _field(nodes: int) -> float:
    """Whole bytes of a field that holds a sum of so many coordinates, in those of one."""
    return math.ceil((BITS + math.log2(nodes)) / 8) / (BITS / 8)


def committee(nodes: int, colluding: float, missing: float) -> Committee:
    """The smallest for so many equal nodes. Raises ValueError where even all are too few."""
    bad, gone = (math.floor(share * nodes + 1e-9) for share in (colluding, missing))
    for members in range(3, nodes + 1):
        colluders = _most(nodes, bad, members, 2.0**-PRIVACY_BITS)
        silent = _most(nodes, gone, members, 2.0**-CORRECTNESS_BITS)
        threshold = (members + colluders) // 2 + 1
        if threshold + silent <= members:
            return Committee(members, threshold, colluders)
    raise ValueError(f"{colluding:.0%} colluding and {missing:.0%} missing of {nodes} nodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[30, 50, 100, 300, 1000, 10000])
    parser.add_argument("--colluding", type=float, default=0.1)
    parser.add_argument("--missing", type=float, default=0.15)
    given = parser.parse_args()
    print("nodes  members  threshold  colluders  up  down")
    for nodes in given.nodes:
        own = committee(nodes, given.colluding, given.missing)
        numbers = f"{own.members:7}  {own.threshold:9}  {own.colluders:9}"
        print(f"{nodes:5}  {numbers}  {own.up(nodes):.1f}  {own.down(nodes):.1f}")


if __name__ == "__main__":
    main()
