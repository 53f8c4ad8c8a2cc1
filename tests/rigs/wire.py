"""What several tests share about wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError

TICKET = Ticket("run", "votes", 3, 1)


NOISE = Noise(2.5, 4096.0, 24, 85.0, 5.0)


def query(m: int = 20, d: int = 384) -> Query:
    rows = np.random.default_rng(0).normal(size=(m, d)).astype(np.float32)
    return Query.votes(rows, bound=1.0, model="m", clip="worst-case", samples_cap=4)


def refusal(call: Callable[..., Any], *given: Any) -> Refusal:
    """The code of the WireError that a call raises."""
    with pytest.raises(WireError) as caught:
        call(*given)
    return caught.value.code
