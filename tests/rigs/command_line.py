"""`privsyn` in this process."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from privsyn_flower.app.cli.main import app


def privsyn(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])
