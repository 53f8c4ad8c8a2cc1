"""Make the shipped tiny models: `make assets` (about an hour on two cores). Take up the small ones.

    python scripts/make_assets.py
    python scripts/make_assets.py --take OUT --corpus CORPUS.jsonl.gz

The first reads the public side of a configuration's federation (public packages only; texts that
share 13 words in a row with a private user's are left out already), trains the three tiny models
without a time budget, and writes them with MANIFEST.json (hashes, recipes, package versions). The
second takes up what `scripts/train_small.py CORPUS.jsonl.gz OUT` and `scripts/train_conditional.py`
wrote: the folders OUT/small-* with what the corpus is made of, and OUT/conditional.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from privsyn_flower.common.files import cache_home, file_digest
from privsyn_flower.common.python_path import canonical
from privsyn_flower.config import load_config
from privsyn_flower.data import Federation, prepare
from privsyn_flower.text.tiny.assets import (
    FURTHER,
    MANIFEST,
    RECIPES,
    SMALL,
    content_key,
    embedded,
)
from privsyn_flower.text.tiny.models import package_sides
from privsyn_flower.text.tiny.training import train_model

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("downstream", "generator", "infiller")  # the first gives the others their tokenizer
CONDITIONAL = "conditional"  # tiny, but trained by scripts/train_conditional.py on a GPU


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--config", type=Path, default=ROOT / "configs" / "docstrings-demo.toml")
    arguments.add_argument("--assets", type=Path, default=ROOT / "privsyn_flower" / "assets")
    arguments.add_argument("--cache", type=Path, default=cache_home() / "privsyn-flower")
    arguments.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--kind", action="append", choices=ORDER, help="default: all")
    arguments.add_argument("--take", type=Path, help="folder that scripts/train_small.py wrote")
    arguments.add_argument("--corpus", type=Path, help="what it was trained on")
    options = arguments.parse_args()
    if (options.take is None) != (options.corpus is None):
        arguments.error("--take and --corpus go together")
    if options.take:
        take(options.assets, options.take, options.corpus)
    else:
        train(options)


def take(assets: Path, trained: Path, corpus: Path) -> None:
    """Take up the small models, and the tiny conditional one, that lie in `trained`, with what the
    manifest says about them: their training.json, and the packages of the corpus they have read.

    Raises SystemExit when there are none, or when one names another corpus.
    """
    with gzip.open(corpus, "rt", encoding="utf-8") as file:
        read = json.loads(file.readline())
    sides = {side: names for side, names in read["packages"].items() if side != "private"}
    known = {name for names in read["packages"].values() for name in names}
    sides[FURTHER] = [name for name in read["versions"] if name not in known]
    origin = {"packages": sides, "versions": read["versions"], "words": read["words"]}
    manifest = json.loads((assets / MANIFEST).read_text("utf-8"))
    small = [str(embedded(kind, "small")) for kind in SMALL]
    names = [name for name in (*small, CONDITIONAL) if (trained / name).is_dir()]
    if not names:
        raise SystemExit(
            f"{trained} has no folder small-* or {CONDITIONAL}: scripts/train_small.py and "
            "scripts/train_conditional.py make them"
        )
    if CONDITIONAL in names and manifest["packages"] != {k: sides[k] for k in manifest["packages"]}:
        raise SystemExit(f"{corpus}: its public packages are not those of the tiny models")
    for name in names:
        training = json.loads((trained / name / "training.json").read_text("utf-8"))
        if training.get("corpus_sha256", digest := file_digest(corpus)) != digest:
            raise SystemExit(f"{trained / name} was trained on another file than {corpus}")
        with tempfile.TemporaryDirectory(dir=assets) as scratch:
            folder = shutil.copytree(trained / name, Path(scratch) / name)
            shutil.rmtree(assets / name, ignore_errors=True)
            folder.rename(assets / name)
        # The tiny one has read what the tiny models have, which the manifest says of all.
        manifest["models"][name] = {**(origin if name in small else {}), "training": training}
    write_manifest(assets, **manifest)
    print(f"{', '.join(names)}: {assets}")


def train(options: argparse.Namespace) -> None:
    """Train the tiny models on the configuration's public text."""
    torch.set_num_threads(options.threads)
    config = load_config(options.config)
    federation = Federation(prepare(config.data, options.cache, print))
    general = [[text] for text in federation.public_general()]
    groups = federation.public_groups()
    options.assets.mkdir(parents=True, exist_ok=True)
    manifest = options.assets / MANIFEST
    models = json.loads(manifest.read_text("utf-8"))["models"] if manifest.exists() else {}
    for kind in options.kind or ORDER:
        texts = general if kind == "downstream" else groups
        with tempfile.TemporaryDirectory(dir=options.assets) as scratch:
            folder = Path(scratch) / kind
            folder.mkdir()
            init = None if kind == ORDER[0] else options.assets / ORDER[0]
            report = train_model(texts, RECIPES[kind], folder, init=init, progress=announce)
            shutil.rmtree(options.assets / kind, ignore_errors=True)
            folder.rename(options.assets / kind)
        models[kind] = {
            "recipe": asdict(RECIPES[kind]),
            "training": report,
            "threads": options.threads,
            "texts_sha256": content_key(texts, (), 0),
        }
        print(kind, report, flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    versions |= {
        key.rpartition(" ")[0]: key.rpartition(" ")[2] for key in public_origin(federation)
    }
    write_manifest(options.assets, packages=package_sides(config), versions=versions, models=models)


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


def public_origin(federation: Federation) -> list[str]:
    """`name version` of every public package of the federation."""
    settings = federation.meta["config"]
    names = f"{settings['public-packages']},{settings['minority-packages']}".split(",")
    wanted = {canonical(name.strip()) for name in names}
    return [key for key in federation.meta["origin"] if canonical(key.rpartition(" ")[0]) in wanted]


def announce(stage: str, done: float, total: float, note: str = "") -> None:
    if note:
        print(f"{stage}: {done:.0f}/{total:.0f} {note}", flush=True)


if __name__ == "__main__":
    main()
