"""Shipped models: a folder for each and a MANIFEST.json with the sha256 of every file.

A manifest also names the packages whose public text the models were trained on, so that a run can
tell whether a model has read what is private in it. `tiny` models have a million parameters and
lie in the folders of their kinds; `small` ones have seven million and read more packages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import file_digest
from privsyn_flower.common.python_path import PACKAGE, asset, canonical, lacking

MANIFEST = "MANIFEST.json"
FURTHER = "further"
PACKAGE_ASSETS = (asset(MANIFEST) or PACKAGE / "assets" / MANIFEST).parent


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
    its hash is another, or its package is not installed.
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
    place = folder / kind if folder else asset(kind)
    if place is None and kind.startswith("small-"):
        raise AssetError(lacking(f"models.{kind.removeprefix('small-')} = 'small'"))
    place = place or root / kind
    for name, digest in entry["sha256"].items():
        path = place / name
        if not path.is_file() or file_digest(path) != digest:
            raise AssetError(
                f"{path} is missing or does not have the sha256 of {MANIFEST}: reinstall the "
                "package, or make the model again (scripts/make_assets.py)"
            )
    digests = json.dumps(entry["sha256"], sort_keys=True)
    sides = manifest["packages"] | entry.get("packages", {})
    packages = {side: frozenset(names) for side, names in sides.items()}
    return Asset(place, hashlib.sha256(digests.encode()).hexdigest(), packages)


def shipped_model(kind: str) -> Path:
    """The folder of a language model that ships: "generator", "conditional" or "infiller" (a
    million parameters each), or "small-generator" and so on (seven million, in the package
    privsyn-flower-models).

    Raises AssetError when there is none of that name, or when a file of it is damaged.
    """
    asset = find_asset(kind)
    if asset is None:
        raise AssetError(f"no model {kind!r} is shipped: reinstall the package, or name another")
    return asset.folder


Groups = Sequence[Sequence[str]]

VOCABULARY = 4096
TEXT_TOKENS = 96  # longest single text in training, in tokens


@dataclass(frozen=True, slots=True)
class Recipe:
    """One kind of tiny model.

    kind: downstream (causal LM), generator (the downstream model trained on in the expand
    format), conditional (trained on over conditions and texts) or infiller (masked LM). width,
    layers, heads: of the transformer. context: most tokens. steps: optimiser steps, of
    `batch_tokens` tokens each. learning_rate: AdamW's, for embeddings and norms; muon_rate:
    Muon's, for matrices. warm_up, decay_from: shares of the training at which the learning rate
    is full, and from which it falls linearly to 0.
    """

    kind: str
    steps: int
    batch_tokens: int
    learning_rate: float = 4e-3
    muon_rate: float = 0.02
    warm_up: float = 0.03
    decay_from: float = 0.5
    width: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 512
    vocabulary: int = VOCABULARY
    mask_share: float = 0.25
    version: int = 1  # raise it when the training code changes what comes out


RECIPES = {
    "downstream": Recipe("downstream", steps=1000, batch_tokens=1536),
    "generator": Recipe(
        "generator", steps=1000, batch_tokens=2048, learning_rate=2e-3, muon_rate=0.01,
        decay_from=0.3,
    ),
    "conditional": Recipe(
        "conditional", steps=1000, batch_tokens=2048, learning_rate=2e-3, muon_rate=0.01,
        decay_from=0.3,
    ),
    "infiller": Recipe("infiller", steps=800, batch_tokens=1536),
}  # fmt: skip


def recipe(kind: str, steps: int = 0) -> Recipe:
    """The recipe of `kind`, with its own number of steps when `steps` is 0."""
    if kind not in RECIPES:
        raise ValueError(f"no embedded model of kind {kind!r}: use one of {', '.join(RECIPES)}")
    if steps < 0:
        raise ValueError(f"models.train-steps = {steps}: must be 0 (the recipe's) or more")
    return replace(RECIPES[kind], steps=steps) if steps else RECIPES[kind]


@dataclass(frozen=True, slots=True)
class TuningRecipe:
    """How a given model is tuned.

    steps: at most, of `batch_tokens` padded tokens each. learning_rate: AdamW's. held_out: share
    of the texts, of at most `most_held_out`, whole groups of them. checks: looks at the held-out
    loss in one pass over the text, at most `between` steps apart. gain: by how many nats a look
    must be better than the best before; one that is not halves the rate, and training goes on from
    the best state. failures: such looks in a row that end it.
    """

    kind: str
    steps: int = 240
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    held_out: float = 0.1
    most_held_out: int = 256
    checks: int = 2
    between: int = 30
    gain: float = 0.01
    failures: int = 2
    mask_share: float = 0.25
    version: int = 1  # raise it when the code below changes what comes out


def tuning_recipe(kind: str, steps: int = 0, *, packaged: bool = False) -> TuningRecipe:
    """The recipe of `kind`, with at most `steps` steps when that is not 0. packaged: of a model of
    `text.models.gguf`, a hundred times larger."""
    # Measured on 1,464 public texts: 3.14 nats held out after 100 steps, 3.20 at twice the rate.
    gentle = kind in ("generator", "conditional")
    recipe = TuningRecipe(kind, learning_rate=1e-3) if gentle else TuningRecipe(kind)
    if packaged:  # 30 steps on 13,686 public texts: 4.20 -> 3.31 nats, 3.35 at three times the rate
        recipe = replace(recipe, learning_rate=1e-4)
    return replace(recipe, steps=steps) if steps else recipe


def content_key(groups: Groups, made_by: Sequence[Any], seed: int, start: str = "") -> str:
    """sha256 over texts, recipes, seed and what is trained on, hexadecimal: equal keys mean equal
    models on one machine with equal thread counts, when no time budget cut the training short.

    made_by: dataclasses. start: digest of the model that the training begins with, if any.
    """
    settings = [[asdict(one) for one in made_by], seed, *([start] if start else [])]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for group in groups:
        digest.update(f"\0{len(group)}\0".encode())
        for text in group:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
