"""The tasks of a stage together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from privsyn_flower.config import RunConfig
from privsyn_flower.server_apps.estimates.beside import at_once, together
from privsyn_flower.server_apps.estimates.machine import Machine
from privsyn_flower.server_apps.estimates.shapes import Shape, shape_of
from privsyn_flower.server_apps.estimates.timing import estimate
from privsyn_flower.server_apps.estimates.work import Task, operations
from privsyn_flower.server_apps.public_text import is_deployment

Shapes = Mapping[str, Shape | None]
ROUNDS = "rounds"


@dataclass(frozen=True)
class Stage:
    """server, nodes: seconds, of the second where nodes are simulated here. first: of round 1,
    both. timed: all of it by such work on this machine; else no less than that. unknown: tasks
    whose model is of unknown size, or elsewhere. at_once: of the tasks that are `apart`."""

    server: float
    nodes: float
    first: float
    timed: bool
    operations: float
    unknown: tuple[Task, ...] = ()
    at_once: int = 1

    @property
    def seconds(self) -> float:
        """All that is known, where the nodes are simulated."""
        return self.server + self.nodes


def shapes_of(config: RunConfig) -> Shapes:
    """The models of a configuration by their keys, those it does not use among them."""
    return {kind: shape_of(kind, config) for kind in type(config.models).kinds}


def done_here(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """Those that this machine does: real nodes do their own."""
    deployed = is_deployment(config)
    return [task for task in tasks if not (task.nodes and deployed)]


def elsewhere(config: RunConfig, task: Task) -> bool:
    """Whether a running server does the work, of which nothing is known here."""
    return task.kind == "generation" and bool(config.generation.base_url)


def stage_of(config: RunConfig, tasks: Sequence[Task], shapes: Shapes, machine: Machine) -> Stage:
    """What the tasks of one stage come to."""
    server = nodes = first = work = 0.0
    timed, unknown = True, list[Task]()
    apart, pieces, downstream = list[Task](), list[float](), shapes.get("downstream")
    for task in tasks:
        shape = shapes.get(task.model)
        if shape is None or elsewhere(config, task):
            unknown.append(task)
            continue
        found = estimate(task, shape, machine)
        timed = timed and found.timed
        work += operations(task, shape)
        first += estimate(replace(task, times=1), shape, machine).seconds
        if task.apart:
            apart.append(task)
            pieces += [found.seconds / task.times] * task.times
        elif task.nodes:
            nodes += found.seconds
        else:
            server += found.seconds
    count = at_once(apart, downstream, machine) if apart and downstream else 1
    server += together(pieces, count) if count > 1 else sum(pieces)
    return Stage(server, nodes, first, timed, work, tuple(unknown), count)


def spoken(seconds: float) -> str:
    """A time as one says it."""
    units = ((86400 * 365.25, "years"), (86400.0, "days"), (3600.0, "h"), (60.0, "min"))
    for size, unit in units:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "less than a second"
