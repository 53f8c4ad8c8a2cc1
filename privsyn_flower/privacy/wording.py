"""Words that statements share: assumptions, other measures of the same noise, rounded numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal

from privsyn_flower.privacy.accounting.sampling import AggregationName, SamplerName, check_sampler

SplitName = Literal["own", "private", "unknown", "rows"]
KEYS = {
    "roster": "Nodes check each other's keys against a roster",
    "first-use": (
        "Nodes trust each other's keys on first use, so a server that put its own keys in their "
        "place at first contact would go unnoticed and is not covered"
    ),
}
ROWS = (
    " Each node's answer holds what its users said in earlier rounds, too, by public weights, and "
    "every answer has noise of its own."
)
# How a simulation's users came about (`split`) -> who one is, and what epsilon does not cover.
USERS = {
    "own": ("user", ""),
    "private": ("user", ""),
    "unknown": ("user", "the preparation of a simulated split"),
    "rows": (
        "user (a share of the rows, not a person)",
        "a person who wrote several rows: they may be several users",
    ),
}
# What is made of a trained model by `privsyn_flower.app.public.proximity`.
CHOSEN_TEXT = (
    "Public text that the trained model chose is post-processing of the training: choosing it "
    "costs no further privacy, and THE CHOSEN TEXT CARRIES THE EPSILON OF THE TRAINING, against "
    "the same adversary. Text to choose from that another training's model chose carries that "
    "training's epsilon, too. Epsilon does not cover a threshold, or a public text to choose from, "
    "that was found by looking at these users' data or at figures measured on it."
)


def changed_since(keys: Sequence[str]) -> str:
    """Of keys that were changed after a run began, none of which touches what was asked."""
    return (
        "After the run began, settings of what is made of the released sums were changed "
        f"({', '.join(keys)}), and none of what is asked or promised: what is made by them costs "
        "no further privacy. Epsilon does not cover a setting that was found by looking at these "
        "users' data or at figures measured on it."
    )


# Of a public text or a model beside which a run's statement lies: continues a sentence.
CARRIED = (
    "the public text, or a model that was given, was made of users' answers itself: what was made "
    "of it carries the guarantee that lies beside it, too, which adds to this one."
)
CARRIES = f"{CARRIED[0].upper()}{CARRIED[1:]}"


def concentrated(rho: float | None, integers: bool, samples: bool) -> str:
    """The same noise as zero-concentrated differential privacy; begins with a space, or is "".

    rho: mu^2 / 2 of Gaussian noise without sampling (Bun and Steinke 2016, Proposition 1.6); None:
    nothing is known of it. integers: some noise is the nodes', which is Gaussian noise but for a
    part of delta. samples: there is Poisson sampling.
    """
    if samples:
        return " No rho-zCDP is claimed: mu^2 / 2 is that of Gaussian noise without sampling."
    if rho is None:
        return ""
    but = ", but for that part of delta" if integers else ""
    return f" As zero-concentrated DP it is {at_most(rho)}-zCDP (rho = mu^2 / 2){but}."


ACCOUNTS = {
    "exact": "the exact privacy curve of the composed Gaussian noise",
    "pld": "the privacy loss distribution (PLD) of the composed, sampled Gaussian noise",
    "renyi": "Renyi bounds of the composed, sampled Gaussian noise",
}


def in_groups(groups: Sequence[tuple[str, float, Sequence[str]]]) -> str:
    """Which users are asked what (name, epsilon, questions); begins with a space, or is ""."""
    if not groups:
        return ""
    told = "; ".join(
        f"users of {name} nodes {' and '.join(map(repr, asked))} (epsilon at most {at_most(own)})"
        for name, own, asked in groups
    )
    return (
        f" No user of one node is asked all of this: {told}. A node is of one group by its owner's "
        "configuration, never by text, and stays in it for the run, so epsilon is the larger of "
        "the two, not their sum; who has text on a node of each pays both. The weight that must "
        "answer is each group's own, and all who are assumed to collude may be in one group."
    )


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


def page(short: str, sentence: str, carries: str = "") -> str:
    """privacy.md of a run folder: the short form and the whole statement, to which it points.

    carries: the statements beside what the run was given as public.
    """
    here = re.sub(r"( in)? privacy\.md\.$", " below.", short)
    beside = f"\nThe guarantee of what was given as public:\n\n{carries}\n" if carries else ""
    return f"# Privacy of this run\n\n{here}\n\n{sentence}\n{beside}"


def at_most(value: float, decimals: int = 4) -> str:
    """So many decimals, rounded up: a printed epsilon never understates."""
    return _rounded(value, ROUND_CEILING, decimals)


def delta_at_most(delta: float) -> str:
    """Three digits, rounded up, as a delta of 1e-6 needs another scale than an epsilon."""
    return _digits(delta, 3)


def noise_at_least(multiplier: float) -> str:
    """Six digits, rounded up: whoever sets this noise keeps the epsilon that it was sought for."""
    return _digits(multiplier, 6)


def at_least(value: float) -> str:
    """Four decimals, rounded down: printed noise never overstates."""
    return _rounded(value, ROUND_FLOOR)


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _digits(value: float, digits: int, rounding: str = ROUND_CEILING) -> str:
    exact = Decimal(repr(float(value)))
    if not exact.is_finite() or not exact:
        return f"{value:g}"
    scale = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(scale, rounding=rounding)):.{digits}g}"


def _rounded(value: float, rounding: str, decimals: int = 4) -> str:
    if math.isinf(value):
        return "infinity"
    if abs(value) >= 1e15:  # too long to read
        return _digits(value, 6, rounding)
    exact = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-decimals), rounding=rounding)
    return f"{exact.normalize():f}"


def sampling_sentence(
    name: SamplerName, rate: float = 1.0, aggregation: AggregationName = "plain"
) -> str:
    """What is claimed for a sampler, against whom: a clause without a full stop."""
    check_sampler(name, rate)
    if name == "fixed":
        return (
            "the server draws a fixed number of nodes for each round and knows which; no "
            "amplification by sampling is claimed"
        )
    if name == "full" or rate == 1.0:
        return "no amplification by sampling is claimed"
    server = (
        " and against the server, which sees only sums, and answers whose work is the same however "
        "users were sampled"
    )
    return (
        f"each user takes part in a round with probability {rate:g}, sampled in secret by its own "
        "node, and the amplification by this is claimed against those who see only the released "
        f"sums{server if aggregation == 'secure' else ''}, never against a user's own node"
    )
