"""`privsyn watch`: the page of a run while the run lasts, in the browser of this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from privsyn_flower.app.report.reading import read_run
from privsyn_flower.app.report.serving import PageServer, Unavailable
from privsyn_flower.app.report.summaries import ReportError
from privsyn_flower.runs import lock_holder

EVERY = 3.0  # seconds between two pages made, at least
SHARE = 0.1  # of a core, at most, for making pages
IDLE = 120.0  # seconds; browsers ask once a minute for a page in the background
NICENESS = 10  # a run beside it goes first

Page = Callable[[Sequence[Path]], str]
Stamp = tuple[tuple[str, int, int], ...]


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; 0: a free one.")] = 0,
) -> None:
    """The report page of a run while it lasts: prints an address for this machine's browser.

    Whoever has the address may look; nothing can be changed there. Ends when the run is over and
    nobody looks, or with Ctrl-C, which leaves the run alone.
    """
    from privsyn_flower.app.report.page import page

    folder = run.expanduser().absolute()
    read_run(folder)
    os.nice(NICENESS)
    serve(folder, partial(page, live=True), port)


def serve(folder: Path, make: Page, port: int, idle: float = IDLE) -> None:
    """What `make` makes of the folder, until its run is over and nobody looked for `idle` seconds;
    or Ctrl-C. Raises ReportError where the port is taken."""
    try:
        server = PageServer(LivePage(folder, make), port)
    except OSError as error:
        raise ReportError(
            f"port = {port}: {error.strerror}; choose another --port, or 0 for a free one"
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        typer.echo(server.address)
        while going_on(folder) or time.monotonic() - server.last_request < idle:
            time.sleep(min(1.0, idle / 4))
        typer.echo("ended: the run is over, and nobody looks")
    except KeyboardInterrupt:
        typer.echo("ended; the run itself was left alone")
    finally:
        server.shutdown()
        server.server_close()


def going_on(folder: Path) -> bool:
    """Whether a process has the run. One that cannot be told is taken for over."""
    try:
        return lock_holder(folder) is not None
    except OSError:
        return False


class LivePage:
    """The page as it is now: made again only when files changed, and never often enough to cost a
    run much. Threads may call it."""

    def __init__(self, folder: Path, make: Page) -> None:
        self.folder, self.make = folder, make
        self._lock = threading.Lock()
        self._made, self._stamp = "", Stamp()
        self._next = 0.0  # when it may be made again

    def __call__(self) -> str:
        """The page. Raises Unavailable while none can be made."""
        with self._lock:
            if time.monotonic() < self._next:
                return self._made
            begin = time.thread_time()
            try:
                stamp, first = stamp_of(self.folder), not self._made
                if stamp != self._stamp:
                    self._made, self._stamp = self.make([self.folder]), stamp
            except (OSError, ReportError) as error:
                raise Unavailable(f"{self.folder.name} cannot be shown now: {error}") from None
            spent = 0.0 if first else time.thread_time() - begin  # the first loads libraries
            self._next = time.monotonic() + max(EVERY, spent / SHARE)
            return self._made


def stamp_of(folder: Path) -> Stamp:
    """What changes when something that a page shows does: names, times and sizes of files, and
    whether the run goes on. Raises OSError for a folder that is gone."""
    places = [folder, folder / "checkpoints", *sorted((folder / "evaluations").glob("*/"))]
    found = [("", int(going_on(folder)), 0)]
    for place in places:
        if place != folder and not place.is_dir():
            continue
        with os.scandir(place) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # replaced meanwhile
                    facts = entry.stat()
                    found.append((entry.path, facts.st_mtime_ns, facts.st_size))
    return tuple(sorted(found))
