"""What runs on the CPU in the main job, idle and beside a process that keeps one core busy.

    python benchmarks/busy.py [--repeat 3] [--size 1.0] [--part embedding | --two]

Each part is a process of its own with a fixed amount of work, in turns alone and beside a busy
loop; both may use the same two cores, as they like. Throughput beside it over throughput alone: a
fair share is 0.5. Goals: at least 0.45 for embedding and generation, 0.4 for fine-tuning. CPU
seconds are of the work alone, without loading; where other work runs meanwhile, they mean more than
the ratios.

Then a benchmark's fine-tunings: two of the demo's, measured on as many users, one after the other
in this process and at once in two, in turns; the goal is at most 0.65 of the seconds. --two: only
these.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import privsyn_flower

ASSETS = Path(privsyn_flower.__file__).parent / "assets"
GOALS = {"embedding": 0.45, "mask-filling": 0.45, "generation": 0.45, "fine-tuning": 0.4}
CORES = 2
LOOP = "while True: pass"
Work = Callable[[int], Any]  # of this many texts or steps


def texts(count: int, words: int = 40) -> list[str]:
    """Texts of this many words, from Python's own documentation."""
    import pydoc_data.topics as topics

    pool = " ".join(topics.topics.values()).split()
    starts = np.random.default_rng(0).integers(0, len(pool) - words, size=count)
    return [" ".join(pool[first : first + words]) for first in starts]


def embedding() -> tuple[Work, int]:
    from privsyn_flower.text import load_embedder

    embedder = load_embedder("minilm", "cpu", progress=False)
    return lambda count: embedder.embed(texts(count)), 400


def mask_filling() -> tuple[Work, int]:
    from privsyn_flower.text.variation import MaskFill

    model = MaskFill(ASSETS / "infiller", max_tokens=80, device="cpu", progress=False)
    return lambda count: model.vary(texts(count), np.random.default_rng(0)), 768


def generation() -> tuple[Work, int]:
    from privsyn_flower.text.generators import HuggingFaceGenerator

    model = HuggingFaceGenerator(ASSETS / "generator", device="cpu", progress=False)
    return lambda count: model.complete(texts(count), 1, np.random.default_rng(0)), 384


def fine_tuning() -> tuple[Work, int]:
    from privsyn_flower.evaluation.downstream import Downstream
    from privsyn_flower.evaluation.tuning import Tuning

    model = Downstream(ASSETS / "downstream", length=64)
    rows = model.encode(texts(600))
    return lambda steps: model.fine_tune(rows, Tuning(steps, 32, 64, 5e-4)), 20


PARTS = {
    "embedding": embedding,
    "mask-filling": mask_filling,
    "generation": generation,
    "fine-tuning": fine_tuning,
}


def measure(part: str, size: float) -> dict[str, float]:
    """Do the work of a part in this process; items, seconds and CPU seconds of it."""
    work, usual = PARTS[part]()
    work(2)
    count = max(1, round(usual * size))
    start, cpu = time.perf_counter(), time.process_time()
    work(count)
    return {
        "items": count,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
    }


@contextlib.contextmanager
def beside(busy: bool) -> Iterator[None]:
    """With a process that computes all the time, or without."""
    if not busy:
        yield
        return
    loop = subprocess.Popen([sys.executable, "-c", LOOP])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def measured(part: str, size: float, *, busy: bool) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--part", part, "--size", str(size), "--here"]
    with beside(busy):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def two_fine_tunings(size: float, at_once: int) -> dict[str, float]:
    """Seconds, and CPU seconds with those of other processes."""
    from privsyn_flower.evaluation.downstream import Downstream
    from privsyn_flower.evaluation.process_pool import FineTuning, sums_after
    from privsyn_flower.evaluation.tuning import Tuning

    model = Downstream(ASSETS / "downstream", length=64)
    rows, users = model.encode(texts(6000)), {"all": model.encode(texts(1000))}
    tuning = Tuning(max(1, round(80 * size)), 32, 64, 1e-3)
    wanted = [FineTuning(f"{n}", rows[n * 3000 : (n + 1) * 3000], tuning, f"{n}") for n in (0, 1)]
    start, cpu = time.perf_counter(), os.times()
    sums_after(model, wanted, users, at_once=at_once)
    spent = zip(os.times()[:4], cpu[:4], strict=True)
    return {"seconds": time.perf_counter() - start, "cpu": sum(end - begun for end, begun in spent)}


def side_by_side(repeat: int, size: float) -> None:
    """Print both ways' medians, and the median of the ratios of turns that followed each other."""
    turns = [[two_fine_tunings(size, at_once) for at_once in (1, 2)] for _ in range(repeat)]
    one, two = ([turn[way] for turn in turns] for way in (0, 1))
    ratios = [turn[1]["seconds"] / turn[0]["seconds"] for turn in turns]
    print(
        f"two fine-tunings: one after the other {middle(one, lambda run: run['seconds']):.1f} s "
        f"({middle(one, lambda run: run['cpu']):.1f} of CPU), "
        f"at once {middle(two, lambda run: run['seconds']):.1f} s "
        f"({middle(two, lambda run: run['cpu']):.1f}); ratio {statistics.median(ratios):.2f} "
        f"(goal: at most 0.65), in turns {', '.join(f'{ratio:.2f}' for ratio in ratios)}; "
        f"load {os.getloadavg()[0]:.2f}"
    )


def middle(runs: list[dict[str, float]], value: Callable[[dict[str, float]], float]) -> float:
    """The median of a figure over repeated runs."""
    return statistics.median(map(value, runs))


def two_cores() -> None:
    """Keep this process, and all that it starts, to CORES of the cores that it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--size", type=float, default=1.0, help="of the usual amount of work")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--two", action="store_true", help="the two fine-tunings alone")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.part[0], options.size)))
        return
    two_cores()
    if options.two:
        side_by_side(options.repeat, options.size)
        return
    head = ("part", "alone/s", "beside/s", "ratio", "goal", "cpu ms", "beside", "load")
    print("".join(f"{title:>13}" for title in head))
    for part in options.part or PARTS:
        runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(options.repeat):
            for busy, own in runs.items():
                own.append(measured(part, options.size, busy=busy))
        rate = [middle(runs[busy], lambda run: run["items"] / run["seconds"]) for busy in runs]
        cost = [middle(runs[busy], lambda run: 1e3 * run["cpu"] / run["items"]) for busy in runs]
        cells = (rate[0], rate[1], rate[1] / rate[0], GOALS[part], *cost, os.getloadavg()[0])
        print(f"{part:>13}" + "".join(f"{cell:13.2f}" for cell in cells), flush=True)
    if not options.part:
        side_by_side(options.repeat, options.size)


if __name__ == "__main__":
    main()
