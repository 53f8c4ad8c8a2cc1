"""What a GPU is called, what memory it has, and how fast it multiplies."""

from __future__ import annotations

import time

SIZE, REPEATS = 8192, 5  # rows of the product


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
