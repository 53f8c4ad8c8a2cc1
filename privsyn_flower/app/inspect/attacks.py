"""Membership attacks: a score of each user, larger where a run more likely asked them.

Each takes what a run published, and returns a function of users. It reads the texts of those whom
it is asked about, and knows nothing of which side they are on. `models` has those by models.

By the rounds' noisy sums, what whoever runs the server could guess: everybody's answer to a stored
question of votes or scores can be made again from their texts. A round's sum is
r = s + V^T x + noise: s of the private users who are not guessed, who took part; V (u, m) the
vectors of those who are; and x in {0, 1}^u says who of these took part. Least squares over all
rounds, each in units of its noise, estimates x; for fair draws it is the best linear guess. A
server sees these sums, and epsilon is about them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from privsyn_flower.app.inspect.copies import SpanIndex, tokens
from privsyn_flower.app.inspect.replay import Reader
from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import RunConfig
from privsyn_flower.data import label_of
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.text.protocols import Embedder

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


# By the rounds' sums ---------------------------------------------------------------------------

ANSWERS = ("votes", "scores")  # kinds of questions; the model tells of updates
DRAW = 0.5  # the mean of a fair draw, and its standard deviation
LEAST_NOISE = 1e-6  # of a vector's bound: without noise the weights would be infinite


class Release(NamedTuple):
    """A round's question, its noisy sum (m,), the standard deviation of the noise in it, and the
    share of the users whose vectors are in it."""

    query: Query
    released: F64
    noise: float
    share: float


def releases(texts: Texts, progress: Progress = silent) -> Scores:
    """How much of each user's vector is in the sums: near 1 or near 0 where there is little noise.
    A canary's text counts once, however often a device had it. Raises NotMeasured, of a damaged run
    folder, too: the other attacks go on."""
    rounds = [one.query.model for one in _releases(texts)]
    if not rounds:
        raise NotMeasured("the run has no noisy sums of votes or scores")
    embedder = texts.load_embedder()
    if set(rounds) != {embedder.fingerprint}:
        raise NotMeasured("the run asked by another embedder than this one")

    def score(users: Users) -> F64:
        rest = {user: own for user, own in texts.private.items() if user not in users}
        for each in (users, rest):  # at once; the embedder keeps them
            embedder.embed([text for own in each.values() for text in own])
        gram, right = np.eye(len(users)) / DRAW**2, np.zeros(len(users))  # (u, u), (u,)
        for done, (query, released, noise, share) in enumerate(_releases(texts)):
            progress("answering as each user", done, len(rounds))
            vectors = answers(query, users, embedder)  # (u, m)
            left = released - share * answer(query, list(rest.values()), embedder)  # (m,)
            vectors /= noise
            gram += vectors @ vectors.T
            right += vectors @ (left / noise - DRAW * vectors.sum(axis=0))
        progress("answering as each user", len(rounds), len(rounds))
        return np.asarray(DRAW + np.linalg.solve(gram, right), dtype=np.float64)

    return score


def _releases(texts: Texts) -> Iterator[Release]:
    """Of all rounds that are done, and of what is asked beside them (CTCL's histogram)."""
    if texts.run is None:
        return
    path, config = texts.run
    for each in [path, *sorted(path.glob("evaluations/*/"))]:
        try:
            yield from _of_folder(RunFolder(each), config)
        except (ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            what = f"{type(error).__name__}: {error}"
            raise NotMeasured(f"a release or question in {each} is damaged ({what})") from None


def _of_folder(folder: RunFolder, config: RunConfig) -> Iterator[Release]:
    for row in folder.metrics():
        query, released = folder.load_query(row["round"]), folder.load_release(row["round"])
        if query is None or released is None or query.kind not in ANSWERS:
            continue
        noise, answered = float(row["noise_std"]), float(row["surviving_weight"])
        fine = noise >= 0 and math.isfinite(noise + answered) and np.isfinite(released).all()
        if released.shape != (query.length,) or not fine:
            raise ValueError(f"round {row['round']}")
        share = min(1.0, answered / max(1, config.data.users)) * config.sampling_rate
        yield Release(query, released, max(noise, LEAST_NOISE * query.bound), share)


def answers(query: Query, users: Users, embedder: Embedder) -> F64:
    """Each user's clipped vector (u, m), as a device makes it. PRIVATE. Raises NotMeasured."""
    labels = set(query.labels)
    if labels and not any(label_of(text) in labels for own in users.values() for text in own):
        raise NotMeasured("the run asked by class, and no text here is of one of its classes")
    found = np.empty((len(users), query.length))
    for vector, own in zip(found, users.values(), strict=True):
        vector[:] = answer(query, [own], embedder)
    return found


def answer(query: Query, users: Sequence[Sequence[str]], embedder: Embedder) -> F64:
    """Sum of the clipped vectors of these users' texts: (m,). PRIVATE."""
    from privsyn_flower.client_apps.scores import scores_of
    from privsyn_flower.client_apps.votes import EligibleRows, votes_of

    texts = [text for own in users for text in own]
    places = {name: place for place, name in enumerate(query.labels)}
    if not texts:
        return np.zeros(query.length)
    owner = np.repeat(np.arange(len(users), dtype=np.int32), [len(own) for own in users])  # (n,)
    classes = np.array([places.get(label_of(text), -1) for text in texts], dtype=np.int64)
    everybody = np.ones(len(users), dtype=np.bool_)
    rows = EligibleRows(embedder.embed(texts), owner, everybody, classes if places else None)
    of_kind: Any = votes_of if query.kind == "votes" else scores_of
    total = of_kind(query, rows, None)
    return np.asarray(total, dtype=np.float64)
