"""Membership by the rounds' noisy sums: what whoever runs the server could guess.

Everybody's answer to a stored question of votes or scores can be made again from their texts. A
round's sum is r = s + V^T x + noise: s of the private users who are not guessed, who took part; V
(u, m) the vectors of those who are; and x in {0, 1}^u says who of these took part. Least squares
over all rounds, each in units of its noise, estimates x; for fair draws it is the best linear
guess. A server sees these sums, and epsilon is about them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from privsyn_flower.app.inspect.attacks import NotMeasured, Scores
from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.client_apps.scores import scores_of
from privsyn_flower.client_apps.votes import EligibleRows, votes_of
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.config import RunConfig
from privsyn_flower.data import label_of
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.text.protocols import Embedder

ANSWERS = {"votes": votes_of, "scores": scores_of}  # by kind; the model tells of updates
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
    texts = [text for own in users for text in own]
    places = {name: place for place, name in enumerate(query.labels)}
    if not texts:
        return np.zeros(query.length)
    owner = np.repeat(np.arange(len(users), dtype=np.int32), [len(own) for own in users])  # (n,)
    classes = np.array([places.get(label_of(text), -1) for text in texts], dtype=np.int64)
    everybody = np.ones(len(users), dtype=np.bool_)
    rows = EligibleRows(embedder.embed(texts), owner, everybody, classes if places else None)
    total: Any = ANSWERS[query.kind](query, rows, None)
    return np.asarray(total, dtype=np.float64)
