"""Membership by the rounds' noisy sums: what whoever runs the server could guess.

Everybody's answer to a stored question of votes or scores can be made again from their texts. A
round's sum is r = V^T x + noise, V (u, m) the users' vectors and x in {0, 1}^u who took part. So
least squares over all rounds, each in units of its noise, tells x: the best linear guess where x is
of fair draws. A server sees these sums, and epsilon is about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from privsyn_flower.app.inspect.attacks import NotMeasured, Scores
from privsyn_flower.app.inspect.texts import Texts, Users
from privsyn_flower.client_apps.scores import scores_of
from privsyn_flower.client_apps.votes import EligibleRows, votes_of
from privsyn_flower.common.arrays import F64
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.data import label_of
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.text.protocols import Embedder

ANSWERS = {"votes": votes_of, "scores": scores_of}  # by kind; the model tells of updates
DRAW = 0.5  # the mean of a fair draw, and its standard deviation
LEAST_NOISE = 1e-6  # of a vector's bound: without any, least squares would divide by zero


class Release(NamedTuple):
    """A round's question, its noisy sum (m,), and the standard deviation of the noise in it."""

    query: Query
    released: F64
    noise: float


def releases(texts: Texts, progress: Progress = silent) -> Scores:
    """How much of each user's vector is in the sums, by least squares: near 1 or near 0 without
    noise. Other people's vectors are part of the noise. Raises NotMeasured."""
    sums = list(_releases(texts))
    if not sums:
        raise NotMeasured("the run has no noisy sums of votes or scores")
    embedder = texts.load_embedder()
    if any(query.model != embedder.fingerprint for query, _, _ in sums):
        raise NotMeasured("the run asked by another embedder than this one")

    def score(users: Users) -> F64:
        embedder.embed([text for own in users.values() for text in own])  # at once, and kept
        gram, right = np.eye(len(users)) / DRAW**2, np.zeros(len(users))  # (u, u), (u,)
        for done, (query, released, noise) in enumerate(sums):
            progress("answering as each user", done, len(sums))
            vectors = answers(query, users, embedder) / noise  # (u, m)
            gram += vectors @ vectors.T
            right += vectors @ (released / noise - DRAW * vectors.sum(axis=0))
        progress("answering as each user", len(sums), len(sums))
        return np.asarray(DRAW + np.linalg.solve(gram, right), dtype=np.float64)

    return score


def _releases(texts: Texts) -> Iterator[Release]:
    """Of all rounds that are done, and of what is asked beside them (CTCL's histogram)."""
    path = texts.run[0] if texts.run else None
    for each in [path, *sorted(path.glob("evaluations/*/"))] if path else []:
        folder = RunFolder(each)
        for row in folder.metrics():
            query, released = folder.load_query(row["round"]), folder.load_release(row["round"])
            if query is not None and released is not None and query.kind in ANSWERS:
                yield Release(query, released, max(row["noise_std"], LEAST_NOISE * query.bound))


def answers(query: Query, users: Users, embedder: Embedder) -> F64:
    """Each user's clipped vector (u, m), as a device makes it. PRIVATE."""
    labels, found = query.labels, np.empty((len(users), query.length))
    for vector, own in zip(found, users.values(), strict=True):
        places = [labels.index(name) if (name := label_of(one)) in labels else -1 for one in own]
        classes = np.array(places, dtype=np.int64) if labels else None
        owner, sampled = np.zeros(len(own), dtype=np.int32), np.ones(1, dtype=np.bool_)
        alone = EligibleRows(embedder.embed(own), owner, sampled, classes)
        vector[:] = ANSWERS[query.kind](query, alone, None)
    return found
