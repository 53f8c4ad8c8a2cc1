"""Shipped tiny models: a folder per kind and a MANIFEST.json with the sha256 of every file.

A manifest also names the packages whose public text the models were trained on. A shipped model
is used when the run's public packages are those (in whatever version: the standard library's
text changes with every patch release, and nobody should train for an hour because of it); so it
has never seen a package that is private in the run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.files import file_digest

logger = logging.getLogger("privsyn_flower")

MANIFEST = "MANIFEST.json"
PACKAGE_ASSETS = Path(__file__).parent.parent.parent / "assets"


class AssetError(RuntimeError):
    """A shipped model is damaged; the text names the file and the way out."""


def find_asset(
    kind: str,
    recipe: Mapping[str, Any],
    packages: Mapping[str, Sequence[str]],
    folder: Path | None = None,
) -> Path | None:
    """The shipped model of `kind`, checked; None when none fits.

    recipe: what the model must have been made by (its `steps` are free). packages: the run's
    names under `general` and `minority`. Raises AssetError when a file is missing or its hash is
    another.
    """
    root = folder or PACKAGE_ASSETS
    try:
        manifest = json.loads((root / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        if folder is not None:
            raise AssetError(f"assets = {str(folder)!r} holds no {MANIFEST}") from None
        return None
    entry = manifest["models"].get(kind)
    if entry is None:
        return None
    if _without_steps(entry["recipe"]) != _without_steps(recipe):
        logger.info("the shipped %s model was made by another recipe and is not used", kind)
        return None
    trained_on = {side: sorted(names) for side, names in manifest["packages"].items()}
    if trained_on != {side: sorted(names) for side, names in packages.items()}:
        logger.info("the shipped %s model knows other packages and is not used", kind)
        return None
    for name, digest in entry["sha256"].items():
        path = root / kind / name
        if not path.is_file() or file_digest(path) != digest:
            raise AssetError(
                f"{path} is missing or does not have the sha256 of {MANIFEST}: reinstall the "
                "package, or run `make assets`"
            )
    return root / kind


def write_manifest(
    root: Path,
    *,
    packages: Mapping[str, Sequence[str]],
    versions: Mapping[str, str],
    models: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write MANIFEST.json for the models in `root`; `models`: kind -> what to say about it."""
    entries = {
        kind: {
            **about,
            "sha256": {p.name: file_digest(p) for p in sorted((root / kind).iterdir())},
        }
        for kind, about in models.items()
    }
    manifest = {"packages": packages, "versions": versions, "models": entries}
    (root / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", "utf-8")


def _without_steps(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in recipe.items() if name != "steps"}
