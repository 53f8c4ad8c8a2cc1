"""Federated text sets: users -> samples, the public pool, partitions and caches.

Importing this package loads neither torch nor datasets, pyarrow or pandas.
"""

from .caches import EmbeddingCache, cached_embeddings
from .federation import Federation, prepare, shard_sizes
from .storage import DataError
from .users import Finding, Sample, check_file, load_samples, load_users

__all__ = [
    "DataError",
    "EmbeddingCache",
    "Federation",
    "Finding",
    "Sample",
    "cached_embeddings",
    "check_file",
    "load_samples",
    "load_users",
    "prepare",
    "shard_sizes",
]
