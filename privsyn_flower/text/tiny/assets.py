"""Shipped models: a folder for each and a MANIFEST.json with the sha256 of every file.

A manifest also names the packages whose public text the models were trained on, so that a run can
tell whether a model has read what is private in it. `tiny` models have a million parameters and
lie in the folders of their kinds; `small` ones have seven million and read more packages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.data.docstrings import canonical
from privsyn_flower.files import file_digest

MANIFEST = "MANIFEST.json"
FURTHER = "further"
PACKAGE_ASSETS = Path(__file__).parent.parent.parent / "assets"


SMALL = ("generator", "conditional", "infiller")  # kinds that there is a small model of


def embedded(kind: str, name: str) -> str | None:
    """The folder among the shipped models that `models.KIND = name` means; None for no such."""
    if name == "small" and kind in SMALL:
        return f"small-{kind}"
    return kind if name == "tiny" else None


class AssetError(RuntimeError):
    """A shipped model is damaged; the text names the file and the way out."""


@dataclass(frozen=True)
class Asset:
    """A shipped model whose files are those of the manifest. digest: sha256 over their digests.
    packages: whose public text it was trained on, by side (general, minority), and what it read
    beyond a run's own public text (further)."""

    folder: Path
    digest: str
    packages: Mapping[str, frozenset[str]]

    def knows(self, names: Iterable[str]) -> list[str]:
        """Those of these packages that it has read."""
        read = {canonical(name) for side in self.packages.values() for name in side}
        return [name for name in names if canonical(name) in read]

    def is_of(self, packages: Mapping[str, Sequence[str]]) -> bool:
        """Whether it was trained on just these, in whatever version: the standard library's text
        changes with every patch release, and nobody should train again because of it."""
        own = {side: names for side, names in self.packages.items() if side != FURTHER}
        return own == {side: frozenset(names) for side, names in packages.items()}


def find_asset(kind: str, folder: Path | None = None) -> Asset | None:
    """The shipped model in the folder `kind` (`embedded`), checked; None when there is none.

    folder: of the manifest, instead of the package's. Raises AssetError when a file is missing or
    its hash is another.
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
    for name, digest in entry["sha256"].items():
        path = root / kind / name
        if not path.is_file() or file_digest(path) != digest:
            raise AssetError(
                f"{path} is missing or does not have the sha256 of {MANIFEST}: reinstall the "
                "package, or make the model again (scripts/make_assets.py)"
            )
    digests = json.dumps(entry["sha256"], sort_keys=True)
    sides = manifest["packages"] | entry.get("packages", {})
    packages = {side: frozenset(names) for side, names in sides.items()}
    return Asset(root / kind, hashlib.sha256(digests.encode()).hexdigest(), packages)


def shipped_model(kind: str) -> Path:
    """The folder of a language model in the wheel: "generator", "conditional" or "infiller" (a
    million parameters each), or "small-generator" and so on (seven million).

    Raises AssetError when there is none of that name, or when a file of it is damaged.
    """
    asset = find_asset(kind)
    if asset is None:
        raise AssetError(f"no model {kind!r} is shipped: reinstall the package, or name another")
    return asset.folder


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
