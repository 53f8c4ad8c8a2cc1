"""`privsyn publish`: a finished run's text or model as a folder with a card, and to the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from privsyn_flower.app.cli.errors import failing

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True)
class Options:
    """How to publish, as in `product.read_product`, `card.Facts` and `hub.push`."""

    model: bool
    licence: str
    figures: bool
    anyway: bool
    name: str
    public: bool


def publish(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write: a Hugging Face repository.")],
    model: Annotated[bool, typer.Option("--model", help="The model, where there is text.")] = False,
    licence: Annotated[
        str, typer.Option("--license", help="The hub's name of a licence, as cc-by-4.0.")
    ] = "",
    benchmark_figures: Annotated[
        bool,
        typer.Option("--benchmark-figures", help="Tell them: measured on private text, not noisy."),
    ] = False,
    no_privacy_claimed: Annotated[
        bool, typer.Option("--no-privacy-claimed", help="Publish what no privacy is claimed for.")
    ] = False,
    push: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Upload it to the hub.")] = "",
    public: Annotated[
        bool, typer.Option("--public", help="With --push: for everyone; else private.")
    ] = False,
) -> None:
    """A finished run's text or model as a Hugging Face folder, with a card that explains epsilon.

    Refuses what is not finished, and what no privacy is claimed for. The last line on stdout is
    the folder, or with --push the repository's address.
    """
    from privsyn_flower.app.report.summaries import ReportError
    from privsyn_flower.config import ConfigError

    given = Options(model, licence, benchmark_figures, no_privacy_claimed, push, public)
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
    product = read_product(run, model=given.model, anyway=given.anyway)
    facts = Facts(
        loaded=recipe_of(product.config).loads(product.config),
        name=given.name,
        licence=given.licence,
        figures=given.figures,
    )
    target = write(product, folder, facts)
    notes = []
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
