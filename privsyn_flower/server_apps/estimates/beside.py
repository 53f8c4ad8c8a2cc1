"""How many of a benchmark's fine-tunings go on at once: for the run, its estimates and the plan."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.server_apps.estimates.machine import Machine, this_machine
from privsyn_flower.server_apps.estimates.memory import memory
from privsyn_flower.server_apps.estimates.shapes import Shape, shape_of
from privsyn_flower.server_apps.estimates.work import Task, operations

# Of a process that has imported torch and transformers, on a core of 2025 (`benchmarks/busy.py`).
PROCESS, START = 600 << 20, 5.0  # bytes; seconds
WORTH = 3e11  # operations that take longer than START on such a core
SHARE = 0.5  # of the machine's memory, at most: this process, Flower and the data have the rest


def at_once(tasks: Sequence[Task], shape: Shape, machine: Machine) -> int:
    """Of fine-tunings that are `apart`, how many this machine does side by side.

    On a CPU as many as there are workers of one thread, if they fit into its memory and one of them
    takes longer than to start a process for it. A GPU has one: it is busy with that.
    """
    if machine.device != "cpu" or not _worth(tasks, shape):
        return 1
    room = int(SHARE * machine.main_memory) // max(need(task, shape) for task in tasks)
    return max(1, min(machine.workers, sum(task.times for task in tasks), room))


def need(task: Task, shape: Shape) -> int:
    """Bytes of a process of one of them."""
    return PROCESS + memory(task, shape, "cpu")


def together(seconds: Sequence[float], count: int) -> float:
    """Seconds of pieces of work by so many processes at once, each started for its piece and taken
    in this order."""
    busy = [0.0] * count
    for one in seconds:
        heapq.heapreplace(busy, busy[0] + START + one)
    return max(busy)


def here_at_once(config: RunConfig, tasks: Sequence[Task]) -> int:
    """`at_once` of a run's tasks on the machine that it runs on."""
    apart, shape = [task for task in tasks if task.apart], shape_of("downstream", config)
    if shape is None or not _worth(apart, shape):
        return 1
    return at_once(apart, shape, this_machine(cache_folder(config), config.models.device))


def _worth(tasks: Sequence[Task], shape: Shape) -> bool:
    return any(operations(task.once(), shape) >= WORTH for task in tasks)
