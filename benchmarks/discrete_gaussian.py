"""Seconds of exact discrete Gaussian noise, beside what its random bits and floats would cost.

    python benchmarks/discrete_gaussian.py [--draws 1000000] [--repeats 5]

Prints a row for each standard deviation in integers: the best of the repeats on one core, and its
ratio to three baselines of the same run: numpy's normal draws rounded to integers (inexact, from a
seed), `os.urandom` and ChaCha20 of the bytes that the sampler reads, 16 for a proposal. Compare
ratios, not seconds, between machines. Goal on an idle core: 1e6 draws in at most 0.3 s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from privsyn_flower.privacy.noise import integer_noise as sampler

STDS = (2.0, 2.9, 64.0, 4096.0, 2.0**20)


def best(repeats: int, action: Callable[[], object]) -> float:
    """Least seconds of an action."""
    passed = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        passed.append(time.perf_counter() - start)
    return min(passed)


def in_chunks(words: sampler.Words, total: int) -> None:
    """As many random words, in portions that stay in the processor's cache."""
    for start in range(0, total, 2 * sampler._CHUNK):
        words(min(2 * sampler._CHUNK, total - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print("       std  proposals  seconds   / normal  / urandom  / chacha20   system's bits alone")
    for std in STDS:
        proposals = sampler._staircase(std**2).proposals
        words = round(2 * args.draws * proposals)
        long = max(args.draws, sampler.EXACT_UP_TO + 1)  # the bits of long vectors are ChaCha20's
        draw = best(args.repeats, lambda: sampler.system_discrete_gaussian(long, std**2))  # noqa: B023
        alone = best(
            args.repeats,
            lambda: sampler._draws(args.draws, std**2, sampler._system_words),  # noqa: B023
        )
        normal = best(
            args.repeats,
            lambda: np.rint(rng.normal(0.0, std, args.draws)).astype(np.int64),  # noqa: B023
        )
        system = best(args.repeats, lambda: in_chunks(sampler._system_words, words))  # noqa: B023
        stream = best(args.repeats, lambda: in_chunks(sampler._stream(), words))  # noqa: B023
        ratios = f"{draw / normal:10.1f} {draw / system:10.2f} {draw / stream:11.2f}"
        print(f"{std:10.7g} {proposals:10.2f} {draw:8.3f} {ratios} {alone:20.3f}", flush=True)


if __name__ == "__main__":
    main()
