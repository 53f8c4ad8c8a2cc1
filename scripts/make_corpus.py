"""The public text that the small shipped models read, as one file (some minutes).

    pip install --no-deps --target FOLDER -r scripts/corpus_packages.txt
    python scripts/make_corpus.py OUT.jsonl.gz --more FOLDER [--config configs/docstrings-demo.toml]

Docstrings and comments of the configuration's public packages and of every other distribution
that is installed, or lies in FOLDER, and is not private in it, cut into pieces of at most 96
words. A piece is left out when it shares 13 words in a row with any docstring of a private
package, with the public validation text, or with a piece before it. Lines of the file: what it is
made of, the federation's public validation text, each group of its public text (the samples that
runs see), and the pieces of each module. `scripts/train_small.py` trains on it, on a machine that
needs none of the packages.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError, cache_home
from privsyn_flower.common.python_path import canonical
from privsyn_flower.config import load_config
from privsyn_flower.data import Federation, prepare
from privsyn_flower.data.dedup import keep_first
from privsyn_flower.data.docstring_worker import clean
from privsyn_flower.data.docstrings import Package, find_package, package_lists, scan_packages
from privsyn_flower.data.groups import chunk

ROOT = Path(__file__).resolve().parent.parent
PIECE_WORDS = 96  # about 140 tokens
MIN_WORDS = 6
OWN = "privsyn-flower"  # its docstrings are no public text of a federation
_COMMENT = re.compile(r"^\s*#(?![!:])\s?(.*)$")  # neither a shebang nor a marker of sphinx
_LICENCE = re.compile(r"licen[cs]e|copyright|all rights reserved", re.IGNORECASE)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--config", type=Path, default=ROOT / "configs" / "docstrings-demo.toml")
    arguments.add_argument("--cache", type=Path, default=cache_home() / "privsyn-flower")
    arguments.add_argument("--more", type=Path, help="folder of further distributions")
    options = arguments.parse_args()
    if options.more:
        sys.path.append(str(options.more))
    config = load_config(options.config)
    federation = Federation(prepare(config.data, options.cache, print))
    private, public, minority = package_lists(config.data)
    names = [*minority, *public, *others({*private, *public, *minority})]
    modules = list(pieces(names, options.cache))
    secret = [
        text
        for module in scan_packages(private, options.cache, progress=print)
        for docstring in module.docstrings
        for text in chunk(docstring, PIECE_WORDS)
    ]
    validation = federation.public_validation()
    every = [text for _, texts in modules for text in texts]
    kept = set(keep_first([secret, validation, every])[2])
    rows: list[dict[str, Any]] = [{"validation": validation}]
    general = set(federation.public_general())
    rows += [
        {"group": group, "minority": group[0] not in general}
        for group in federation.public_groups()
    ]
    place = words = 0
    for name, texts in modules:
        own = [text for i, text in enumerate(texts, start=place) if i in kept]
        place += len(texts)
        if own:
            rows.append({"module": name, "texts": own})
            words += sum(len(text.split()) for text in own)
    about = {
        "packages": {"private": private, "general": public, "minority": minority},
        "versions": dict(sorted((name, find_package(name).version) for name in names)),
        "words": words,
    }
    with gzip.open(options.out, "wt", encoding="utf-8") as file:
        for row in [about, *rows]:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{words} words in {len(rows)} groups and modules, {len(names)} packages: {options.out}")


def others(known: set[str]) -> Iterator[str]:
    """Names of the other installed distributions with Python source."""
    seen = {canonical(name) for name in known} | {OWN}
    for name in sorted(
        {canonical(d.metadata["Name"] or "") for d in importlib.metadata.distributions()}
    ):
        if name and name not in seen:
            try:
                find_package(name)
            except DataError:
                continue
            yield name


def pieces(names: list[str], cache: Path) -> Iterator[tuple[str, list[str]]]:
    """(module, pieces of its docstrings and comments), package by package."""
    documented = {(m.package, m.name): m for m in scan_packages(names, cache, progress=print)}
    for name in names:
        package = find_package(name)
        for module, path in package.files:
            found = documented.get((package.name, module))
            texts = [*(found.docstrings if found else ()), *comments(package, path)]
            cut = [piece for text in texts for piece in chunk(text, PIECE_WORDS)]
            long = [piece for piece in cut if len(piece.split()) >= MIN_WORDS]
            if long:
                yield f"{package.name}:{module}", long


def comments(package: Package, path: Path) -> Iterator[str]:
    """Prose of a file's comments, a block of consecutive lines a text; no licence headers."""
    block: list[str] = []
    for line in [*path.read_text("utf-8", "replace").splitlines(), ""]:
        match = _COMMENT.match(line)
        if match:
            block.append(match.group(1))
        elif block:
            text = clean("\n".join(block))
            block = []
            if len(text.split()) >= MIN_WORDS and not _LICENCE.search(text):
                yield text


if __name__ == "__main__":
    main()
