"""`privsyn public`: public text made to look like the private, before any run and without users."""

from __future__ import annotations

import typer

from privsyn_flower.cli.errors import Commands

public_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Public text made to look like the private: filter, write, convert and mix it.",
)
