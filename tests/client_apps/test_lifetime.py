"""What a user has spent: two sums, composed exactly, and never more than the limit."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps.node.lifetime import Limit, Spent, cost, spent_epsilon
from privsyn_flower.privacy.accounting import epsilon
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta

DELTA = 3e-6


def dp_epsilon(gaussian: float, delta: float) -> float:
    """Of one release with this mu^2, by dp_accounting."""
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / math.sqrt(gaussian), delta))


@settings(deadline=None, max_examples=60)
@given(total=st.floats(0.01, 100), log_delta=st.floats(-12, -2))
def test_the_limit_is_dp_accountings(total: float, log_delta: float) -> None:
    """For the noise; and what the integers take is the rest of delta."""
    delta = 10.0**log_delta
    limit = Limit.of(total, delta)
    found = dp_epsilon(limit.gaussian, 0.999 * delta)
    assert total - 1e-6 <= found <= total + 1e-11
    assert 0.999 * delta + 5.5 * limit.distance == pytest.approx(delta)


@settings(deadline=None, max_examples=25)
@given(
    total=st.floats(0.05, 30),
    log_delta=st.floats(-9, -3),
    noise=st.lists(st.tuples(st.floats(0.3, 50), st.floats(0, 0.2)), min_size=1, max_size=30),
)
def test_what_the_filter_lets_through_is_within_epsilon(
    total: float, log_delta: float, noise: list[tuple[float, float]]
) -> None:
    """Whatever noise and distances a server asks for, one after the other."""
    delta = 10.0**log_delta
    limit, taken = Limit.of(total, delta), Spent(0.0, 0.0)
    for z, share in noise:
        each = cost(z, share * limit.distance)
        more = Spent(taken.gaussian + each.gaussian, taken.distance + each.distance)
        taken = more if limit.allows(more) else taken
    assert taken.distance <= allowed_distance(delta)
    assert spent_epsilon(taken, delta) <= total * (1 + 1e-8)
    if taken.gaussian:
        assert dp_epsilon(taken.gaussian, gaussian_delta(delta)) <= total + 1e-11
    # And all of it may be taken, of each.
    assert limit.allows(Spent(*limit))
    assert spent_epsilon(Spent(*limit), delta) == pytest.approx(total, rel=1e-7)


@pytest.mark.parametrize("part", [0, 1])
def test_each_limit_holds_by_itself(part: int) -> None:
    limit = Limit.of(7.58, DELTA)
    most = [limit.gaussian / 3, limit.distance / 3]
    most[part] *= 3 * (1 + 1e-9)
    assert not limit.allows(Spent(*most))


@pytest.mark.parametrize(("z", "rounds"), [(2.31, 11), (11.3, 11), (3.0, 1), (40.0, 200)])
def test_what_was_spent_is_what_the_server_claims(z: float, rounds: int) -> None:
    each = cost(z, 1e-18)
    claimed = epsilon(z, rounds, gaussian_delta(DELTA))
    ours = spent_epsilon(Spent(rounds * each.gaussian, rounds * each.distance), DELTA)
    assert claimed * (1 - 1e-9) <= ours == pytest.approx(claimed, rel=1e-6)


def test_nothing_spent_is_nothing() -> None:
    assert spent_epsilon(Spent(0.0, 0.0), 1e-6) == 0.0
    assert 0 < spent_epsilon(Spent(0.0, 1e-12), 1e-6) < 1e-8  # noise that overflows costs nothing
    assert 0 < spent_epsilon(Spent(1e-40, 0.0), 1e-6) < 1e-8


def test_what_has_no_epsilon_is_infinite() -> None:
    hardly = cost(1e-200, 0.0)
    assert hardly.gaussian == math.inf and not Limit.of(700.0, 0.1).allows(hardly)
    assert spent_epsilon(hardly, 1e-6) == math.inf
    assert spent_epsilon(Spent(0.5, 1.0), 1e-6) == math.inf
    coarse = 2 * allowed_distance(1e-6)
    assert spent_epsilon(Spent(0.5, coarse), 1e-6) == math.inf


@pytest.mark.parametrize("z", [0.0, -1.0, math.inf, math.nan])
def test_noise_out_of_range_is_named(z: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        cost(z, 0.0)


@pytest.mark.parametrize("distance", [-1e-9, math.nan])
def test_distance_out_of_range_is_named(distance: float) -> None:
    with pytest.raises(ValueError, match="distance"):
        cost(1.0, distance)


def test_a_device_counts_without_numerical_libraries() -> None:
    """Exact accounting comes to a phone with the standard library alone."""
    code = (
        "import json, sys\n"
        "from privsyn_flower.client_apps.node.lifetime import Limit, cost, spent_epsilon\n"
        "import privsyn_flower.client_apps.node.records, privsyn_flower.app.cli.node\n"
        "limit = Limit.of(10.0, 1e-6)\n"
        "spent_epsilon(cost(2.0, 1e-15), 1e-6), limit.allows(cost(2.0, 1e-15))\n"
        "heavy = {'dp_accounting', 'scipy', 'torch', 'transformers', 'datasets', 'pandas'}\n"
        "print(json.dumps(sorted(heavy & set(sys.modules))))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == []
