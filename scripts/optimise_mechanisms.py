"""Make the shipped coefficients of banded and buffered mechanisms (seconds; needs scipy only).

    python scripts/optimise_mechanisms.py

Writes privsyn_flower/privacy/coefficients/banded.json and blt.json: for each shape "rounds
separation participations size", the coefficients, and their error (root mean square of the prefix
sums' noise, times the sensitivity) as a check. Shapes that are not shipped are optimised when a
run starts; shipping them makes the noise of a run independent of scipy's version.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import privsyn_flower
from privsyn_flower.privacy.correlated import Participation
from privsyn_flower.privacy.correlated.factorization import optimise_banded, optimise_buffers, shape
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz, buffered

FOLDER = Path(privsyn_flower.__file__).parent / "privacy" / "coefficients"

# Kairouz et al.'s CIFAR-10 shape, cut to 20 epochs of 100 batches; the demos' and papers' rounds.
MANY = Participation(2000, 100, 20)
ONCE = [Participation(rounds, rounds) for rounds in (10, 20, 32, 50, 100)]
ALWAYS = [Participation(rounds) for rounds in (20, 50, 100)]
APART = Participation(32, 4)

BANDED = [(MANY, 100), (MANY, 32), (APART, 4)] + [(users, users.rounds) for users in ONCE]
BUFFERED = [(users, 4) for users in (MANY, APART, *ONCE, *ALWAYS)]


def error(mechanism: Toeplitz, users: Participation) -> float:
    mean_square = float((mechanism.prefix_std() ** 2).mean())
    return round(mechanism.sensitivity(users) * mean_square**0.5, 6)


def write(name: str, shapes: dict[str, object], errors: dict[str, float]) -> None:
    content = {"made_by": "scripts/optimise_mechanisms.py", "errors": errors, "shapes": shapes}
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {len(shapes)} shapes, {path.stat().st_size} bytes")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    shapes, errors = {}, {}
    for users, bands in BANDED:
        found = optimise_banded(users, bands)
        shapes[shape(users, bands)] = found
        errors[shape(users, bands)] = error(Toeplitz("", users.rounds, found), users)
    write("banded", shapes, errors)
    shapes, errors = {}, {}
    for users, buffers in BUFFERED:
        pairs = optimise_buffers(users, buffers)
        mechanism = Toeplitz("", users.rounds, buffered(users.rounds, pairs), pairs)
        shapes[shape(users, buffers)] = pairs
        errors[shape(users, buffers)] = error(mechanism, users)
    write("blt", shapes, errors)


if __name__ == "__main__":
    main()
