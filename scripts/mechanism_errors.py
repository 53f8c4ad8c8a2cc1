"""The error of each mechanism of correlated noise at equal privacy.

    python scripts/mechanism_errors.py [--rounds 2000 --min-separation 100 --max-participations 20]

The error of a prefix sum is the standard deviation of its noise, times the sensitivity of the
mechanism: the noise at a run's epsilon is this number times one factor for all mechanisms. Root
mean square and largest over the prefixes. "by nodes": the same matrix in whole numbers, cut to as
many bands as rounds lie between two of one user.
"""

from __future__ import annotations

import argparse

from privsyn_flower.privacy.correlated import Factorization, Participation, factorization
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.toeplitz import Toeplitz


def rows(users: Participation, restart_every: int) -> list[tuple[str, float, float, float]]:
    """(mechanism, sensitivity, root mean square error, largest error)."""
    restart = {"restart_every": restart_every}
    completed = {**restart, "completion": True}
    choices: list[tuple[str, str, dict]] = [
        ("independent", "independent", {}),
        ("tree", "tree", {}),
        ("tree-honaker", "tree-honaker", {}),
        (f"tree-restart, every {restart_every}", "tree-restart", restart),
        ("  with completion at restarts", "tree-restart", completed),
        ("  and at the end", "tree-restart", {**completed, "complete_last": True}),
        ("banded", "banded", {}),
        ("banded-optimised", "banded-optimised", {}),
        ("blt, 4 buffers", "blt", {}),
    ]
    table = []
    for label, name, options in choices:
        mechanism = factorization(name, users.rounds, participation=users, **options)
        table.append((label, *errors(mechanism, users)))
        if isinstance(mechanism, Toeplitz) and mechanism.bands > 1:
            bands = min(mechanism.bands, users.min_separation)
            nodes = IntegerMatrix.nearest(mechanism.coefficients, users, bands=bands)
            table.append((f"  by nodes, {bands} bands", *errors(nodes.toeplitz, users)))
    return table


def errors(mechanism: Factorization, users: Participation) -> tuple[float, float, float]:
    """Sensitivity, root mean square error and largest error."""
    sensitivity, std = mechanism.sensitivity(users), mechanism.prefix_std()
    mean_square = float((std**2).mean()) ** 0.5
    return sensitivity, sensitivity * mean_square, sensitivity * float(std.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--min-separation", type=int, default=100)
    parser.add_argument("--max-participations", type=int, default=20)
    parser.add_argument("--restart-every", type=int, default=500)
    args = parser.parse_args()
    users = Participation(args.rounds, args.min_separation, args.max_participations)
    print(
        f"{users.rounds} rounds, {users.most} participations, {users.min_separation} apart\n"
        f"{'mechanism':34}{'sensitivity':>12}{'RMSE':>10}{'max':>10}"
    )
    for label, sensitivity, mean, most in rows(users, min(args.restart_every, users.rounds)):
        print(f"{label:34}{sensitivity:>12.3f}{mean:>10.2f}{most:>10.2f}")


if __name__ == "__main__":
    main()
