"""The device a model runs on, and its threads; `cpu` is answered without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 4  # beyond that Python's own lock is the limit


def resolve_device(name: str = "auto") -> str:
    """`auto`, `cpu`, `cuda`, `cuda:N` or `mps` -> a device that this machine has.

    `auto` prefers CUDA, then MPS, then the CPU. Raises ValueError for a name that is not a
    device and RuntimeError for a device that this machine lacks; nothing falls back silently.
    """
    if name == "cpu":
        return name
    kind, colon, index = name.partition(":")
    if kind not in {"auto", "cuda", "mps"} or (colon and not (kind == "cuda" and index.isdigit())):
        raise ValueError(f"models.device = {name!r}: use auto, cpu, cuda, cuda:N or mps")

    import torch

    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    if kind == "cuda" and int(index or 0) >= cuda:
        raise RuntimeError(f"models.device = {name!r}, but torch sees {cuda} CUDA device(s)")
    if kind == "mps" and not mps:
        raise RuntimeError("models.device = 'mps', but torch has no MPS backend here")
    return name


def empty_cache(device: str) -> None:
    """Give memory that torch holds but no longer uses back to the accelerator."""
    if device == "cpu":
        return
    import gc

    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif device == "mps":
        torch.mps.empty_cache()


def map_batches(
    work: Callable[[Item], Result], batches: Sequence[Item], device: str
) -> Iterator[Result]:
    """work(batch) for every batch, in order; in threads of one torch thread each on a CPU.

    The matrices of a small model are too small to share: two threads on one product mostly wait
    for each other. So each of the caller's torch threads takes batches of its own; the results
    are those of one thread, however many there are.

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
