"""`privsyn models`: language models as folders that a run can use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privsyn_flower.app.cli.errors import Commands, failing

models_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Make a model folder of a GGUF file."
)

INTERRUPTED = "interrupted; nothing was kept, and the same command begins anew"


@models_app.callback()
def models() -> None:
    """A group, also while it has a single command."""


@models_app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(metavar="NAME_OR_PATH", help="smollm2, a GGUF file, or a folder with one."),
    ],
    cache: Annotated[
        Path | None, typer.Option(help="Cache folder, as the key cache of the runs that use it.")
    ] = None,
) -> None:
    """Make an ordinary transformers folder in the cache, once; the last line on stdout is it.

    smollm2 (SmolLM2-135M-Instruct, of the extra demo) is imported by a run that names it, too; of
    another file name the folder as models.generator. Nothing is fetched.
    """
    from privsyn_flower.app.cli.display import Display
    from privsyn_flower.common.files import default_cache
    from privsyn_flower.text.models.gguf_import import import_model
    from privsyn_flower.text.models.pretrained import ModelUnavailableError

    made = False

    with failing(ModelUnavailableError, interrupted=INTERRUPTED), Display() as display:

        def report(stage: str, done: float, total: float, note: str = "") -> None:
            nonlocal made
            made = True
            display.report(stage, done, total, note)

        place = (cache or default_cache()).expanduser().absolute()
        folder = import_model(source, place, f"privsyn models import {source}", report)
    if not made:
        typer.secho("it is there already", err=True)
    print(folder)
