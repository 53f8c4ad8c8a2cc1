"""One vote round through Flower against the bare numpy work on the same arrays.

    python benchmarks/vote_round.py [--users 10000] [--rounds 5]

Prints the ratio (goal: at most 1.5), in wall-clock time and, of the nodes' answers alone, in
processor time, which other work on the machine changes less; the peak memory of a node's process,
and bytes per candidate.
Two simulated SuperNodes host all users, d = 384, embeddings cached, plain aggregation (what
secure aggregation adds: secure_round.py); round 1 (start-up of Flower's workers and of the
caches) is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from privsyn_flower.app.local.simulation import LocalFlower
from privsyn_flower.client_apps.node.failures import TIMINGS_FILE
from privsyn_flower.config import RunConfig, absolute_paths
from privsyn_flower.queries.votes import shard_votes
from privsyn_flower.runs import read_jsonl
from privsyn_flower.text import load_embedder

WORDS = np.array([f"word{i}" for i in range(5000)])
SAMPLES, CANDIDATES, DIMENSION = 8, 1024, 384


def write_users(path: Path, users: int, seed: int) -> None:
    """users x SAMPLES random sentences as jsonl."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for user in range(users):
            for words in rng.choice(WORDS, size=(SAMPLES, 12)):
                file.write(json.dumps({"user_id": f"u{user}", "text": " ".join(words)}) + "\n")


def watch_memory(stop: threading.Event, peaks: dict[str, int]) -> None:
    """Peak resident kilobytes of Flower's ClientApp workers, from outside."""
    while not stop.wait(0.2):
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if "ClientAppActor" not in (entry / "cmdline").read_text():
                    continue
                status = (entry / "status").read_text()
            except OSError:
                continue
            kilobytes = int(status.split("VmHWM:")[1].split()[0])
            peaks[entry.name] = max(peaks.get(entry.name, 0), kilobytes)


def flower_rounds(
    folder: Path,
    users: int,
    rounds: int,
    *,
    nodes: int = 2,
    candidates: int = CANDIDATES,
    aggregation: str = "plain",
) -> tuple[list[dict], dict[str, int]]:
    """metrics.jsonl of a run with that many SuperNodes, and the workers' peak memory."""
    write_users(folder / "users.jsonl", users + 10, seed=0)
    write_users(folder / "public.jsonl", 300, seed=1)
    values = {
        "rounds": rounds,
        "nodes": nodes,
        "aggregation": aggregation,
        "epsilon": 50.0,
        "cache": str(folder / "cache"),
        "data.source": "files",
        "data.path": str(folder / "users.jsonl"),
        "data.public-path": str(folder / "public.jsonl"),
        "data.users": users,
        "data.held-out-users": 5,
        "data.development-users": 0,
        "data.public-pool": 2000,
        "data.public-validation": 8,
        "models.embedder": f"ngram-{DIMENSION}",
        "pretext.population": candidates,
        "pretext.lookahead": 1,
        "pretext.variation": "retrieval",
        "expand.samples": 0,
    }
    run = folder / "run"
    run.mkdir()
    config = absolute_paths(RunConfig.from_flat(values), run)
    flower, stop, peaks = LocalFlower(run), threading.Event(), {}
    watcher = threading.Thread(target=watch_memory, args=(stop, peaks), daemon=True)
    try:
        flower.start()
        flower.submit(config)
        watcher.start()
        while not (run / "summary.json").exists():
            if (run / "error.txt").exists():
                raise RuntimeError((run / "error.txt").read_text())
            time.sleep(0.5)
    finally:
        stop.set()
        flower.close()
    return read_jsonl(run / "metrics.jsonl"), peaks


def answer_seconds(folder: Path) -> float:
    """Least processor seconds of all nodes' answers to a round, but the first round's."""
    rounds: dict[int, float] = {}
    for path in (folder / "cache" / "nodes").glob(f"*/{TIMINGS_FILE}"):
        for row in read_jsonl(path):
            rounds[row["round"]] = rounds.get(row["round"], 0.0) + row["cpu_seconds"]
    return min(seconds for number, seconds in rounds.items() if number > 1)


def bare_seconds(users: int, repeats: int) -> tuple[float, float, float]:
    """Of the plain numpy work on arrays of the same shapes: median seconds and least processor
    seconds; median seconds of `shard_votes` on them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(users * SAMPLES, DIMENSION)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    candidates = rows[rng.choice(len(rows), CANDIDATES, replace=False)] + np.float32(0.01)
    owner = np.repeat(np.arange(users), SAMPLES)
    offsets = np.einsum("ij,ij->i", candidates, candidates)

    def bare() -> np.ndarray:
        nearest = np.empty(len(rows), dtype=np.int64)
        for start in range(0, len(rows), 8192):
            block = rows[start : start + 8192]
            nearest[start : start + 8192] = (offsets - 2 * (block @ candidates.T)).argmin(axis=1)
        pairs, counts = np.unique(owner * CANDIDATES + nearest, return_counts=True)
        norms = np.sqrt(np.bincount(pairs // CANDIDATES, weights=counts**2.0, minlength=users))
        weights = counts / norms[pairs // CANDIDATES]
        return np.bincount(pairs % CANDIDATES, weights=weights, minlength=CANDIDATES)

    def ours() -> np.ndarray:
        return shard_votes(
            rows, owner, candidates, clip="normalised", bound=1.0, samples_cap=SAMPLES
        )

    seconds, processor = [], []
    for work in (bare, ours):
        work()
        times, own = [], []
        for _ in range(repeats):
            start, began = time.perf_counter(), time.process_time()
            work()
            times.append(time.perf_counter() - start)
            own.append(time.process_time() - began)
        seconds.append(statistics.median(times))
        processor.append(min(own))
    return seconds[0], processor[0], seconds[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    assert load_embedder(f"ngram-{DIMENSION}").dimension == DIMENSION
    with tempfile.TemporaryDirectory() as name:
        metrics, peaks = flower_rounds(Path(name), options.users, options.rounds)
        answers = answer_seconds(Path(name))
    bare, processor, ours = bare_seconds(options.users, 5)
    rounds = [row["exchange_seconds"] for row in metrics[1:]]
    middle = statistics.median(rounds)
    half = options.users * SAMPLES * DIMENSION * 4 / 2
    print(f"users {options.users} x {SAMPLES} samples, {CANDIDATES} candidates, d = {DIMENSION}")
    print(
        f"round through Flower  median {middle:.3f} s  min {min(rounds):.3f}  max {max(rounds):.3f}"
    )
    print(f"bare numpy {bare:.3f} s   shard_votes in one process {ours:.3f} s")
    print(f"ratio round / bare numpy  {middle / bare:.2f}   (goal: at most 1.5)")
    print(
        f"processor seconds: answers {answers:.3f}, bare numpy {processor:.3f}, ratio "
        f"{answers / processor:.2f}"
    )
    beyond = max(peaks.values()) * 1024 - half
    print(f"node's peak memory beyond its embeddings  {beyond / 1e6:.0f} MB   (goal: below 1000)")
    print(
        f"bytes per candidate: down {metrics[-1]['bytes_down_per_node'] / CANDIDATES:.1f} "
        f"(goal: at most 450), up {metrics[-1]['bytes_up_per_node'] / CANDIDATES:.1f} (goal: 4-8)"
    )


if __name__ == "__main__":
    main()
