"""Next-token prediction: cross-entropy and top-k accuracy of a causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privsyn_flower.arrays import F64

if TYPE_CHECKING:
    import torch

IGNORED = -100

SUMS = 3  # columns of `row_sums`: cross-entropy in nats, correct predictions, predicted tokens


def next_token_metrics(
    logits: Any, labels: Any, top_k: Sequence[int] = (1, 3, 5)
) -> dict[str, float]:
    """Logits (b, l, v) and labels (b, l) -> {"loss", "accuracy", "accuracy@3", ...}.

    Position t predicts label t + 1; labels of -100 do not count. All means are micro: over the
    counted tokens of all rows together. The loss is in nats; "accuracy" is top-1. Arrays or
    tensors. Raises ValueError on shapes, when no token counts, and for a k outside 1..v.
    """
    import torch

    scores, targets = torch.as_tensor(logits), torch.as_tensor(labels)
    if scores.ndim != 3 or targets.shape != scores.shape[:2]:
        raise ValueError(
            f"logits {tuple(scores.shape)} and labels {tuple(targets.shape)} must have shapes "
            "(b, l, v) and (b, l)"
        )
    if any(not 1 <= k <= scores.shape[2] for k in top_k):
        raise ValueError(f"top_k = {tuple(top_k)}: every k must be in 1..{scores.shape[2]}")
    scores, targets = scores[:, :-1].float(), targets[:, 1:]
    counted = targets != IGNORED
    if not counted.any():
        raise ValueError("no label counts: all are -100 or in the first column")
    scores, targets = scores[counted], targets[counted]
    result = {"loss": float(torch.nn.functional.cross_entropy(scores, targets).item())}
    ranked = scores.topk(max(top_k, default=1), dim=-1).indices
    for k in top_k:
        hit = (ranked[:, :k] == targets[:, None]).any(dim=-1)
        result["accuracy" if k == 1 else f"accuracy@{k}"] = float(hit.double().mean().item())
    return result


def row_sums(logits: torch.Tensor, labels: torch.Tensor, unknown: int | None = None) -> F64:
    """Logits (b, l, v), labels (b, l) -> (b, 3) sums per row: loss in nats, correct, tokens.

    Sums, not means, so that users can be pooled and resampled. Shifted by one; -100 is ignored.
    unknown: the id of words outside of the vocabulary, as which no prediction is right: nobody
    has named the word.
    """
    import torch

    scores, targets = logits[:, :-1].float(), labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        scores.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
    )
    counted = targets != IGNORED
    correct = (scores.argmax(dim=-1) == targets) & counted
    if unknown is not None:
        correct &= targets != unknown
    columns = (losses.double().sum(1), correct.double().sum(1), counted.double().sum(1))
    table: F64 = torch.stack(columns, dim=1).cpu().numpy()
    return table
