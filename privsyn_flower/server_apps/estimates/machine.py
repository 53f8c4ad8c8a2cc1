"""This machine: its memory, how fast it multiplies and copies, and what was timed on it before.

What is timed is made-up text through public models; it is kept in `speeds.json` in the cache
folder, by sizes of models, so that nothing of a run is in that file.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.files import locked, replace_private
from privsyn_flower.text.embedders import can_import
from privsyn_flower.text.models.devices import cpu_workers, resolve_device
from privsyn_flower.text.models.gpu import gpu_facts, gpu_rates

FILE = "speeds.json"
FORMAT = 1  # raise it when what is measured changes
CPU_SIZE, CPU_COPY = 512, 1 << 23  # rows of the product; entries copied
UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Machine:
    """name: its processor or GPU. workers: side by side on a CPU. memory: bytes where models are;
    main_memory: of the machine. operations: floating-point ones a second by bytes of an entry ("4",
    "2"), bandwidth: bytes a second from memory, both of the best case. speeds: tokens a second of
    work that was timed here (`timing.key`)."""

    name: str
    device: str
    workers: int
    memory: int
    main_memory: int
    operations: Mapping[str, float]
    bandwidth: float
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What must be the same for its figures to hold."""
        return f"{FORMAT} {self.name} {self.device} {self.workers} workers"

    def told(self) -> str:
        """In a line, with what the estimates rest on."""
        rate = self.operations["2" if self.device.startswith("cuda") else "4"]
        where = f", {self.workers} workers" if self.device == "cpu" else f" ({self.device})"
        timed = f"; {len(self.speeds)} kinds of work timed" if self.speeds else ""
        return (
            f"{self.name}{where}, {self.memory / 2**30:.0f} GiB; measured: {rate / 1e9:,.0f} "
            f"GFLOP/s in products, {self.bandwidth / 1e9:,.0f} GB/s of memory{timed}"
        )


def this_machine(cache: Path, device: str, *, needs_torch: bool = True) -> Machine:
    """This machine as the cache knows it, else measured in about a quarter of a second.

    device: as `models.device` has it. needs_torch: False where nothing that is estimated uses it,
    so that it is not loaded to be asked for a GPU. Raises ValueError or RuntimeError for a device
    that is none, or is not here.
    """
    where = device
    if device == "auto" and not (needs_torch and can_import("torch")):
        where = "cpu"
    where = resolve_device(where)
    main = main_memory()
    if where.startswith("cuda"):
        name, memory = gpu_facts(where)
    else:
        name, memory = _processor(), main
    found = Machine(name, where, cpu_workers(), memory, main, {}, 0.0)
    stored = _stored(cache).get(found.identity)
    if stored is not None:
        return replace(found, **stored)
    operations, bandwidth = gpu_rates(where) if where.startswith("cuda") else _probe_cpu()
    found = replace(found, operations=operations, bandwidth=bandwidth)
    remember(cache, found)
    return found


def remember(cache: Path, machine: Machine) -> None:
    """Keep a machine's figures, beside those of others; a cache that takes none has none."""
    path = cache / FILE
    figures = {name: asdict(machine)[name] for name in ("operations", "bandwidth", "speeds")}
    try:
        with locked(path.with_suffix(".lock")):
            known = _stored(cache)
            before = known.get(machine.identity, {}).get("speeds", {})
            figures["speeds"] = {**before, **machine.speeds}
            known[machine.identity] = figures
            replace_private(path, json.dumps(known, indent=1).encode())
    except OSError:
        return


def _stored(cache: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((cache / FILE).read_text("utf-8"))
        return {
            str(name): {
                "operations": {
                    "4": _rate(one["operations"]["4"]),
                    **{str(k): _rate(v) for k, v in one["operations"].items()},
                },
                "bandwidth": _rate(one["bandwidth"]),
                "speeds": {str(k): _rate(v) for k, v in one["speeds"].items()},
            }
            for name, one in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _rate(value: Any) -> float:
    """A stored figure that can be divided by. Raises ValueError, TypeError."""
    rate = float(value)
    if not 0 < rate < math.inf:
        raise ValueError(f"a rate of {rate}")
    return rate


def main_memory() -> int:
    """Bytes that this process may use at most: the machine's, or its container's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text("utf-8").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < UNLIMITED:
            return min(total, int(text))
    return total


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def best_of(work: Callable[[], object], clock: Callable[[], float], repeats: int = 5) -> float:
    """Seconds of the fastest of several runs: what is measured is the machine, not its load."""
    seconds = []
    for _ in range(repeats):
        start = clock()
        work()
        seconds.append(clock() - start)
    return max(min(seconds), 1e-9)


def _probe_cpu() -> tuple[dict[str, float], float]:
    """Operations and bytes a second, of products and copies in float32.

    Of products by the seconds of all cores, so that other work just now takes nothing off.
    """
    one = np.ones((CPU_SIZE, CPU_SIZE), dtype=np.float32)
    result = one @ one
    spent = best_of(lambda: np.matmul(one, one, out=result), time.process_time)
    source = np.ones(CPU_COPY, dtype=np.float32)
    target = source.copy()
    copied = best_of(lambda: np.copyto(target, source), time.perf_counter)
    rate = 2.0 * CPU_SIZE**3 * cpu_workers() / spent
    return {"4": rate, "2": rate}, 2 * source.nbytes / copied
