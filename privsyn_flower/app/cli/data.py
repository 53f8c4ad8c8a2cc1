"""`privsyn data`: look at a data file before a run, and make the papers' data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower.app.cli.errors import AsJson, fail, failing, group
from privsyn_flower.common.files import DataError
from privsyn_flower.data.values import Columns
from privsyn_flower.runs import read_jsonl

data_app = group("Look at data before a run; make the papers' data.")
UserColumn = Annotated[str, typer.Option(help="'': every row is a user.")]


@data_app.command()
def check(
    file: Annotated[Path, typer.Argument(help="jsonl, csv, tsv or parquet")],
    user_column: UserColumn = "user_id",
    text_column: Annotated[str, typer.Option()] = "text",
    label_column: Annotated[str, typer.Option()] = "",
    date_column: Annotated[str, typer.Option()] = "",
    embedder: Annotated[str, typer.Option(help="models.embedder of the run.")] = "minilm",
    strict: Annotated[bool, typer.Option(help="Exit with 1 for any finding.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain what a node would skip or repair in FILE, and how large it is; exits 1 when no run
    would take it.

    Counts are private: they are for the file's owner. Ends with a configuration to start from.
    """
    from privsyn_flower.data import survey
    from privsyn_flower.text.embedders import longer_than_read

    columns = Columns(user_column, text_column, label_column, date_column)
    try:
        found = survey(file, columns, lambda texts: longer_than_read(embedder, texts))
    except DataError as error:
        typer.secho(f"error: no run takes this file: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:  # the embedder's name
        raise fail(str(error)) from None
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        typer.echo(found.described())
        if starter := found.starter():
            typer.echo(f"\nto start with (privsyn run FILE.toml, in simulation):\n\n{starter}")
    if found.refused:
        typer.secho(f"error: no run takes this file: {found.refused}", err=True)
    if found.refused or (strict and found.findings):
        raise typer.Exit(1)


@data_app.command()
def statistics(
    place: Annotated[str, typer.Argument(help="jsonl, csv, tsv or parquet, or hub:NAME#SPLIT")],
    user_column: UserColumn = "user_id",
    text_column: Annotated[str, typer.Option()] = "text",
    label_column: Annotated[str, typer.Option()] = "",
    tokenizer: Annotated[
        str, typer.Option(help="Folder or hub name of a model whose tokens are counted.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Texts a user, and words and tokens a text and a user, as quantiles.

    They are exact figures of the text: of private text they are for its owner, and no epsilon
    covers them. They are printed, and kept nowhere.
    """
    from privsyn_flower.data.surveys import statistics as measured
    from privsyn_flower.text.models.batches import encode
    from privsyn_flower.text.models.pretrained import load_tokenizer

    with failing(ValueError, RuntimeError):
        model = load_tokenizer(tokenizer, "--tokenizer") if tokenizer else None
        tokens = model and (lambda texts: [len(row) for row in encode(model, texts, 1 << 31)])
        found = measured(place, Columns(user_column, text_column, label_column), tokens)
    typer.secho("figures of the text itself: if it is private, so are they", err=True)
    typer.echo(json.dumps(found) if as_json else _table(found))


def _table(found: dict[str, Any]) -> str:
    sizes = {name: own for name, own in found.items() if isinstance(own, dict) and own}
    counts = [f"{name} {count:,}" for name, count in found.items() if not isinstance(count, dict)]
    lines = [", ".join(counts)]
    if sizes:
        names = list(next(iter(sizes.values())))
        lines.append(f"{'':16}" + "".join(f"{name:>10}" for name in names))
    for name, own in sizes.items():
        told = "".join(f"{value:>10,.1f}" for value in own.values())
        lines.append(f"{name.replace('_', ' '):16}{told}")
    return "\n".join(lines)


@data_app.command()
def clusters(
    place: Annotated[str, typer.Argument(help="hub:NAME#SPLIT, or a file with --public")],
    user_column: UserColumn = "user_id",
    text_column: Annotated[str, typer.Option()] = "text",
    label_column: Annotated[str, typer.Option(help="A colour for each label.")] = "",
    beside: Annotated[
        Path | None, typer.Option(help="jsonl of further texts: a run's synthetic.jsonl.")
    ] = None,
    embedder: Annotated[str, typer.Option(help="As models.embedder.")] = "minilm",
    texts: Annotated[int, typer.Option(min=8, help="Drawn at random of all.")] = 2000,
    seed: Annotated[int, typer.Option()] = 0,
    public: Annotated[bool, typer.Option(help="The file's text is public.")] = False,
    picture: Annotated[Path, typer.Option()] = Path("clusters.png"),
) -> None:
    """Draw where the texts of a PUBLIC data set lie, by t-SNE of their embeddings."""
    from privsyn_flower.data.text_files import grouped_by_label
    from privsyn_flower.evaluation.drawing import chosen, draw_clusters
    from privsyn_flower.text.embedders import load_embedder

    if not (public or place.startswith("hub:")):
        raise fail(
            f"PLACE = {place!r}: a picture shows where each text lies, and a file may be private; "
            "if its text is public, as a benchmark's is, add --public"
        )
    with failing(ValueError, RuntimeError, MemoryError):
        groups = grouped_by_label(place, Columns(user_column, text_column, label_column))
        if beside is not None:
            groups[str(beside)] = [row["text"] for row in read_jsonl(beside)]
        shown = chosen(groups, texts, seed)
        caption = f"{place}: t-SNE of {embedder}"
        draw_clusters(shown, load_embedder(embedder), picture, caption=caption)
    for name, own in shown.items():
        typer.echo(f"{name}: {len(own):,} of {len(groups[name]):,} texts")
    typer.echo(str(picture))


@data_app.command("c4-sites")
def c4_sites(
    folder: Annotated[Path, typer.Argument()] = Path("data/pretext"),
    lines: Annotated[int, typer.Option(min=1, help="Lines of each site.")] = 12_000,
    public: Annotated[int, typer.Option(min=1, help="Pages of no site.")] = 100_000,
) -> None:
    """Make PrE-Text's JOBS, FORUMS and MICROBLOG and its public text of c4, as its author did.

    c4 is streamed from the hub and shuffled (seed 100) in a buffer of a million pages, about 3 GB.
    """
    from privsyn_flower.data import recipes

    with failing(ValueError, RuntimeError, interrupted="interrupted; nothing was written"):
        counts = recipes.c4_sites(recipes.c4_stream(), folder, lines, public)
    _written(folder, counts)


@data_app.command("aug-pe")
def aug_pe(
    source: Annotated[Path, typer.Argument(help="The folder data of Aug-PE's repository.")],
    folder: Annotated[Path, typer.Argument()] = Path("data/popri"),
) -> None:
    """Make PubMed, OpenReview and Yelp of the files of Aug-PE's authors that are there."""
    from privsyn_flower.data import recipes

    with failing(ValueError, RuntimeError):
        counts = recipes.aug_pe(source, folder)
    _written(folder, counts)


def _written(folder: Path, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        typer.echo(f"{folder / name}.jsonl: {count:,} texts")
