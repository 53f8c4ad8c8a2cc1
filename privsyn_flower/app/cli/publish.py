"""`privsyn publish`: a finished run's text or model as a folder with a card, and to the hub; and
`privsyn inspect`: what the run's synthetic text repeats of private users' texts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from privsyn_flower.app.cli.errors import AsJson, fail, failing
from privsyn_flower.common.terminal import escaped

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


if TYPE_CHECKING:
    from privsyn_flower.app.report.publishing.product import Product

Replayed = Literal["refuse", "publish", "drop"]  # texts in which `privsyn inspect` found something
ADVICE = (
    "Leaving texts out by private text is NOT covered by epsilon: rather lower epsilon, or filter "
    "all text by a public rule (every e-mail address, say)"
)


@dataclass(frozen=True)
class Options:
    """How to publish, as in `product.read_product`, `card.Facts` and `hub.push`. replayed: as
    of `inspected`."""

    model: bool
    licence: str
    figures: bool
    anyway: bool
    name: str
    public: bool
    replayed: Replayed = "refuse"


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
    from privsyn_flower.app.report.summaries import ReportError
    from privsyn_flower.config import ConfigError

    if with_replayed and drop_replayed:
        raise fail("--with-found publishes what --drop-found leaves out: name one of them")
    replayed: Replayed = "publish" if with_replayed else "drop" if drop_replayed else "refuse"
    given = Options(model, licence, benchmark_figures, no_privacy_claimed, push, public, replayed)
    with failing(ReportError, ConfigError, code=1):
        place, notes = publish_run(run, folder, given)
    for note in notes:
        typer.secho(note, err=True)
    print(place)


def publish_run(run: Path, folder: Path, given: Options) -> tuple[str, list[str]]:
    """Write the folder, then push it if a repository is named: where it is, and what to tell.

    Raises PublishError before anything is written, but for what the hub refuses; ReportError,
    ConfigError, OSError.
    """
    from privsyn_flower.app.report.publishing.card import Facts
    from privsyn_flower.app.report.publishing.folder import publish as write
    from privsyn_flower.app.report.publishing.folder import push
    from privsyn_flower.app.report.publishing.product import read_product
    from privsyn_flower.server_apps.methods import recipe_of

    _check(given)
    product = inspected(read_product(run, model=given.model, anyway=given.anyway), given.replayed)
    facts = Facts(
        loaded=recipe_of(product.config).loads(product.config),
        name=given.name,
        licence=given.licence,
        figures=given.figures,
    )
    target = write(product, folder, facts)
    notes = []
    if product.without_seeds:
        notes.append(f"{len(product.left_out):,} texts and the seeds are left out. {ADVICE}")
    if product.unclaimed:
        notes.append(f"no privacy is claimed for it: {product.unclaimed}")
    if not given.figures and product.summary.get("benchmark"):
        notes.append(
            "the benchmark's figures are left out: they were measured on private text, and epsilon "
            "does not cover them"
        )
    if not given.licence:
        notes.append("its licence is 'unknown': name one with --license")
    if given.name:
        return push(target, given.name, product.kind, public=given.public), notes
    return str(target), notes


def inspected(product: Product, replayed: Replayed) -> Product:
    """The product; with "drop", without the texts in which `privsyn inspect` found something.

    Raises PublishError, unless with "publish", where what was inspected is another text or its file
    is damaged; with "refuse" for such texts; with "drop" for a model, or without an inspection.
    """
    from privsyn_flower.app.inspect import FILE
    from privsyn_flower.app.report.publishing.product import TEXT, PublishError, is_own_file
    from privsyn_flower.common.files import file_digest
    from privsyn_flower.text.fingerprints import folder_fingerprint

    if product.config.data.canaries and replayed != "publish":
        raise PublishError(
            f"data.canaries = {product.config.data.canaries}: users were made up for an audit, and "
            "the result is not for use (--with-found publishes it all the same)"
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
    from privsyn_flower.app.report.publishing.product import PublishError

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


def _check(given: Options) -> None:
    """Raises PublishError for options that do not fit, before anything is read."""
    from privsyn_flower.app.report.publishing.folder import check_name
    from privsyn_flower.app.report.publishing.product import PublishError

    if given.licence and not LICENCE.fullmatch(given.licence):
        raise PublishError(
            f"--license {given.licence!r} is no name of the hub's: they are like cc-by-4.0 or "
            "apache-2.0"
        )
    if given.public and not given.name:
        raise PublishError("--public says who may see what is pushed: name it with --push")
    if given.name:
        check_name(given.name)


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
