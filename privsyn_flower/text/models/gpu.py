"""What a GPU is called, what memory it has, and how fast it multiplies and copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SIZE, COPY = 8192, 1 << 28  # rows of the product; bytes copied
REPEATS = 5


def gpu_facts(device: str) -> tuple[str, int]:
    """Name and bytes of memory of a CUDA device."""
    import torch

    facts = torch.cuda.get_device_properties(torch.device(device))
    return str(facts.name), int(facts.total_memory)


def gpu_rates(device: str) -> tuple[dict[str, float], float]:
    """Operations a second by bytes of an entry ("4" float32, "2" bfloat16), and bytes a second that
    are read or written in a copy; each the best of a few."""
    import torch

    def seconds(work: Callable[[], object]) -> float:
        found = list[float]()
        for _ in range(REPEATS + 1):  # the first one gets ready
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            work()
            torch.cuda.synchronize(device)
            found.append(time.perf_counter() - start)
        return min(found[1:])

    def rate(dtype: torch.dtype) -> float:
        one = torch.ones((SIZE, SIZE), dtype=dtype, device=device)
        result = torch.empty_like(one)
        return 2.0 * SIZE**3 / seconds(lambda: torch.matmul(one, one, out=result))

    rates = {"4": rate(torch.float32), "2": rate(torch.bfloat16)}
    source = torch.ones(COPY, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return rates, 2.0 * COPY / seconds(lambda: target.copy_(source))
