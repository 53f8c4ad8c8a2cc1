"""Canaries: made-up users whose part in a run an audit must find out (`data.canaries`).

A canary's text begins as a text of the public pool does and goes on with words drawn at random: a
prefix like other text, a suffix that nobody would write (Meeus et al. 2025, arXiv 2502.14921,
section 4; drawn at the highest temperature, as arXiv 2606.10481 advises). The prefix is what votes
can pass on, the suffix what a model that trains on the text can remember. All samples of a canary
are this text, which is the most that a user can do for it.

Each takes the place of one of the private users, and by a fair draw of its own it is there or the
place is empty. So two runs that differ in one draw differ in one user's vector, which is then zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from privsyn_flower.common.files import DataError
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.units import unspaced
from privsyn_flower.config import DataConfig

from .groups import Group
from .users import Sample

PREFIX, SUFFIX = 24, 6  # words, or characters of a script without spaces
CANARIES = "canaries.json"  # of a prepared folder


@dataclass(frozen=True)
class Canary:
    """place: which of the private users it stands for. present: what an audit has to guess."""

    name: str
    place: int
    text: str
    present: bool

    def row(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)


def canaries(pool: Sequence[str], config: DataConfig) -> list[Canary]:
    """`data.canaries` of them, by `data.seed`. pool: public texts that hold nothing private.

    Raises DataError where there are fewer texts than canaries.
    """
    count, rng = config.canaries, seeded(config.seed, "canaries")
    if not count:
        return []
    distinct = list(dict.fromkeys(pool))
    if len(distinct) < count:
        raise DataError(
            f"data.canaries = {count}: each begins as a public text of its own, and the public "
            f"pool has {len(distinct):,}; lower it or raise data.public-pool"
        )
    texts = [distinct[i] for i in rng.choice(len(distinct), count, replace=False)]
    words = sorted({word for text in distinct for word in _parts(text)[0]})
    places = rng.choice(config.users, count, replace=False)
    found = []
    for number, (text, place) in enumerate(zip(texts, places, strict=True)):
        parts, glue = _parts(text)
        drawn = [words[i] for i in rng.integers(len(words), size=SUFFIX)]
        whole = glue.join([*parts[:PREFIX], *drawn])
        found.append(Canary(f"canary-{number:04d}", int(place), whole, bool(rng.integers(2))))
    return found


def _parts(text: str) -> tuple[Sequence[str], str]:
    """A text's words, or characters, and what joins them."""
    return (text, "") if unspaced(text) else (text.split(), " ")


def with_canaries(
    private: Iterable[Group], drawn: Sequence[Canary], samples: int
) -> Iterator[Group]:
    """The private users, canaries in the places of some: `samples` times their text, or none."""
    at = {canary.place: canary for canary in drawn}
    for place, group in enumerate(private):
        canary = at.get(place)
        if canary is None:
            yield group
        else:
            own = (Sample(canary.text),) * samples if canary.present else ()
            yield Group(canary.name, own)
