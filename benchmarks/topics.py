"""Topics of many texts: seconds and memory of k-means over rows that are already there.

    python benchmarks/topics.py [--texts 100000] [--topics 1300] [--dimension 384]

Rows are a mixture around as many random directions as there are topics. Prints CPU seconds of the
first centres, of one round and of all rounds, and the peak of memory beyond the rows.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc

import numpy as np

from privsyn_flower.common.arrays import F32
from privsyn_flower.text.encoders import unit
from privsyn_flower.text.topic_training import spherical_kmeans

SPREAD = 1.2  # of a row around its direction, in each coordinate, against 1 of the directions'


def mixture(texts: int, topics: int, dimension: int) -> F32:
    """(texts, dimension) unit rows."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((topics, dimension), dtype=np.float32)
    rows = rng.standard_normal((texts, dimension), dtype=np.float32)
    rows *= SPREAD
    rows += directions[rng.integers(topics, size=texts)]
    return unit(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--topics", type=int, default=1300)
    parser.add_argument("--dimension", type=int, default=384)
    options = parser.parse_args()
    rows = mixture(options.texts, options.topics, options.dimension)
    begun: list[float] = []  # CPU seconds at the start of every round, and at the end

    def note(stage: str, done: float, total: float, text: str = "") -> None:
        begun.append(time.process_time())

    tracemalloc.start()
    start = time.process_time()
    labels, centres = spherical_kmeans(rows, options.topics, 0, note)
    peak = tracemalloc.get_traced_memory()[1]
    rounds = len(begun) - 1
    likeness = np.mean(
        [np.mean(np.einsum("ij,ij->i", rows[i::100], centres[labels[i::100]])) for i in range(100)]
    )
    print(f"{len(rows):,} rows of {rows.shape[1]} dimensions, {options.topics:,} topics")
    print(f"first centres: {begun[0] - start:.1f} CPU s")
    print(f"a round: {(begun[-1] - begun[0]) / rounds:.2f} CPU s; {rounds} of them")
    print(f"in all: {begun[-1] - start:.1f} CPU s; mean cosine to the own topic {likeness:.3f}")
    print(f"memory: {peak / 1e6:.0f} MB beyond the {rows.nbytes / 1e6:.0f} MB of the rows")


if __name__ == "__main__":
    main()
