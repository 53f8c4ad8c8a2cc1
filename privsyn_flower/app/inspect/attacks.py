"""Membership attacks by text: a score of each user, larger where a run more likely asked them.

Each takes what a run published, and returns a function of users. It reads the texts of those whom
it is asked about, and knows nothing of which side they are on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from privsyn_flower.app.inspect.copies import SpanIndex, tokens
from privsyn_flower.app.inspect.replay import Reader
from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.randomness import seeded

BLOCK = 512  # texts compared at once
MOST_PUBLIC = 20_000  # public texts among which a text's nearest is looked for; of more, a draw

Scores = Callable[[Users], F64]  # users -> (u,)


class NotMeasured(Exception):
    """An attack that a run gives nothing for; the text says what is missing."""


def mean_by_user(values: F64, users: Users) -> F64:
    """Of all users' texts (n,) -> of each user the mean, which no number of texts moves: (u,)."""
    sizes = [len(own) for own in users.values()]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    means: F64 = np.bincount(owners, weights=values, minlength=len(sizes)) / sizes
    return means


def nearness(texts: Texts) -> Scores:
    """Less the mean cosine distance of a user's texts to the nearest published one."""
    embedder = texts.load_embedder()
    published = embedder.embed(list(dict.fromkeys(texts.published)))

    def score(users: Users) -> F64:
        rows = embedder.embed([text for own in users.values() for text in own])
        nearest = np.concatenate(
            [(rows[i : i + BLOCK] @ published.T).max(axis=1) for i in range(0, len(rows), BLOCK)]
        )
        return mean_by_user(nearest.astype(np.float64) - 1.0, users)

    return score


def votes(texts: Texts) -> Scores:
    """The mean of the published votes for the candidate nearest to each text: 0 where that is a
    public text which is no seed, because few or none voted for it."""
    if not any(votes for _, votes in texts.seeds):
        raise NotMeasured("the run published no seeds with votes")
    embedder, seeds = texts.load_embedder(), dict(texts.seeds)
    others = [text for text in dict.fromkeys(texts.public) if text not in seeds]
    if len(others) > MOST_PUBLIC:
        drawn = seeded(0, "inspect votes").choice(len(others), MOST_PUBLIC, replace=False)
        others = [others[i] for i in drawn]
    candidates = embedder.embed([*seeds, *others])
    counts = np.array([*seeds.values(), *[0.0] * len(others)])

    def score(users: Users) -> F64:
        rows = embedder.embed([text for own in users.values() for text in own])
        nearest = [
            (rows[i : i + BLOCK] @ candidates.T).argmax(axis=1) for i in range(0, len(rows), BLOCK)
        ]
        return mean_by_user(counts[np.concatenate(nearest)], users)

    return score


def spans(texts: Texts) -> Scores:
    """The most tokens by which a span of a user's in published text is longer than in public text.

    Verbatim disclosures of arXiv 2606.16952: what public text has, too, tells nothing.
    """
    published, public = (
        [tokens(text) for text in some] for some in (texts.published, texts.public)
    )

    def score(users: Users) -> F64:
        ours = [tokens(text) for own in users.values() for text in own]
        index = SpanIndex(ours, [*published, *public])
        chosen = np.arange(len(published) + len(public)) < len(published)
        excess = np.maximum(index.excess(chosen), 0)
        ends = np.cumsum([len(own) for own in users.values()])
        return np.array([part.max() for part in np.split(excess, ends[:-1])], dtype=np.float64)

    return score


def values(texts: Texts) -> Scores:
    """How many names, numbers and addresses are published that, of all people on both sides, this
    user alone has, and no public text: feature disclosures of arXiv 2606.16952."""
    reader = Reader(texts)
    everybody = [*texts.private.values(), *texts.held_out.values()]
    owners = Counter(value for own in everybody for value in reader.of_all(own))
    telling = reader.of_all(texts.published) - reader.known

    def score(users: Users) -> F64:
        own = (reader.of_all(one) & telling for one in users.values())
        return np.array([sum(owners[v] <= 1 for v in found) for found in own], dtype=np.float64)

    return score


BY_TEXT: Mapping[str, Callable[[Texts], Scores]] = {
    "nearness": nearness,
    "votes": votes,
    "spans": spans,
    "values": values,
}
