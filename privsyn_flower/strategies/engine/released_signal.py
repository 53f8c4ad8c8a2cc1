"""What a release has beyond its noise: the test of `evaluation.signal` on each kind of query."""

from __future__ import annotations

import logging

from privsyn_flower.common.arrays import F64
from privsyn_flower.evaluation.signal import Excess, excess, p_value
from privsyn_flower.evaluation.verdict import FALSE_ALARM
from privsyn_flower.protocol.question import Query

logger = logging.getLogger("privsyn_flower")


def warn_if_drowned(what: str, first: Excess) -> None:
    """Say after a first round that its votes or scores may all be noise. Noise alone escapes the
    warning in FALSE_ALARM of the cases. A training round's own signal is too small to judge."""
    if (p := p_value([first])) >= FALSE_ALARM:
        logger.warning(
            "%s cannot be told from pure noise (p = %.2g, a signal below %g): what is "
            "chosen by them follows the noise. More users, a larger epsilon or fewer candidates "
            "would help; or the users prefer none of these candidates to another", what, p,
            FALSE_ALARM,
        )  # fmt: skip


def excess_of(query: Query, released: F64, noise_std: float) -> Excess | None:
    """The excess of the answer to a question; None for a question that chooses or trains nothing.

    Votes are compared with each other, scores within their prompt, an update with no change.
    """
    if query.kind == "update":  # adaptive clipping's count comes after the update
        counted = float(query.options.get("indicator", 0.0)) > 0
        return excess(released[: len(released) - counted], noise_std)
    if query.kind == "votes":
        return excess(released, noise_std, [len(released)])
    if query.kind == "scores":
        groups = query.extra.get("groups")
        sizes = [len(released)] if groups is None else [int(count) for count in groups]
        # An audit has the answers of many trials in one release.
        return excess(released, noise_std, sizes) if sum(sizes) == len(released) else None
    return None
