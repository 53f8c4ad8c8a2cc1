"""What a simulated run is worth, measured with private and held-out text.

The ONLY file that opens private or held-out text outside the nodes (ARCHITECTURE, rule 4). It
runs in simulation with `benchmark = true`, and its figures are no part of the private result:
they go under `benchmark` in summary.json and are not covered by epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from privsyn_flower.config import ConfigError, RunConfig, cache_folder, split_list
from privsyn_flower.data import EmbeddingCache, Federation
from privsyn_flower.evaluation.bootstrap import paired_bootstrap
from privsyn_flower.evaluation.distances import frechet_by_size
from privsyn_flower.evaluation.downstream import Downstream, Rows, Tuning, choose_learning_rate
from privsyn_flower.progress import Progress, silent
from privsyn_flower.queries.votes import shard_votes
from privsyn_flower.randomness import seeded
from privsyn_flower.text.protocols import Embedder

Floats = npt.NDArray[np.float32]

FRECHET_TEXTS = 500  # texts embedded per set: enough for 384 dimensions, half a minute on a CPU
METHODS = {
    "pretrained": "the downstream model as it is",
    "random_public": "(a) fine-tuned on random public text",
    "noise_votes": "(a2) on the same pipeline's text, its votes replaced by noise",
    "synthetic": "(b) on the synthetic text",
    "private": "(c) on the private text, without privacy",
}
PAIRS = (
    ("synthetic", "random_public"),
    ("synthetic", "noise_votes"),
    ("private", "random_public"),
    ("private", "synthetic"),
)


class Asked(Protocol):
    """The part of a stored query that is needed here."""

    def question(self) -> Floats:
        """Candidates (m, d), public."""


class RunRecord(Protocol):
    """The part of a run folder that is needed here: questions, releases, metrics."""

    def load_query(self, rnd: int) -> Any: ...

    def load_release(self, rnd: int) -> npt.NDArray[np.float64] | None: ...

    def metrics(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Texts:
    """What the run made, and what the same pipeline made of votes that are pure noise."""

    seeds: Sequence[str]
    synthetic: Sequence[str]
    control_seeds: Sequence[str]
    control_synthetic: Sequence[str]


@dataclass(frozen=True)
class Benchmark:
    """summary: figures for summary.json. For the pictures: held_out (n, d) embeddings of
    held-out texts, PRIVATE, and the candidates (m, d) of every round."""

    summary: dict[str, Any]
    held_out: Floats
    candidates: list[Floats]


def run_benchmark(
    config: RunConfig,
    federation: Federation,
    *,
    embedder: Embedder,
    downstream: str | Path,
    record: RunRecord,
    texts: Texts,
    progress: Progress = silent,
) -> Benchmark:
    """All figures of one finished run; held-out users as `evaluation.on` says.

    downstream: folder or name of the causal LM to fine-tune. Raises ConfigError unless
    `benchmark` is true.
    """
    if not config.benchmark:
        raise ConfigError("benchmark = false: private text is not opened; set benchmark = true")
    private = Private(config, federation, embedder)
    pool = federation.public()
    rounds, candidates = vote_shares(record, private, config)
    held_out = private.held_out()
    progress("benchmark: distances", 0, 1)
    summary: dict[str, Any] = {
        "note": "measured with private and held-out text; not covered by epsilon",
        "held_out": config.evaluation.on,
        "true_votes": {**rounds, **seed_votes(texts.seeds, pool, private, config)},
        "frechet": distances(texts, pool, private, held_out, config),
    }
    progress("benchmark: distances", 1, 1)
    summary |= next_token(config, federation, downstream, texts, progress)
    return Benchmark(summary, held_out, candidates)


class Private:
    """Private and held-out text with embeddings, from the simulated nodes' own caches. PRIVATE."""

    def __init__(self, config: RunConfig, federation: Federation, embedder: Embedder) -> None:
        self.config, self.federation, self.embedder = config, federation, embedder
        root = cache_folder(config)
        rows, owners, first = [], [], 0
        for node in range(config.nodes):
            folder = root / "nodes" / f"{node}-of-{config.nodes}" / "embeddings"
            users = federation.shard(node, config.nodes)
            block, owner = EmbeddingCache(folder, embedder.fingerprint).get(users, embedder.embed)
            rows.append(block)
            owners.append(owner + first)
            first += len(users)
        self.rows: Floats = np.concatenate(rows)
        self.owners = np.concatenate(owners)

    def held_out(self) -> Floats:
        """(n, d) embeddings of the held-out users' texts."""
        folder = cache_folder(self.config) / "benchmark"
        users = self.federation.held_out(self.config.evaluation.on)
        cache = EmbeddingCache(folder, self.embedder.fingerprint)
        return cache.get(users, self.embedder.embed)[0]

    def votes(self, candidates: Floats) -> npt.NDArray[np.float64]:
        """The users' true, clipped votes for candidates (m, d): (m,), without noise."""
        options = self.config.pretext
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


def vote_shares(
    record: RunRecord, private: Private, config: RunConfig
) -> tuple[dict[str, Any], list[Floats]]:
    """Per round: which share of the true votes the candidates above the threshold hold, and
    which share of the candidates they are (what random ones would hold)."""
    survivors, expected, candidates = [], [], []
    for row in record.metrics():
        query, released = record.load_query(row["round"]), record.load_release(row["round"])
        if query is None or released is None:
            continue
        question = query.question()
        true = private.votes(question)
        alive = released > row["threshold_votes"]
        survivors.append(float(true[alive].sum() / max(true.sum(), 1e-12)))
        expected.append(float(alive.mean()))
        candidates.append(question)
    ratios = [share / even for share, even in zip(survivors, expected, strict=True) if even]
    figures = {
        "survivors": [round(share, 4) for share in survivors],
        "random": [round(share, 4) for share in expected],
        "mean_ratio": round(float(np.mean(ratios)), 3) if ratios else None,
    }
    return figures, candidates


def seed_votes(
    seeds: Sequence[str], pool: Sequence[str], private: Private, config: RunConfig
) -> dict[str, Any]:
    """Seeds against as many random public texts, as candidates of one question: the seeds'
    share of the true votes (0.5 if they were no better)."""
    rng = seeded(config.seed, "seed votes")
    count = min(len(seeds), len(pool), FRECHET_TEXTS)
    chosen = [seeds[i] for i in rng.choice(len(seeds), count, replace=False)]
    other = [pool[i] for i in rng.choice(len(pool), count, replace=False)]
    rows = private.embedder.embed([*chosen, *other])
    true = private.votes(rows)
    return {"seeds_against_random": round(float(true[:count].sum() / max(true.sum(), 1e-12)), 4)}


def distances(
    texts: Texts, pool: Sequence[str], private: Private, held_out: Floats, config: RunConfig
) -> dict[str, dict[str, float]]:
    """Frechet distances to held-out text, each group at equal numbers of texts; `private` is
    the floor: private users' text at the same number."""
    rng = seeded(config.seed, "frechet")

    def rows(source: Sequence[str]) -> Floats:
        count = min(len(source), FRECHET_TEXTS)
        picked = rng.choice(len(source), count, replace=False)
        return private.embedder.embed([source[i] for i in picked])

    public = rows(pool)
    own = private.rows[
        rng.choice(len(private.rows), len(public), replace=len(private.rows) < len(public))
    ]
    groups = {
        "seeds": {"seeds": texts.seeds, "noise_votes": texts.control_seeds},
        "synthetic": {"synthetic": texts.synthetic, "noise_votes": texts.control_synthetic},
    }
    return {
        group: {
            name: round(value, 5)
            for name, value in frechet_by_size(
                {name: rows(source) for name, source in members.items() if len(source) > 1}
                | {"random_public": public, "private": own},
                held_out,
                rng,
            ).items()
        }
        for group, members in groups.items()
    }


def next_token(
    config: RunConfig,
    federation: Federation,
    downstream: str | Path,
    texts: Texts,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The same model fine-tuned on every set at equal cost -> accuracy and loss on held-out users.

    Returns accuracy, loss (nats) with intervals [value, low, high], their paired differences,
    and the learning rate with how it was chosen.
    """
    options = config.evaluation
    model = Downstream(downstream, length=options.sequence_length, device=config.models.device)
    rate, tried = rehearse(config, federation, model, progress)
    tuning = Tuning(options.steps, options.batch_size, options.sequence_length, rate, config.seed)
    held_out = {user: model.encode(own) for user, own in federation.held_out(options.on).items()}
    sets: dict[str, Sequence[str]] = {
        "random_public": federation.public(),
        "noise_votes": texts.control_synthetic,
        "synthetic": texts.synthetic,
        "private": [t for own in federation.shard(0, 1).values() for t in own],
    }
    model.reset()  # the rehearsal left the weights of its last trial
    sums = {"pretrained": model.user_sums(held_out)}
    for name, source in sets.items():
        model.fine_tune(model.encode(source), tuning, progress, f"fine-tuning on {name}")
        sums[name] = model.user_sums(held_out)
    result: dict[str, Any] = {
        "held_out_users": len(held_out),
        "held_out_tokens": int(sums["private"][:, 2].sum()),
        "methods": METHODS,
        "training_texts": {name: len(source) for name, source in sets.items()},
        "tokens_per_fine_tuning": tuning.steps * tuning.batch_tokens,
        "learning_rate": rate,
        "learning_rate_trials": tried,
    }
    for measure, column in (("loss", 0), ("accuracy", 1)):
        intervals = paired_bootstrap(
            {name: table[:, [column, 2]] for name, table in sums.items()},
            PAIRS,
            seeded(config.seed, "bootstrap"),
            resamples=options.bootstrap,
        )
        result[measure] = {k: v.value for k, v in intervals["value"].items()}
        result[f"{measure}_interval"] = {k: v.as_list()[1:] for k, v in intervals["value"].items()}
        result[f"{measure}_difference"] = {
            k: v.as_list() for k, v in intervals["difference"].items()
        }
    return result


def rehearse(
    config: RunConfig, federation: Federation, model: Downstream, progress: Progress = silent
) -> tuple[float, dict[str, float]]:
    """The learning rate, chosen on public text: adapt to half of the minority's modules, test
    on the other half; without a minority, the pool and the public validation text."""
    rates = [float(rate) for rate in split_list(config.evaluation.learning_rates)]
    options = config.evaluation
    tuning = Tuning(options.steps, options.batch_size, options.sequence_length, 0.0, config.seed)
    train: Rows = []
    validation: Rows = []
    if len(rates) > 1:
        general = set(federation.public_general())
        minority = [group for group in federation.public_groups() if group[0] not in general]
        train = model.encode([text for group in minority[::2] for text in group])
        validation = model.encode([text for group in minority[1::2] for text in group][:512])
        if not train or not validation:
            train = model.encode(federation.public())
            validation = model.encode(federation.public_validation())
    return choose_learning_rate(model, rates, train, validation, tuning, progress)
