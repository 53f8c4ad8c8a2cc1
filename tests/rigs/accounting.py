"""What several tests share about accounting."""

from __future__ import annotations

import math
from typing import Any

from privsyn_flower.privacy.accounting.composition import (
    Releases,
)


def exact_delta(sigma: float, eps: float) -> float:
    """Balle and Wang 2018, Theorem 8, by scaled complementary error functions."""
    from scipy.special import erfcx

    mu, x = 1 / sigma, eps * sigma - 0.5 / sigma
    mills = [math.sqrt(math.pi / 2) * float(erfcx(y / math.sqrt(2))) for y in (x, x + mu)]
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (mills[0] - mills[1])


def accountant(releases: Releases) -> Any:
    """Of dp_accounting's own events, whatever is sampled: nothing of ours in it."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    found = PLDAccountant(value_discretization_interval=1e-4)
    for (z, rate), count in releases.items():
        event: Any = dp_accounting.GaussianDpEvent(z)
        if rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(rate, event)
        found.compose(dp_accounting.SelfComposedDpEvent(event, count))
    return found


def by_dp_accounting(releases: Releases, delta: float) -> float:
    """Epsilon, by its accountant."""
    return float(accountant(releases).get_epsilon(delta))
