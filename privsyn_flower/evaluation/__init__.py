"""Measures of synthetic text: next-token prediction, distances of distributions, intervals.

Importing this package loads nothing: names are imported when first asked for. Nothing here opens
private or held-out text: that is `app.benchmark`, in simulation only.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.evaluation.intervals import paired_bootstrap
    from privsyn_flower.evaluation.metrics import frechet_distance, next_token_metrics
else:
    __getattr__ = on_demand(
        __name__,
        {"intervals": "paired_bootstrap", "metrics": "frechet_distance next_token_metrics"},
    )

__all__ = ["frechet_distance", "next_token_metrics", "paired_bootstrap"]
