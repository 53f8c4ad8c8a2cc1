"""The figures of the page on committees, and what they rest on."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy.stats import hypergeom

from scripts.committee_size import committee

PAGE = Path(__file__).parents[2] / "docs" / "secure-sum.md"


@pytest.mark.parametrize("nodes", [30, 100, 1000])
@pytest.mark.parametrize(("colluding", "missing"), [(0.1, 0.15), (0.05, 0.05)])
def test_a_committee_is_the_smallest_that_fails_rarely(
    nodes: int, colluding: float, missing: float
) -> None:
    own = committee(nodes, colluding, missing)
    bad, gone = round(colluding * nodes - 0.49), round(missing * nodes - 0.49)

    def fails(members: int, threshold: int) -> bool:
        """Two lists can be opened, or none, more often than allowed."""
        two = hypergeom.sf(2 * threshold - members - 1, nodes, bad, members)
        none = hypergeom.sf(members - threshold, nodes, gone, members)
        return bool(two > 2**-40 or none > 2**-20)

    assert not fails(own.members, own.threshold)
    fewer = own.members - 1
    assert all(fails(fewer, threshold) for threshold in range(1, fewer + 1))


def test_the_page_has_the_figures() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    sizes = [committee(nodes, 0.1, 0.15) for nodes in (30, 100, 1000)]
    small, middle, large = (own.members for own in sizes)
    assert f"{small} of 30 nodes, {middle} of 100, {large} of 1,000" in page
    assert f"{sizes[1].up(100):.1f} times as long at 100 nodes" in page
    assert f"is sent {sizes[1].down(100):.1f} vectors" in page
    up, down = sizes[2].up(1000), sizes[2].down(1000)
    assert f"at 1,000 nodes, {up:.1f} times and {down:.1f} vectors" in page


def test_too_many_colluders_leave_no_committee() -> None:
    with pytest.raises(ValueError, match="60% colluding and 50% missing of 30 nodes"):
        committee(30, 0.6, 0.5)
