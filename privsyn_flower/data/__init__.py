"""Federated text sets: users -> samples, the public pool, partitions and caches.

Importing this package loads none of its modules: names are imported when first asked for, and none
of them needs torch or pandas.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.files import DataError
from privsyn_flower.common.on_demand import on_demand

if TYPE_CHECKING:
    from .caches import EmbeddingCache, cached_embeddings
    from .federation import Federation, prepare, shard_sizes
    from .findings import Finding
    from .surveys import Survey, survey
    from .users import Sample, check_file, load_samples, load_users, texts_of
    from .values import LabelledText, label_of
else:
    __getattr__ = on_demand(
        __name__,
        {
            "caches": "EmbeddingCache cached_embeddings",
            "federation": "Federation prepare shard_sizes",
            "findings": "Finding",
            "surveys": "Survey survey",
            "users": "Sample check_file load_samples load_users texts_of",
            "values": "LabelledText label_of",
        },
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
