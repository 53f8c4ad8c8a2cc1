"""Queries: one user's private embeddings and a public question -> one bounded vector.

Pure functions: they send nothing, draw nothing and log nothing.
"""

from privsyn_flower.queries.scores import shard_scores, similarity_scores
from privsyn_flower.queries.votes import shard_votes, vote_histogram, vote_sensitivity

__all__ = [
    "shard_scores",
    "shard_votes",
    "similarity_scores",
    "vote_histogram",
    "vote_sensitivity",
]
