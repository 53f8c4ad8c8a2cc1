"""The ServerApp: reads the run config, holds the run folder, and runs the method."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privsyn_flower.app.local.ray_cluster import NoCluster, check_here
from privsyn_flower.app.report.page import REPORT, write_page
from privsyn_flower.app.report.summaries import claim, read_summary, unusable_lines
from privsyn_flower.common.files import write_atomic
from privsyn_flower.config import RunConfig, cache_folder, check_paths
from privsyn_flower.config.api import configured
from privsyn_flower.runs import RunFolder, RunLocked, complete, failure
from privsyn_flower.server_apps.changes import go_by
from privsyn_flower.server_apps.public_text import is_deployment
from privsyn_flower.server_apps.run import Run
from privsyn_flower.strategies.engine.arguments import print_last

app = ServerApp()
logger = logging.getLogger("privsyn_flower")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run (or resume) what the run config describes; its error text lands in error.txt."""
    with configured():  # errors name its keys
        _run(grid, context)


def _run(grid: Grid, context: Context) -> None:
    config = RunConfig.from_flat(context.run_config)
    check_paths(config)
    default = cache_folder(config) / "runs" / f"{config.method}-{context.run_id}"
    folder = RunFolder(Path(config.run_folder).expanduser() if config.run_folder else default)
    _log_to_stderr()
    logger.info("run folder: %s", folder.path)
    with _reported(folder), folder.lock():
        try:
            go_by(folder, config)
            if complete(folder.path):
                logger.warning("%s is complete already: nobody is asked again", folder.path)
            if not is_deployment(config) and (cluster := check_here(config)):
                logger.info("%s", cluster)
            Run(config, grid, folder).run()
            _conclude(folder.path)
        except Exception as error:
            _tell(folder, error)
            if isinstance(error, NoCluster):  # where Flower's main thread tries on, for minutes
                os.kill(os.getpid(), signal.SIGTERM)
            raise


@contextmanager
def _reported(folder: RunFolder) -> Iterator[None]:
    """Write the run's page at its end, also at a bad one; a run fails by no page."""
    try:
        yield
    except RunLocked:  # another's run
        raise
    except Exception:
        _report(folder)
        raise
    _report(folder)


def _conclude(folder: Path) -> None:
    """The last lines of Flower's log: of a result of no use why, its claim, and where it is."""
    summary = read_summary(folder)
    for line in unusable_lines(summary):
        logger.info("%s", line)
    for about, text in claim(summary):
        logger.info("%s: %s", about, text)
    logger.info("result: %s", folder)


def _report(folder: RunFolder) -> None:
    try:
        write_page([folder.path], folder.path / REPORT)
    except Exception as error:
        logger.warning("no %s: %s: %s", REPORT, type(error).__name__, error)


def _tell(folder: RunFolder, error: Exception) -> None:
    """Why the run failed: on disk, and where that is full, at the end of Flower's own log."""
    text = failure(error, folder.path)
    print_last(text)
    for name, content in (("error", f"{text}\n"), ("traceback", traceback.format_exc())):
        with suppress(OSError):
            write_atomic(folder.path / f"{name}.txt", content.encode())


def _log_to_stderr() -> None:
    """Our own lines only: the root logger would repeat every HTTP request of Flower's."""
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("privsyn %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
