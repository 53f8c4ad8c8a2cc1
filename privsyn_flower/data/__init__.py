"""Federated text sets: users -> samples, the public pool, partitions and caches.

Importing this package loads neither torch nor datasets, pyarrow or pandas.
"""

from .caches import EmbeddingCache, cached_embeddings
from .federation import Federation, prepare, shard_sizes
from .storage import DataError
from .users import (
    Finding,
    LabelledText,
    Sample,
    check_file,
    label_of,
    load_samples,
    load_users,
    texts_of,
)

__all__ = [
    "DataError",
    "EmbeddingCache",
    "Federation",
    "Finding",
    "LabelledText",
    "Sample",
    "cached_embeddings",
    "check_file",
    "label_of",
    "load_samples",
    "load_users",
    "prepare",
    "shard_sizes",
    "texts_of",
]
