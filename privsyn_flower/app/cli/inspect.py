"""`privsyn inspect`: what a finished run's synthetic text repeats of private users' texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from privsyn_flower.app.cli.errors import AsJson, failing
from privsyn_flower.common.terminal import escaped


def inspect(
    run: Annotated[Path, typer.Argument(help="Folder of a run with synthetic text.")],
    against: Annotated[
        Path | None,
        typer.Option(
            help="Private users' texts (jsonl, csv, parquet); default: a benchmark run's own users."
        ),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="The same of other people, whom the run has not asked.")
    ] = None,
    user_column: Annotated[
        str | None, typer.Option(help="Of both files; default: the run's data.user-column.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Of both files; default: the run's data.text-column.")
    ] = None,
    drawn_at_random: Annotated[
        bool,
        typer.Option(
            help="Who was asked was drawn at random from both files: they may bound epsilon."
        ),
    ] = False,
    embedder: Annotated[str, typer.Option(help="Instead of the run's models.embedder.")] = "",
    as_json: AsJson = False,
) -> None:
    """What a run tells of its private users: copies, replayed values, and who took part.

    For the owner of the private text: what it prints is PRIVATE and not covered by epsilon. Kept in
    RUN/private/inspect.json, which privsyn publish reads and never publishes; without --json that
    path is the last line on stdout. Ends with 1 when the run's claim is contradicted.
    """
    from privsyn_flower.app import inspect as inspection
    from privsyn_flower.app.cli.display import Display
    from privsyn_flower.app.inspect.membership import contradiction
    from privsyn_flower.text import load_embedder
    from privsyn_flower.text.models.pretrained import ModelUnavailableError

    with failing(ValueError, ModelUnavailableError):
        with Display() as display:
            texts = inspection.read_texts(
                run,
                lambda name, device: load_embedder(name, device, display.report),
                against=against,
                held_out=held_out,
                columns=(user_column, text_column),
                embedder=embedder,
                at_random=drawn_at_random,
            )
            found = inspection.inspect(texts, display.report)
        path = inspection.save(run, found)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(escaped(inspection.described(found)))
        print(path)
    if contradiction(found["membership"]):
        raise typer.Exit(1)
