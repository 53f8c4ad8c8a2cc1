"""Preference pairs of one round against a bare sort of the same scores.

    python benchmarks/ranking.py [--prompts 1800] [--responses 10] [--repeats 50]

Prints the best and the median time of both and their ratio, all in one run. The goal is 10 ms for
1,800 prompts with 10 responses (POPri, appendix B.1).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from privsyn_flower.strategies.synthesis.preferences import preference_pairs


def milliseconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Wall time of each repetition, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=1800)
    parser.add_argument("--responses", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    shape = options.prompts, options.responses
    scores = np.random.default_rng(0).normal(size=shape)
    prompts = [f"prompt {k}" for k in range(shape[0])]
    responses = [[f"response {k} {j}" for j in range(shape[1])] for k in range(shape[0])]
    rank = min(5, shape[1])
    ours = milliseconds(
        lambda: preference_pairs(prompts, responses, scores, rejected_rank=rank), options.repeats
    )
    bare = milliseconds(lambda: np.sort(scores, axis=1), options.repeats)
    print(f"{shape[0]} prompts x {shape[1]} responses, {options.repeats} repetitions")
    for name, times in (("preference_pairs", ours), ("np.sort", bare)):
        print(f"{name:>16}: best {min(times):.2f} ms, median {statistics.median(times):.2f} ms")
    print(f"           ratio: {statistics.median(ours) / statistics.median(bare):.1f}")


if __name__ == "__main__":
    main()
