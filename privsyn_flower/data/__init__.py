"""Federated text sets: users -> samples, the public pool, partitions and caches.

Importing this package loads neither torch nor datasets, pyarrow or pandas.
"""

from privsyn_flower.files import DataError

from .caches import EmbeddingCache, cached_embeddings
from .federation import Federation, prepare, shard_sizes
from .findings import Finding
from .survey import Survey, survey
from .users import (
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
    "Survey",
    "cached_embeddings",
    "check_file",
    "label_of",
    "load_samples",
    "load_users",
    "prepare",
    "shard_sizes",
    "survey",
    "texts_of",
]
