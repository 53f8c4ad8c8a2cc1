"""A larger downstream model than the shipped one, for configs/compare-users.toml.

    python scripts/make_downstream.py [--width 256] [--layers 6] [--out FOLDER]

Trained by the shipped model's recipe on the same public text, but for its size: about 6M parameters
against 1.3M. Its tokenizer is the shipped one's, so accuracies of both are about the same tokens.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from privsyn_flower.common.files import build_folder
from privsyn_flower.config import cache_folder, load_config
from privsyn_flower.data import Federation, prepare
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS, RECIPES
from privsyn_flower.text.tiny.training import train_model

ROOT = Path(__file__).resolve().parent.parent
KIND = "downstream"


def main() -> None:
    """Train it, unless it is there."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--config", type=Path, default=ROOT / "configs" / "docstrings-demo.toml")
    arguments.add_argument("--width", type=int, default=256)
    arguments.add_argument("--layers", type=int, default=6)
    arguments.add_argument("--steps", type=int, default=RECIPES[KIND].steps)
    arguments.add_argument("--out", type=Path, default=ROOT / "results/models/downstream-large")
    options = arguments.parse_args()
    if options.out.exists():
        raise SystemExit(f"{options.out} is there already")
    config = load_config(options.config)
    federation = Federation(prepare(config.data, cache_folder(config), print))
    texts = [[text] for text in federation.public_general()]
    recipe = replace(RECIPES[KIND], width=options.width, layers=options.layers, steps=options.steps)

    def fill(folder: Path) -> None:
        print(train_model(texts, recipe, folder, init=PACKAGE_ASSETS / KIND, progress=_announce))

    options.out.parent.mkdir(parents=True, exist_ok=True)
    build_folder(options.out, fill)


def _announce(stage: str, done: float, total: float, note: str = "") -> None:
    if note:
        print(f"{stage}: {done:.0f}/{total:.0f} {note}", flush=True)


if __name__ == "__main__":
    main()
