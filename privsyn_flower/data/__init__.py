"""Federated text sets: users -> samples, the public pool, partitions and caches.

Importing this package loads none of its modules: names are imported when first asked for, and none
of them needs torch or pandas.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.files import DataError as DataError
from privsyn_flower.common.on_demand import names_of, on_demand

if TYPE_CHECKING:
    from privsyn_flower.data.caches import EmbeddingCache as EmbeddingCache
    from privsyn_flower.data.caches import cached_embeddings as cached_embeddings
    from privsyn_flower.data.federation import Federation as Federation
    from privsyn_flower.data.federation import prepare as prepare
    from privsyn_flower.data.federation import shard_sizes as shard_sizes
    from privsyn_flower.data.findings import Finding as Finding
    from privsyn_flower.data.surveys import Survey as Survey
    from privsyn_flower.data.surveys import survey as survey
    from privsyn_flower.data.users import Sample as Sample
    from privsyn_flower.data.users import check_file as check_file
    from privsyn_flower.data.users import load_samples as load_samples
    from privsyn_flower.data.users import load_users as load_users
    from privsyn_flower.data.users import texts_of as texts_of
    from privsyn_flower.data.values import LabelledText as LabelledText
    from privsyn_flower.data.values import label_of as label_of
else:
    _HOMES = {
        "caches": "EmbeddingCache cached_embeddings",
        "federation": "Federation prepare shard_sizes",
        "findings": "Finding",
        "surveys": "Survey survey",
        "users": "Sample check_file load_samples load_users texts_of",
        "values": "LabelledText label_of",
    }
    __getattr__ = on_demand(__name__, _HOMES)
    __all__ = names_of(_HOMES, "DataError")
