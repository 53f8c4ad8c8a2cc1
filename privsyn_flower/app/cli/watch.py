"""`privsyn watch`: the page of a run while the run lasts, in the browser of this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

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


def watch_command(folder: Path, port: int = 0, say: Callable[[str], None] = print) -> None:
    """Serve the page of a run on loopback until the run is over and nobody looks; or Ctrl-C.

    port: 0 for a free one. say: told the address, then how it ended. Raises ReportError for a
    folder that is no run's, and a port that is taken.
    """
    watched = folder.expanduser().absolute()
    read_run(watched)
    os.nice(NICENESS)
    from privsyn_flower.app.report.page import page

    def live(folders: Sequence[Path]) -> str:
        return page(folders, live=True)

    serve(watched, live, port, say)


def serve(
    folder: Path, make: Page, port: int, say: Callable[[str], None], idle: float = IDLE
) -> None:
    """As `watch_command`, of whatever `make` makes of the folder. idle: seconds without a look
    that end it once the run is over."""
    try:
        server = PageServer(LivePage(folder, make), port)
    except OSError as error:
        raise ReportError(
            f"port = {port}: {error.strerror}; choose another --port, or 0 for a free one"
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        say(server.address)
        while going_on(folder) or time.monotonic() - server.last_request < idle:
            time.sleep(min(1.0, idle / 4))
        say("ended: the run is over, and nobody looks")
    except KeyboardInterrupt:
        say("ended; the run itself was left alone")
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
