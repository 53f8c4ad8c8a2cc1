"""Measures of synthetic text: next-token prediction, distances of distributions, intervals.

Importing this package loads numpy only. Nothing here opens private or held-out text: that
is the room `benchmark`, in simulation only.
"""

from .intervals import paired_bootstrap
from .metrics import frechet_distance, next_token_metrics

__all__ = ["frechet_distance", "next_token_metrics", "paired_bootstrap"]
