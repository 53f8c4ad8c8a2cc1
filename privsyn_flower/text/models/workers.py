"""Independent batches side by side on the CPU.

The matrices of a small model are too small to share: two threads on one product mostly wait for
each other. So each of the caller's torch threads takes batches of its own; the results are those
of one thread, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 4  # beyond that Python's own lock is the limit


def map_batches(
    work: Callable[[Item], Result], batches: Sequence[Item], device: str
) -> Iterator[Result]:
    """work(batch) for every batch, in order; in threads of one torch thread each on a CPU.

    `work` must not change shared state. The number of torch threads, which the caller set, is
    the number of workers (at most MOST_WORKERS, the rest shared among them) and is restored.
    """
    import torch

    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS, len(batches))
    if device != "cpu" or workers < 2:
        yield from map(work, batches)
        return
    pool = ThreadPoolExecutor(
        workers, initializer=torch.set_num_threads, initargs=(threads // workers,)
    )
    try:
        yield from pool.map(work, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
