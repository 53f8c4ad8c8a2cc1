"""A vote round of the demo's shape under secure aggregation, against the plain sum.

    python benchmarks/secure_round.py [--rounds 6]

1,000 users x 8 samples on 8 simulated SuperNodes, 384 candidates, d = 384, embeddings cached.
Secure aggregation has four stages more than the plain sum; what a stage costs in Flower itself is
measured with next to no work in it (16 users, 8 candidates). Goal: at most 1.5 x the plain round,
plus those four stages. Round 1 is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from vote_round import flower_rounds


def seconds(rounds: int, users: int, candidates: int, aggregation: str) -> tuple[float, dict]:
    """Median seconds of a round's exchange, and the last round's public facts."""
    with tempfile.TemporaryDirectory() as name:
        metrics, _ = flower_rounds(
            Path(name), users, rounds, nodes=8, candidates=candidates, aggregation=aggregation
        )
    return statistics.median(row["exchange_seconds"] for row in metrics[1:]), metrics[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    empty, _ = seconds(rounds, 16, 8, "plain")
    plain, plain_facts = seconds(rounds, 1000, 384, "plain")
    secure, facts = seconds(rounds, 1000, 384, "secure")
    allowed = 1.5 * plain + 4 * empty
    print("1,000 users x 8 samples, 8 SuperNodes, 384 candidates, d = 384")
    print(f"a stage with next to no work {empty:.3f} s")
    print(f"plain round {plain:.3f} s   secure round {secure:.3f} s")
    print(f"secure / (1.5 x plain + 4 stages)  {secure / allowed:.2f}   (goal: at most 1)")
    for name, row in (("plain", plain_facts), ("secure", facts)):
        down, up = row["bytes_down_per_node"], row["bytes_up_per_node"]
        print(f"bytes per node, {name}: down {down:,}  up {up:,}")


if __name__ == "__main__":
    main()
