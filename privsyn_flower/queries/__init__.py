"""Queries: one user's private embeddings and a public question -> one bounded vector.

Pure functions: they send nothing, draw nothing and log nothing.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.queries.metrics import Reading, metrics_bound
    from privsyn_flower.queries.scores import shard_scores, similarity_scores
    from privsyn_flower.queries.votes import shard_votes, vote_histogram, vote_sensitivity
else:
    __getattr__ = on_demand(
        __name__,
        {
            "metrics": "Reading metrics_bound",
            "scores": "shard_scores similarity_scores",
            "votes": "shard_votes vote_histogram vote_sensitivity",
        },
    )

__all__ = [
    "Reading",
    "metrics_bound",
    "shard_scores",
    "shard_votes",
    "similarity_scores",
    "vote_histogram",
    "vote_sensitivity",
]
