"""What POPri's responses are worth, round by round, against held-out users of a simulation.

    python scripts/popri_rounds.py runs/FOLDER [--texts NAME=FILE.jsonl ...] [--against NAME]

A round's responses come from the generator as the rounds before it aligned it, so the first are the
unaligned model's. Of each round, and of each file of synthetic text, as many distinct texts are
drawn; the table has their distance to held-out users' texts by the run's embedder and what a small
language model that is fine-tuned on them predicts, with 95 % intervals over users. It works for a
run that is not finished. These figures come from held-out text and are outside epsilon: for
simulations with `benchmark = true` alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, load_config
from privsyn_flower.config.schema import RunConfig, cache_folder
from privsyn_flower.data.federation import Federation, prepare
from privsyn_flower.evaluation.intervals import Interval, over_users
from privsyn_flower.evaluation.metrics import HeldOut, closeness
from privsyn_flower.evaluation.public import downstream_of, tuning_of
from privsyn_flower.text import load_embedder
from privsyn_flower.text.tiny.assets import shipped_model

FIGURES = ("frechet", "mauve", "precision", "recall")


def rounds_of(run: Path) -> Iterator[tuple[str, list[str]]]:
    """The distinct responses of each round."""
    for path in sorted((run / "popri").glob("round-[0-9]*[0-9].json")):
        found = json.loads(path.read_text("utf-8"))["responses"]
        yield f"responses of {path.stem}", list(dict.fromkeys(t for own in found for t in own))


def texts_of(path: Path) -> list[str]:
    """The texts of a jsonl file."""
    lines = path.read_text("utf-8").splitlines()
    return list(dict.fromkeys(json.loads(line)["text"] for line in lines if line))


def sums_of(
    config: RunConfig, sets: Mapping[str, Sequence[str]], users: Mapping[str, Sequence[str]]
) -> dict[str, F64]:
    """Each set -> users' (loss, correct, tokens) after fine-tuning the shipped model on it."""
    model = downstream_of(config, shipped_model("downstream"))
    held_out = {user: model.encode(own) for user, own in users.items()}
    rate = float(config.evaluation.learning_rates.split(",")[0])
    found = {}
    for name, texts in sets.items():
        model.fine_tune(model.encode(texts), replace(tuning_of(config), learning_rate=rate))
        found[name] = model.user_sums(held_out)
    return found


def accuracy(sums: F64, other: F64 | None = None) -> Interval:
    """Of one set, or its gain over another."""
    others = [] if other is None else [other[:, 1:]]
    return over_users([sums[:, 1:]], others, rng=seeded(0, "users"))


def shown(interval: Interval, form: str = ".3f") -> str:
    """value [low, high]."""
    return "{:{f}} [{:{f}}, {:{f}}]".format(*interval.as_list(), f=form)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--texts", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--size", type=int, default=700)
    parser.add_argument("--against", default="", help="a set's name; default: the first")
    given = parser.parse_args(arguments)
    config = load_config(given.run / "config.toml")
    if not config.benchmark:
        raise ConfigError("benchmark = false: held-out text is not opened; set benchmark = true")
    sets = dict(rounds_of(given.run))
    for name, _, path in (text.partition("=") for text in given.texts):
        sets[name] = texts_of(Path(path))
    first = given.against or next(iter(sets), "")
    if first not in sets:
        raise SystemExit(f"--against {first}: {given.run} has {', '.join(sets) or 'no responses'}")
    for name, texts in sets.items():
        if len(texts) < given.size:
            raise SystemExit(f"{name} has {len(texts)} distinct texts: lower --size {given.size}")
        chosen = seeded(config.seed, "size", name).choice(len(texts), given.size, replace=False)
        sets[name] = [texts[i] for i in sorted(chosen)]
    config = config.model_copy(
        update={"evaluation": config.evaluation.model_copy(update={"adapter_rank": 0})}
    )
    federation = Federation(prepare(config.data, cache_folder(config), print))
    users = federation.held_out(config.evaluation.on)
    embedder = load_embedder(config.models.embedder, "cpu")
    owners = np.repeat(np.arange(len(users)), [len(own) for own in users.values()])
    rows = embedder.embed([text for own in users.values() for text in own])
    held_out, sums = HeldOut(rows, owners.astype(np.intp)), sums_of(config, sets, users)
    print("| texts | " + " | ".join(FIGURES) + f" | accuracy | minus {first} |")
    print("|---|" + "---|" * (len(FIGURES) + 2))
    for name, texts in sets.items():
        found = closeness(embedder.embed(texts), held_out, seeded(config.seed, "closeness"))
        cells = [shown(found[figure]) for figure in FIGURES]
        gain = "" if name == first else shown(accuracy(sums[name], sums[first]), "+.4f")
        print(f"| {name} | {' | '.join(cells)} | {shown(accuracy(sums[name]), '.4f')} | {gain} |")


if __name__ == "__main__":
    main()
