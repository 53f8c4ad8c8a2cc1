"""Phrases and printed numbers of the privacy sentence."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

KEYS = {
    "roster": "Nodes check each other's keys against a roster",
    "first-use": (
        "Nodes trust each other's keys on first use, so a server that put its own keys in their "
        "place at first contact would go unnoticed and is not covered"
    ),
}


def assumed(colluding_weight: float, keys: str) -> str:
    """What secure aggregation rests on: continues a sentence, and ends it with two more."""
    return (
        "as long as the server follows the protocol, apart from what "
        f"the nodes check themselves, and at most {percent(colluding_weight)} of the "
        "declared users' weight is on nodes that share what they know with it. Nodes that are "
        "shown different lists of survivors cannot be played off against each other: they "
        "unmask only the one list that nodes of more than half of the weight signed, and the "
        "Shamir threshold exceeds half of neighbours plus colluders. "
        f"{KEYS[keys]}."
    )


def at_most(value: float) -> str:
    """Four decimals, rounded up: a printed epsilon never understates."""
    return _rounded(value, ROUND_CEILING)


def at_least(value: float) -> str:
    """Four decimals, rounded down: printed noise never overstates."""
    return _rounded(value, ROUND_FLOOR)


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _rounded(value: float, rounding: str) -> str:
    if math.isinf(value):
        return "infinity"
    exact = Decimal(repr(float(value))).quantize(Decimal("0.0001"), rounding=rounding)
    return f"{exact.normalize():f}"
