"""`privsyn report RUN... --html FILE`: the report page, in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from privsyn_flower.cli.errors import fail
from privsyn_flower.report.html.charts import INSTALL, library
from privsyn_flower.report.page import write_page
from privsyn_flower.report.summaries import ReportError


def page_command(runs: Sequence[Path], file: Path, *, others: bool = False) -> None:
    """Write the page and print where it is. Ends with 2 for what is no run.

    others: another form was asked for, too, which is refused."""
    if others:
        raise fail("--html is a report of its own: leave out --checklist and --fact-sheet")
    try:
        found = write_page(runs, file.expanduser().absolute())
    except ReportError as error:
        raise fail(str(error)) from None
    if not library():
        typer.secho(f"the page has tables and no charts: for those, {INSTALL}", err=True)
    print(found)
