"""The device a model runs on, its threads and speed; `cpu` is answered without importing torch."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

SIZE, REPEATS = 8192, 5  # rows of the product by which a GPU is measured
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


def training_device(name: str = "auto") -> str:
    """`resolve_device` for transformers' Trainer, which takes the first visible GPU.

    Raises ValueError for another one.
    """
    found = resolve_device(name)
    if found.partition(":")[2] not in {"", "0"}:
        raise ValueError(
            f"models.device = {name!r}: training runs on the first visible GPU; set "
            "CUDA_VISIBLE_DEVICES and models.device = 'cuda'"
        )
    return found


def empty_cache(device: str) -> None:
    """Give memory that torch holds but no longer uses back to the accelerator, or the system."""
    if device == "cpu":
        # Batches of many sizes leave pieces that glibc keeps: 1.2 GB after 256 texts of SmolLM2.
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
        return
    import gc

    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif device == "mps":
        torch.mps.empty_cache()


def main_memory() -> int:
    """Bytes that this process may use at most: the machine's, or its container's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text("utf-8").strip()
        except OSError:
            continue
        if text.isdigit():  # a number that is larger than any memory stands for no limit
            return min(total, int(text))
    return total


def free_memory() -> int:
    """Bytes of main memory that could be had just now, as far as the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    told = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return min(1024 * int(next(told, "0")) or main_memory(), main_memory())


def multiplies_bfloat16(device: str) -> bool:
    """Whether a CPU has matrix units (AMX) for bfloat16, ten times as fast as its float32; without
    them it is no faster, or several times slower."""
    if device != "cpu":
        return False
    import torch

    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def cpu_workers() -> int:
    """Side by side on a CPU: OMP_NUM_THREADS, or the cores of this process; MOST_WORKERS."""
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if told.isdigit() and int(told):
        return min(int(told), MOST_WORKERS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_WORKERS)


@contextmanager
def one_worker() -> Iterator[None]:
    """Inside, torch computes with what one worker has of its threads: one, on a few cores.

    The matrices of a small model are too small to share: two threads on one product mostly wait
    for each other, and spin while they do. Where other work takes a core they never meet.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(_threads_each(threads))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def loopback_only() -> dict[str, str]:
    """Variables by which processes of one machine that train together exchange gradients on
    loopback alone, where the interface's name is known."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return dict.fromkeys(names, "lo") if sys.platform == "linux" else {}


def map_batches(
    work: Callable[[Item], Result], batches: Sequence[Item], device: str
) -> Iterator[Result]:
    """work(batch) for every batch, in order; on a CPU by workers of one torch thread each.

    The results are those of one worker, however many there are. `work` must not change shared
    state. More torch threads than MOST_WORKERS are shared among the workers; the caller's number
    of torch threads is restored.
    """
    if device != "cpu":
        yield from map(work, batches)
        return
    import torch

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(
        max(1, min(cpu_workers(), len(batches))),
        initializer=torch.set_num_threads,
        initargs=(_threads_each(threads),),
    )
    try:
        yield from pool.map(work, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _threads_each(threads: int) -> int:
    return max(1, threads // cpu_workers())


def gpu_facts(device: str) -> tuple[str, int]:
    """Name and bytes of memory of a CUDA device."""
    import torch

    facts = torch.cuda.get_device_properties(torch.device(device))
    return str(facts.name), int(facts.total_memory)


def gpu_rate(device: str) -> float:
    """Operations a second of products in bfloat16, the best of a few."""
    import torch

    one = torch.ones((SIZE, SIZE), dtype=torch.bfloat16, device=device)
    result, seconds = torch.empty_like(one), list[float]()
    for _ in range(REPEATS + 1):  # the first one gets ready
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        torch.matmul(one, one, out=result)
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2.0 * SIZE**3 / min(seconds[1:])
