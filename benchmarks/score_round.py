"""A round of scores against the bare numpy product, and what a smaller dimension costs.

    python benchmarks/score_round.py [--users 10000] [--candidates 18000] [--agreement FILE.npy]

Prints the ratio of `shard_scores`, integers included, to the product candidates @ sums.T alone
(goal: at most 1.6) in processor time, its peak memory, and bytes of the question and the answer
through Flower's records. --agreement: rows (n, d) of real embeddings, .npy; prompts' responses are
neighbours among one half of them, users' texts neighbours among the other, and the preference pairs
of projected candidates are compared with those of whole ones (goal: the same choice for 99 % of
prompts in 2 MB). Compressed bytes depend on the candidates: those of real ones are there.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from privsyn_flower.privacy.encoding.quantize import IntegerPlan
from privsyn_flower.protocol.messaging import in_process, record_bytes
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import ask_records
from privsyn_flower.queries import shard_scores

SAMPLES, RESPONSES, DIMENSION, REJECTED = 7, 10, 384, 5
DIMENSIONS = (0, 192, 176, 160, 128, 96, 64)  # 0: all of them


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Least processor seconds after one run to warm up: others may use the machine, too."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def speed(users: int, size: int, repeats: int) -> None:
    """Ratio to the bare product, and peak memory, for each kind of score."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((users * SAMPLES, DIMENSION), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    candidates = rng.standard_normal((size, DIMENSION), dtype=np.float32)
    candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
    sums = rows.reshape(users, SAMPLES, -1).sum(axis=1)
    owner, groups = np.repeat(np.arange(users), SAMPLES), np.full(size // RESPONSES, RESPONSES)
    plan = IntegerPlan(1.0, 4096.0, 4096.0, 32, size)
    bare = seconds(lambda: candidates @ sums.T, repeats)
    print(f"users {users} x {SAMPLES} samples, {size} candidates, d = {DIMENSION}")
    print(f"bare product {bare:.2f} s, its result {4e-6 * users * size:.0f} MB")
    for score in ("standardised", "centred", "mean-cosine"):

        def ours(score: str = score) -> np.ndarray:
            return shard_scores(
                rows,
                owner,
                candidates,
                score=score,
                bound=1.0,
                samples_cap=SAMPLES,
                groups=groups,
                plan=plan,
            )

        took = seconds(ours, repeats)
        tracemalloc.start()
        ours()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(
            f"{score:<13} {took:.2f} s   ratio {took / bare:.2f} (goal: at most 1.6)   "
            f"peak memory {peak / 1e6:.0f} MB"
        )


def traffic(size: int) -> None:
    """Bytes of a question with 18,000 candidates, and of its answer."""
    rng = np.random.default_rng(0)
    candidates = rng.standard_normal((size, DIMENSION), dtype=np.float32)
    groups = [RESPONSES] * (size // RESPONSES)
    noise, ticket = Noise(19.3, 4096.0, 32, 850.0), Ticket("run", "scores", 1, 1)
    for dimension in DIMENSIONS:
        query = Query.scores(candidates, bound=1.0, model="m", groups=groups, dimension=dimension)
        with in_process():
            down = record_bytes(ask_records(query, ticket, noise))
        print(
            f"dimension {dimension or DIMENSION:<4} down {down / 1e6:.2f} MB   up "
            f"{size * noise.bits / 8e6:.3f} MB at {noise.bits} bits"
        )


def agreement(rows: np.ndarray, prompts: int, users: int) -> None:
    """Preferences of projected candidates against those of whole ones, without noise."""
    rng = np.random.default_rng(0)
    rows = rows[rng.permutation(len(rows))].astype(np.float32)
    public, private = rows[: len(rows) // 2], rows[len(rows) // 2 :]

    def neighbours(pool: np.ndarray, count: int, among: int, each: int) -> np.ndarray:
        seeds = rng.choice(len(pool), count)
        near = np.argsort(-(pool[seeds] @ pool.T), axis=1)[:, :among]
        return np.concatenate([pool[rng.choice(own, each, replace=False)] for own in near])

    candidates = neighbours(public, prompts, 60, RESPONSES)
    texts = neighbours(private, users, 20, SAMPLES)
    owner, groups = np.repeat(np.arange(users), SAMPLES), [RESPONSES] * prompts

    def ranked(query: Query | None) -> tuple[np.ndarray, np.ndarray]:
        total = shard_scores(
            texts,
            owner,
            candidates if query is None else query.question(),
            bound=1.0,
            samples_cap=SAMPLES,
            groups=groups,
            cosines=query is None or "projection" not in query.extra,
        ).reshape(prompts, RESPONSES)
        return total, np.argsort(-total, axis=1, kind="stable")

    whole, order = ranked(None)
    line = np.arange(prompts)
    noise, ticket = Noise(19.3, 4096.0, 32, 850.0), Ticket("run", "scores", 1, 1)
    print(f"{prompts} prompts x {RESPONSES} responses, {users} users, against float32 candidates")
    for dimension in DIMENSIONS:
        query = Query.scores(candidates, bound=1.0, model="m", groups=groups, dimension=dimension)
        found, own = ranked(query)
        with in_process():
            down = record_bytes(ask_records(query, ticket, noise))
        same = float((own[:, 0] == order[:, 0]).mean())
        chosen, rejected = own[:, 0], own[:, REJECTED - 1]
        right = float((whole[line, chosen] > whole[line, rejected]).mean())
        kept = float((found[line, order[:, 0]] > found[line, order[:, REJECTED - 1]]).mean())
        print(
            f"dimension {dimension or candidates.shape[1]:<4} down {down / 1e6:.2f} MB   "
            f"same chosen {same:.1%}   its pairs in the whole order {right:.1%}   "
            f"whole pairs kept {kept:.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=18_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--agreement", type=Path, help=".npy of real embeddings")
    options = parser.parse_args()
    traffic(options.candidates)
    if options.agreement:
        agreement(np.load(options.agreement), prompts=1800, users=1000)
    speed(options.users, options.candidates, options.repeats)


if __name__ == "__main__":
    main()
