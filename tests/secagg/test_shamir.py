"""Shamir's sharing: any threshold of shares, whatever the secret; below it, nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.secagg import keys


@st.composite
def sharings(draw: st.DrawFn) -> tuple[int, int, list[int], list[int]]:
    """(secret, threshold, all points, the points that answer)."""
    points = draw(st.lists(st.integers(1, 2**16), min_size=1, max_size=12, unique=True))
    threshold = draw(st.integers(1, len(points)))
    answering = draw(st.permutations(points))[: draw(st.integers(threshold, len(points)))]
    return draw(st.integers(0, 2**256 - 1)), threshold, points, answering


@settings(max_examples=80, deadline=None)
@given(sharings())
def test_a_threshold_of_any_shares_gives_the_secret_back(
    case: tuple[int, int, list[int], list[int]],
) -> None:
    secret, threshold, points, answering = case
    shares = keys.split(secret, threshold, points)
    assert keys.combine({point: shares[point] for point in answering}) == secret
    assert all(0 <= share < keys.PRIME for share in shares.values())


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**256 - 1), st.integers(0, 2**256 - 1))
def test_one_share_less_fits_every_secret(threshold: int, secret: int, other: int) -> None:
    shares = keys.split(secret, threshold, range(1, threshold + 1))
    few = {point: shares[point] for point in range(1, threshold)}
    # The polynomial through the few shares and another secret is as good: its last share exists.
    again = keys.combine({**{point - threshold: few[point] for point in few}, -threshold: other})
    assert keys.combine({**few, threshold: again % keys.PRIME}) == other


def test_shares_are_spread_over_the_field() -> None:
    firsts = [keys.split(0, 2, [1, 2])[1] for _ in range(400)]
    assert len(set(firsts)) == 400
    above = sum(share > keys.PRIME // 2 for share in firsts)
    assert 130 < above < 270  # seven standard deviations of a fair coin


def test_the_field() -> None:
    assert keys.PRIME > 2**256
    for base in (2, 3, 5, 7, 11, 13):  # a strong pseudoprime to none of them
        assert pow(base, keys.PRIME - 1, keys.PRIME) == 1
    assert keys.PRIME.bit_length() <= 8 * keys.SHARE_BYTES


@pytest.mark.parametrize(
    ("secret", "threshold", "points", "said"),
    [
        (-1, 1, [1], "outside the field"),
        (keys.PRIME, 1, [1], "outside the field"),
        (0, 1, [0, 1], "above 0"),
        (0, 1, [1, 1], "distinct"),
        (0, 0, [1, 2], "threshold = 0"),
        (0, 3, [1, 2], "threshold = 3"),
    ],
)
def test_wrong_numbers_are_named(secret: int, threshold: int, points: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        keys.split(secret, threshold, points)
