"""`privsyn publish`: a finished run's text or model as a folder with a card, and to the hub; and
`privsyn inspect`: what a run tells of its private users."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from privsyn_flower.app.cli.errors import AsJson, fail, failing
from privsyn_flower.app.report.publishing.product import (
    TEXT,
    Product,
    PublishError,
    is_own_file,
    read_product,
)
from privsyn_flower.app.report.summaries import ReportError, unusable_lines
from privsyn_flower.common.files import file_digest
from privsyn_flower.common.terminal import escaped
from privsyn_flower.config import ConfigError

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
Replayed = Literal["refuse", "publish", "drop"]  # texts in which `privsyn inspect` found something
ADVICE = (
    "Leaving texts out by private text is NOT covered by epsilon: rather lower epsilon, or filter "
    "all text by a public rule (every e-mail address, say)"
)


def publish(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write: a Hugging Face repository.")],
    model: Annotated[bool, typer.Option("--model", help="The model, where there is text.")] = False,
    licence: Annotated[
        str, typer.Option("--license", help="The hub's name of a licence, as cc-by-4.0.")
    ] = "",
    benchmark_figures: Annotated[
        bool,
        typer.Option(
            "--benchmark-figures", help="Include them (from private text, without noise)."
        ),
    ] = False,
    no_privacy_claimed: Annotated[
        bool, typer.Option("--no-privacy-claimed", help="Publish what no privacy is claimed for.")
    ] = False,
    with_replayed: Annotated[
        bool, typer.Option("--with-found", help="Also texts with what privsyn inspect found.")
    ] = False,
    drop_replayed: Annotated[
        bool,
        typer.Option(
            "--drop-found",
            help="Leave these out; the choice reads private text: no privacy claimed.",
        ),
    ] = False,
    push: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Upload it to the hub.")] = "",
    public: Annotated[
        bool, typer.Option("--public", help="With --push: for everyone; else private.")
    ] = False,
) -> None:
    """A finished run's text or model as a Hugging Face folder, with a card that explains epsilon.

    Refuses what is not finished, what no privacy is claimed for, and text in which privsyn inspect
    found values of one private user. The last line on stdout is
    the folder, or with --push the repository's address.
    """
    from privsyn_flower.app.report.publishing.card import Facts
    from privsyn_flower.app.report.publishing.folder import publish as write
    from privsyn_flower.app.report.publishing.folder import push as upload
    from privsyn_flower.server_apps.methods import recipe_of

    if with_replayed and drop_replayed:
        raise fail("--with-found publishes what --drop-found leaves out: name one of them")
    replayed: Replayed = "publish" if with_replayed else "drop" if drop_replayed else "refuse"
    with failing(ReportError, ConfigError, code=1):
        _check(licence, push, public)
        product = inspected(read_product(run, model=model, anyway=no_privacy_claimed), replayed)
        loaded = recipe_of(product.config).loads(product.config)
        facts = Facts(loaded, name=push, licence=licence, figures=benchmark_figures)
        place = str(write(product, folder, facts))
        if push:
            place = upload(Path(place), push, product.kind, public=public)
    for note in _notes(product, licence, benchmark_figures):
        typer.secho(note, err=True)
    print(place)


def _notes(product: Product, licence: str, figures: bool) -> Iterator[str]:
    """What to tell of what was published."""
    yield from unusable_lines(product.summary)
    if product.without_seeds:
        yield f"{len(product.left_out):,} texts and the seeds are left out. {ADVICE}"
    if product.unclaimed:
        yield f"no privacy is claimed for it: {product.unclaimed}"
    if not figures and product.summary.get("benchmark"):
        yield (
            "the benchmark's figures are left out: they were measured on private text, and epsilon "
            "does not cover them"
        )
    if not licence:
        yield "its licence is 'unknown': name one with --license"


def inspected(product: Product, replayed: Replayed) -> Product:
    """The product; with "drop", without the texts in which `privsyn inspect` found something.

    Raises PublishError, unless with "publish", where what was inspected is another text or its file
    is damaged; with "refuse" for such texts; with "drop" for a model, or without an inspection.
    """
    from privsyn_flower.app.inspect import FILE
    from privsyn_flower.text.fingerprints import folder_fingerprint

    if product.config.data.canaries and replayed != "publish":
        raise PublishError(
            f"data.canaries = {product.config.data.canaries}: users were made up for an audit, and "
            "the result is not for release (--with-found publishes it all the same)"
        )
    path, text = product.run / FILE, product.run / TEXT
    if replayed == "publish":
        return product
    if replayed == "drop" and product.kind != "text":
        raise PublishError("--drop-found is for text: nothing can be left out of a model")
    if not is_own_file(path):
        if replayed == "drop":
            raise PublishError(f"{path} is not there: --drop-found needs `privsyn inspect` before")
        return product
    found = _findings(path)
    if product.kind == "model":
        what, same = "its model", found.model == folder_fingerprint(product.source)
    else:
        what, same = TEXT, found.digest == (file_digest(text) if is_own_file(text) else "")
    if not same:
        raise PublishError(
            f"{path} is of another result than {what} is now: run `privsyn inspect` again, or "
            "delete it (--with-found publishes without asking it)"
        )
    if found.contradiction:
        raise PublishError(
            f"{path}: {found.contradiction}; what does not keep its claim is not to be published "
            "(--with-found publishes it all the same)"
        )
    if product.kind == "model" or not (found.rows or found.seeds):
        return product
    if replayed == "drop":
        why = (
            f"{len(found.rows):,} texts and all seeds were left out by what was found when private "
            "text was read, which epsilon does not cover"
        )
        rows = {*found.rows, *range(int(product.summary.get("seeds_in_front", 0)))}
        return replace(product, left_out=frozenset(rows), without_seeds=True, unclaimed=why)
    raise PublishError(
        f"{path}: {len(found.rows):,} texts and {len(found.seeds):,} seeds hold values that one "
        f"private user alone has ({found.kinds}). --with-found publishes them, --drop-found leaves "
        f"them out. {ADVICE}"
    )


class Findings(NamedTuple):
    """Digests of the inspected text and model, the rows and seeds with something found, how much of
    each kind with what chance would do, and what contradicts the claim, if anything does."""

    digest: str
    model: str
    rows: list[int]
    seeds: list[int]
    kinds: str
    contradiction: str


def _findings(path: Path) -> Findings:
    """Raises PublishError for a damaged file."""
    from privsyn_flower.app.inspect.membership import contradiction

    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        replay = (
            {"kinds": {}, "rows": [], "seeds": []}
            if "missing" in told["replay"]
            else told["replay"]
        )
        kinds: dict[str, dict[str, Any]] = replay["kinds"]
        rows, seeds = ([int(row) for row in replay[key]] for key in ("rows", "seeds"))
        parts = [
            f"{name}: {own['hits']:,}"
            + (f", by chance {own['expected']:,}" if own.get("expected") is not None else "")
            for name, own in kinds.items()
            if own["hits"]
        ]
        audit = contradiction(told["membership"])
        digests = str(told["synthetic_sha256"]), str(told["model_fingerprint"])
        return Findings(*digests, rows, seeds, "; ".join(parts), audit)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PublishError(
            f"{path} is damaged: run `privsyn inspect` again, or delete it"
        ) from None


def _check(licence: str, name: str, public: bool) -> None:
    """Raises PublishError for options that do not fit, before anything is read."""
    from privsyn_flower.app.report.publishing.folder import check_name

    if licence and not LICENCE.fullmatch(licence):
        raise PublishError(
            f"--license {licence!r} is no name of the hub's: they are like cc-by-4.0 or apache-2.0"
        )
    if public and not name:
        raise PublishError("--public says who may see what is pushed: name it with --push")
    if name:
        check_name(name)


def inspect(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
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

    with failing(ValueError):
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
