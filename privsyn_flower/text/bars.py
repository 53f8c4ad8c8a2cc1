"""One way to show progress: a bar on stderr, the run's own events, or nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from privsyn_flower.progress import Progress

QUIET_BELOW = 300  # items; fewer are done before a bar would be read


@contextmanager
def bar(progress: bool | Progress, stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields `advance(count)`.

    progress: True draws a tqdm bar on stderr (when tqdm is installed and there is enough to do),
    False shows nothing, and a `Progress` is called as progress(stage, done, total).
    """
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        if not isinstance(progress, bool):
            progress(stage, done, total)

    if progress is not True or total < QUIET_BELOW or not importlib.util.find_spec("tqdm"):
        yield report
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=stage, unit="text") as drawn:

        def draw(count: int) -> None:
            drawn.update(count)

        yield draw
