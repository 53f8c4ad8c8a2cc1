"""Texts beside texts: how far they are from held-out text, and how much of others they repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privsyn_flower.app.benchmark.private import Private
from privsyn_flower.arrays import F32
from privsyn_flower.config import RunConfig
from privsyn_flower.evaluation.distances import frechet_by_size
from privsyn_flower.evaluation.duplicates import near_duplicates
from privsyn_flower.randomness import seeded

Sets = Mapping[str, Sequence[str]]

FRECHET_TEXTS = 500  # texts embedded per set: enough for 384 dimensions, half a minute on a CPU


def distances(
    groups: Mapping[str, Sets],
    pool: Sequence[str],
    private: Private,
    held_out: F32,
    config: RunConfig,
) -> dict[str, dict[str, float]]:
    """Frechet distances to held-out text, each group at equal numbers of texts; `private` is
    the floor: private users' text at the same number."""
    rng = seeded(config.seed, "frechet")

    def rows(source: Sequence[str]) -> F32:
        count = min(len(source), FRECHET_TEXTS)
        picked = rng.choice(len(source), count, replace=False)
        return private.embedder.embed([source[i] for i in picked])

    others = {"random_public": rows(pool)} if len(pool) > 1 else {}
    count = len(others["random_public"]) if others else min(len(private.rows), FRECHET_TEXTS)
    own = rng.choice(len(private.rows), count, replace=len(private.rows) < count)
    others["private"] = private.rows[own]
    return {
        group: {
            name: round(value, 5)
            for name, value in frechet_by_size(
                {name: rows(source) for name, source in members.items() if len(source) > 1}
                | others,
                held_out,
                rng,
            ).items()
        }
        for group, members in groups.items()
    }


def repeated(
    synthetic: Sequence[str], references: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """How much of the synthetic text repeats other texts, by the names of these."""
    return {name: near_duplicates(synthetic, texts) for name, texts in references.items()}
