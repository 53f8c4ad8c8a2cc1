"""Private and held-out text of a simulated run, its embeddings, and distances to it.

Of what measures a run, this, `benchmark.py`, `fine_tunings.py` and `app/inspect` alone open such
text outside the nodes (rule 4): here in simulation, with `benchmark = true`, and only the ServerApp
may import it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import F32, F64
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, RunConfig, cache_folder
from privsyn_flower.data import EmbeddingCache, Federation, label_of
from privsyn_flower.data.caches import classes_of
from privsyn_flower.evaluation.metrics import (
    NEIGHBOURS,
    HeldOut,
    closeness,
    frechet_by_size,
    frechet_distance,
)
from privsyn_flower.protocol.question import Query
from privsyn_flower.queries.votes import shard_votes
from privsyn_flower.text.protocols import Embedder

logger = logging.getLogger("privsyn_flower")


def check_classes(config: RunConfig, federation: Federation) -> None:
    """Whether held-out users' texts are of the public classes, before anybody is asked.

    Raises ConfigError where none is, and for a class that they write with other letters or spaces
    alone; names a class that none of them has in a warning. What else they are labelled is not
    told. For a run with `benchmark`.
    """
    held_out = federation.held_out(config.evaluation.on)
    if not held_out:
        return  # of which `server_apps.readiness` tells
    there = {label_of(text) for own in held_out.values() for text in own} - {""}
    missing = [name for name in config.classes if name not in there]
    alike = {_plain(label) for label in there}
    misspelt = [name for name in missing if _plain(name) in alike]
    key, named = config.labels
    if misspelt or (missing and len(missing) == len(config.classes)):
        what = "has other letters or spaces in" if misspelt else "is the label of none of"
        raise ConfigError(
            f"{key} = {named!r}: {', '.join(map(repr, misspelt or missing))} {what} held-out "
            f"users' texts (data.label-column = {config.data.label_column!r}): name classes as "
            "they stand there"
        )
    if missing:
        told = ", ".join(map(repr, missing))
        logger.warning("%s = %r: no held-out text is of class %s", key, named, told)


def _plain(label: str) -> str:
    return "".join(label.split()).casefold()


class Private:
    """All private users' rows, from the simulated nodes' own caches. PRIVATE.

    rows (n, d): embeddings. owners (n,): the user of each. classes (n,): of each in the public
    list of the method's, -1 outside it. Raises ConfigError unless `benchmark` is true.
    """

    def __init__(self, config: RunConfig, federation: Federation, embedder: Embedder) -> None:
        if not config.benchmark:
            raise ConfigError("benchmark = false: private text is not opened; set benchmark = true")
        self.config, self.federation, self.embedder = config, federation, embedder
        root = cache_folder(config)
        rows, owners, classes, first = [], [], [], 0
        for node in range(config.nodes):
            folder = root / "nodes" / f"{node}-of-{config.nodes}" / "embeddings"
            users = federation.shard(node, config.nodes)
            block, owner = EmbeddingCache(folder, embedder.fingerprint).get(users, embedder.embed)
            rows.append(block)
            owners.append(owner + first)
            classes.append(classes_of(users.values(), owner, len(users), config.classes))
            first += len(users)
        self.users = first
        self.rows: F32 = np.concatenate(rows)
        self.owners, self.classes = np.concatenate(owners), np.concatenate(classes)

    def held_out(self) -> HeldOut:
        """Embeddings of the held-out users' texts."""
        folder = cache_folder(self.config) / "benchmark"
        users = self.federation.held_out(self.config.evaluation.on)
        cache = EmbeddingCache(folder, self.embedder.fingerprint)
        rows, owners = cache.get(users, self.embedder.embed)
        return HeldOut(rows, owners.astype(np.intp))

    def votes(self, candidates: F32) -> F64:
        """The users' true, clipped votes for candidates (m, d): (m,), without noise."""
        options = self.config.evolution
        return shard_votes(
            self.rows,
            self.owners,
            candidates,
            clip=options.clip,
            bound=options.vote_bound,
            samples_cap=self.config.data.samples_per_user,
            neighbors=options.neighbors,
            metric=options.metric,
        )

    def answers(self, query: Query) -> F64:
        """The users' true, clipped answers (m,) to a question of votes, without noise; within
        their classes where its candidates have some."""
        asked, named = query.options, query.extra.get("classes")
        return shard_votes(
            self.rows,
            self.owners,
            query.question(),
            clip=str(asked["clip"]),
            bound=query.bound,
            samples_cap=int(asked["samples-cap"]),
            neighbors=int(asked["neighbors"]),
            metric=str(asked["metric"]),
            sample_classes=None if named is None else self.classes,
            candidate_classes=named,
        )

    def mean_cosines(self, candidates: F32) -> F32:
        """Mean over users of a user's mean cosine to candidates (m, d): (m,), unclipped.

        POPri, Algorithm 4 line 2, without the clip and the noise.
        """
        counts = np.bincount(self.owners, minlength=self.users)
        weights = 1.0 / np.maximum(counts, 1)[self.owners]
        centre = (self.rows * weights[:, None]).sum(axis=0) / max(1, int((counts > 0).sum()))
        scores: F32 = (candidates @ centre).astype(np.float32)
        return scores


def private_texts(config: RunConfig, federation: Federation) -> dict[str, list[str]]:
    """user -> own texts, at most `data.samples-per-user`. PRIVATE.

    For the rows of a table that are made of the private text itself. Raises ConfigError unless
    `benchmark` is true.
    """
    if not config.benchmark:
        raise ConfigError(
            f"method = {config.method!r} is made of private text, for comparison in a simulation "
            "only: set benchmark = true"
        )
    users = federation.shard(0, 1)
    return {user: own[: config.data.samples_per_user] for user, own in users.items()}


def distance_to_development(
    config: RunConfig, federation: Federation, embedder: Embedder
) -> Callable[[Sequence[str]], float]:
    """Frechet distance of texts to the development users' text: POPri's choice of checkpoints.

    Appendix B.1: "lowest FID score relative to the validation dataset", which is private.
    Raises ConfigError unless `benchmark` is true and there are such users.
    """
    if not config.benchmark:
        raise ConfigError("popri.checkpoint = 'private' opens private text: set benchmark = true")
    users = federation.held_out("development")
    if sum(map(len, users.values())) < 2:
        raise ConfigError(
            f"popri.checkpoint = 'private' with data.development-users = "
            f"{config.data.development_users}: there is no text to compare with; raise it"
        )
    cache = EmbeddingCache(cache_folder(config) / "development", embedder.fingerprint)
    rows = cache.get(users, embedder.embed)[0]

    def distance(texts: Sequence[str]) -> float:
        if len(texts) < 2:
            return math.inf
        return frechet_distance(embedder.embed(texts), rows)

    return distance


Sets = Mapping[str, Sequence[str]]

FRECHET_TEXTS = 500  # texts embedded per set: enough for 384 dimensions, half a minute on a CPU


def distances(
    groups: Mapping[str, Sets],
    pool: Sequence[str],
    private: Private,
    held_out: HeldOut,
    config: RunConfig,
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, list[float]]]]:
    """Frechet distances to held-out text, each group at equal numbers of texts, and of what is no
    control all figures of `evaluation.metrics` with their intervals; `private` is the floor:
    private users' text at the same number."""
    rng = seeded(config.seed, "frechet")

    def rows(source: Sequence[str]) -> F32:
        count = min(len(source), FRECHET_TEXTS)
        picked = rng.choice(len(source), count, replace=False)
        return private.embedder.embed([source[i] for i in picked])

    others = {"random_public": rows(pool)} if len(pool) > 1 else {}
    count = len(others["random_public"]) if others else min(len(private.rows), FRECHET_TEXTS)
    own = rng.choice(len(private.rows), count, replace=len(private.rows) < count)
    others["private"] = private.rows[own]
    frechet, close = dict[str, dict[str, float]](), dict[str, dict[str, list[float]]]()
    for group, members in groups.items():
        embedded = {name: rows(source) for name, source in members.items() if len(source) > 1}
        sets = embedded | others
        found = frechet_by_size(sets, held_out.rows, rng)
        frechet[group] = {name: round(value, 5) for name, value in found.items()}
        if group in embedded:
            close |= _close({name: sets[name] for name in (group, *others)}, held_out, config.seed)
    return frechet, close


def _close(sets: Mapping[str, F32], held_out: HeldOut, seed: int) -> dict[str, Any]:
    """Each set at the size of the smallest; nothing where that is too small."""
    size, rng = min(map(len, sets.values())), seeded(seed, "closeness")
    if min(size, len(held_out.rows)) <= NEIGHBOURS:
        return {}
    return {
        name: {
            figure: interval.as_list()
            for figure, interval in closeness(
                rows[rng.choice(len(rows), size, replace=False)], held_out, rng
            ).items()
        }
        for name, rows in sets.items()
    }
