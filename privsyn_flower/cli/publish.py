"""`privsyn publish`: a finished run's text or model as a folder with a card, and to the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from privsyn_flower.report.publishing.card import Facts
from privsyn_flower.report.publishing.folder import publish
from privsyn_flower.report.publishing.hub import check_name, push
from privsyn_flower.report.publishing.product import PublishError, read_product
from privsyn_flower.server_apps.methods import recipe_of

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True)
class Published:
    """Where it is, and what the caller should be told about it."""

    place: str
    notes: tuple[str, ...]


def publish_command(
    run: Path,
    folder: Path,
    *,
    model: bool = False,
    licence: str = "",
    figures: bool = False,
    anyway: bool = False,
    name: str = "",
    public: bool = False,
) -> Published:
    """Write the folder, then push it if a repository is named.

    Arguments as in `product.read_product`, `card.Facts` and `hub.push`. Raises PublishError before
    anything is written, but for what the hub refuses; ReportError, ConfigError, OSError.
    """
    if licence and not LICENCE.fullmatch(licence):
        raise PublishError(
            f"--license {licence!r} is no name of the hub's: they are like cc-by-4.0 or apache-2.0"
        )
    if public and not name:
        raise PublishError("--public says who may see what is pushed: name it with --push")
    if name:
        check_name(name)
    product = read_product(run, model=model, anyway=anyway)
    loaded = recipe_of(product.config).loads(product.config)
    facts = Facts(loaded=loaded, name=name, licence=licence, figures=figures)
    target = publish(product, folder, facts)
    notes = []
    if product.unclaimed:
        notes.append(f"no privacy is claimed for it: {product.unclaimed}")
    if not figures and product.summary.get("benchmark"):
        notes.append(
            "the benchmark's figures are left out: they were measured on private text, and epsilon "
            "does not cover them"
        )
    if not licence:
        notes.append("its licence is 'unknown': name one with --license")
    place = push(target, name, product.kind, public=public) if name else str(target)
    return Published(place, tuple(notes))
