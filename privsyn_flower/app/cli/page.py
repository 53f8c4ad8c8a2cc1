"""`privsyn report RUN... --html FILE`: the report page, in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from privsyn_flower.app.cli.errors import fail
from privsyn_flower.app.report.html.library import INSTALL, library
from privsyn_flower.app.report.page import write_page
from privsyn_flower.app.report.summaries import ReportError


def page_command(runs: Sequence[Path], file: Path) -> None:
    """Write the page and print where it is. Ends with 2 for what is no run."""
    try:
        found = write_page(runs, file.expanduser().absolute())
    except ReportError as error:
        raise fail(str(error)) from None
    if not library():
        typer.secho(f"the page has tables and no charts: for those, {INSTALL}", err=True)
    print(found)
