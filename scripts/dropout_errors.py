"""What nodes that miss rounds cost, with noise that the nodes make: signal lost, and noise.

    python scripts/dropout_errors.py [--rounds 2000 --min-separation 100 --max-participations 20]

Each of `--nodes` equal nodes misses each round with a probability, by chance alone, and W_min is
`--least` of the weight, or all of it where nobody is missing. A node that misses round t computes
nothing in it, and row t is without all of its earlier vectors. "kept": the factor by which a
constant signal is in the released prefix sums (least squares over all rounds); "rest": what no
factor explains, root mean square, in parts of the signal. "noise": root mean square error of prefix
sums at equal privacy, over what is kept, against the trusted aggregator's with nobody missing.

Then the other way to do without an aggregator: nodes that keep correlated noise of their own. Its
guarantee rests on nodes that were in every round of an epoch; how many epochs a run would need.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from scipy.signal import lfilter

from privsyn_flower.common.arrays import F64
from privsyn_flower.privacy.correlated import Participation, factorization
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix

MECHANISMS = ("independent", "banded", "blt")
MISSING = {0.0: 1.0, 0.05: 0.9, 0.2: 0.7}  # a round's share of missing nodes: W_min
EPOCHS = (0.05, 0.01, 0.001)


def prefix_error(mechanism: object, users: Participation) -> float:
    std = mechanism.prefix_std()
    return mechanism.sensitivity(users) * math.sqrt(float((std**2).mean()))


def kept_signal(coefficients: F64, present: F64) -> tuple[float, float]:
    """The factor by which a constant signal is kept, and the rest. present: (nodes, rounds)."""
    rows = present * lfilter(coefficients, [1.0], present, axis=1)  # D C D x
    released = lfilter([1.0], coefficients, rows.mean(axis=0))  # C^-1
    prefixes, true = np.cumsum(released), np.arange(1.0, present.shape[1] + 1)
    factor = float(prefixes @ true / (true @ true))
    rest = prefixes - factor * true
    return factor, math.sqrt(float(rest @ rest / (true @ true)))


def lost_by_leaving(coefficients: F64) -> float:
    """Rounds of a node's constant signal that are lost where its rows end."""
    rounds = 20 * len(coefficients)
    rows = lfilter(coefficients, [1.0], np.ones(rounds // 2))
    released = lfilter([1.0], coefficients, np.pad(rows, (0, rounds // 2)))
    return rounds // 2 - float(released.sum())


def epochs(present: F64, least: float) -> int:
    """Epochs, each of which lasts while nodes of `least` weight were in all of its rounds."""
    begun, always = 1, np.ones(len(present))
    for here in present.T:
        if (always * here).mean() < least:
            begun, always = begun + 1, np.ones(len(present))
        always = always * here
    return begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--min-separation", type=int, default=100)
    parser.add_argument("--max-participations", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=200)
    args = parser.parse_args()
    users = Participation(args.rounds, args.min_separation, args.max_participations)
    rng = np.random.default_rng(0)

    def drawn(missing: float) -> F64:
        return (rng.random((args.nodes, args.rounds)) >= missing).astype(float)

    print(f"{users.rounds} rounds, {users.most} participations, {users.min_separation} apart")
    print(f"{'missing':>8}{'W_min':>7}  {'mechanism':14}{'kept':>7}{'rest':>7}", end="")
    print(f"{'noise':>8}{'leaving':>9}")
    for missing, least in MISSING.items():
        present = drawn(missing)
        for name in MECHANISMS:
            real = factorization(name, users.rounds, participation=users)
            bands = min(len(real.coefficients), users.min_separation)
            nodes = IntegerMatrix.nearest(real.coefficients, users, bands=bands).toeplitz
            kept, rest = kept_signal(np.array(nodes.coefficients), present)
            noise = prefix_error(nodes, users) * math.sqrt((1 - missing) / least) / kept
            noise /= prefix_error(real, users)
            leaving = lost_by_leaving(np.array(nodes.coefficients))
            print(
                f"{missing:>8.0%}{least:>7.1f}  {name:14}{kept:>7.3f}{rest:>7.3f}{noise:>8.3f}"
                f"{leaving:>9.1f}"
            )
    print("\nnodes with correlated noise of their own, W_min .9 of the weight:")
    for missing in EPOCHS:
        print(f"{missing:>8.1%} missing: {epochs(drawn(missing), 0.9):,} epochs")


if __name__ == "__main__":
    main()
