"""Federated text sets: users -> samples, the public pool, partitions and caches.

Importing this package loads neither torch nor datasets, pyarrow or pandas; what a device never
does (making a federation, a survey for a person) is imported when first asked for.
"""

from typing import TYPE_CHECKING

from privsyn_flower.files import DataError
from privsyn_flower.on_demand import on_demand

from .caches import EmbeddingCache, cached_embeddings
from .findings import Finding
from .users import LabelledText, Sample, check_file, label_of, load_samples, load_users, texts_of

if TYPE_CHECKING:
    from .federation import Federation, prepare, shard_sizes
    from .surveys import Survey, survey
else:
    __getattr__ = on_demand(
        __name__,
        Federation="federation",
        Survey="surveys",
        prepare="federation",
        shard_sizes="federation",
        survey="surveys",
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
