"""`privsyn embedder`: a sentence encoder as a folder that devices run without torch; `privsyn
models`: language models as folders that a run can use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower.app.cli.errors import AsJson, failing, group

embedder_app = group("Export an embedder for devices, or look at one.")

Name = Annotated[str, typer.Argument(help="As models.embedder: minilm, a folder, a hub name.")]


@embedder_app.command()
def export(
    name: Name,
    folder: Annotated[Path, typer.Argument(help="The new folder, to be copied to the devices.")],
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Weights in 8 bits: another embedder, which server and nodes must share."
        ),
    ] = False,
) -> None:
    """Make FOLDER of the embedder NAME; nodes name it as `embedder`, runs as models.embedder.

    Without --int8 it has the fingerprint of NAME: a server that embeds by NAME and nodes that
    embed by FOLDER agree. Needs the extras server and export; devices need edge alone.
    """
    from privsyn_flower.app.public.source import carried, hand_on
    from privsyn_flower.text.embedders import model_folder
    from privsyn_flower.text.export import export_embedder

    folder = folder.expanduser()
    with failing(ValueError):
        _libraries("torch", "sentence_transformers", "onnx", "onnxscript")
        facts = export_embedder(name, folder, int8=int8)
        hand_on(carried(model_folder(name)), folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    typer.echo(f"{folder}: {size:.0f} MB, {facts['bits']}-bit, {facts['dimension']} dimensions")
    typer.echo(f"fingerprint = {facts['fingerprint']}")


@embedder_app.command()
def show(
    name: Name,
    as_json: AsJson = False,
) -> None:
    """What NAME is: its fingerprint, which questions and policies name, libraries and files.

    Loads no model; a hub name is fetched.
    """
    from privsyn_flower.text.embedders import (
        embedder_fingerprint,
        embedder_libraries,
        model_folder,
        ngram_dimension,
    )
    from privsyn_flower.text.fingerprints import FACTS, read_facts

    with failing(ValueError):
        dimension = ngram_dimension(name)
        facts: dict[str, Any] = {
            "fingerprint": embedder_fingerprint(name),
            "libraries": list(embedder_libraries(name)),
        }
        if dimension is None:
            folder = model_folder(name)
            facts["folder"] = str(folder)
            if (folder / FACTS).is_file():
                exported = read_facts(folder)
                dimension = int(exported["dimension"])
                facts["files"] = exported["files"]
        if dimension is not None:  # of others only the loaded model knows
            facts["dimension"] = dimension
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        typer.echo(f"{key} = {value if isinstance(value, str) else json.dumps(value)}")


def _libraries(*names: str) -> None:
    """Raises ModuleNotFoundError that names the extras, before seconds of loading."""
    from privsyn_flower.text.embedders import can_import

    for name in names:
        if not can_import(name):
            way = "pip install 'privsyn-flower[server,export]'"
            raise ModuleNotFoundError(f"{name} is not installed: {way}", name=name)


models_app = group("Make a model folder of a GGUF file.")

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
    from privsyn_flower.app.public.source import carried, hand_on
    from privsyn_flower.common.files import default_cache
    from privsyn_flower.text.models.gguf import import_model

    made = False

    with failing(interrupted=INTERRUPTED), Display() as display:

        def report(stage: str, done: float, total: float, note: str = "") -> None:
            nonlocal made
            made = True
            display.report(stage, done, total, note)

        place = (cache or default_cache()).expanduser().absolute()
        folder = import_model(source, place, f"privsyn models import {source}", report)
        if (given := Path(source).expanduser()).exists():  # else a packaged model's name
            hand_on(carried(given), folder)
    if not made:
        typer.secho("it is there already", err=True)
    print(folder)
