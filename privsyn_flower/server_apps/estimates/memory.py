"""The memory that a stage needs at most, by the sizes of its model and batches."""

from __future__ import annotations

from privsyn_flower.server_apps.estimates.shapes import Shape
from privsyn_flower.server_apps.estimates.work import Task

ADAM_ENTRIES = 4  # weights, gradients and AdamW's two moments
# Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1: activations of a layer that a backward
# pass needs, in bytes for a token and entry of its row, and for an attention head and pair of
# tokens, at two bytes an entry.
LAYER_BYTES, PAIR_BYTES = 34, 5
# The vocabulary's scores of a training step, shifted, their logarithms, and their gradient.
LOGITS = 4
SCORES = ("mask-filling", "scoring")  # passes that score the vocabulary


def memory(task: Task, shape: Shape, device: str, workers: int = 1) -> int:
    """Bytes of one batch with its model. device: where; workers: batches side by side on a CPU.

    Weights have 4 bytes an entry, but for a generator on a GPU, and in bfloat16 under adapters: 2
    (`text.models.pretrained`).
    """
    entry = entry_bytes(task, device)
    weights = entry * shape.parameters
    batches = workers if device == "cpu" else 1
    batch = min(task.batch, task.items)
    if task.kind == "fine-tuning":
        whole = (ADAM_ENTRIES + (0 if task.nodes else 1)) * 4 * shape.parameters  # and the start
        if task.rank:
            whole = weights + ADAM_ENTRIES * 4 * shape.lora(task.rank)
        elif entry < 4:
            whole += weights  # their copies for the products
        return whole + _backward(shape, task, batch, entry, shape.layers)
    if task.kind in ("imitation", "preferences"):
        sequences = batch * (2 if task.kind == "preferences" else 1)
        if device == "cpu":
            return weights + _backward(shape, task, sequences, entry, shape.layers)
        # Checkpointed: rows between layers, and one layer's activations at a time.
        kept = sequences * task.tokens * shape.width * entry * shape.layers
        return weights + kept + _backward(shape, task, sequences, entry, 1)
    if task.kind == "generation":
        length = task.shown + task.tokens
        cache = batch * length * 2 * shape.layers * shape.key_width * entry
        return weights + batches * (cache + batch * shape.vocabulary * 4)
    rows = 4 * batch * task.tokens
    scores = rows * task.scored * shape.vocabulary if task.kind in SCORES else 0.0
    passed = rows * (shape.inner + 4 * shape.width)
    return int(weights + batches * (passed + scores))


def entry_bytes(task: Task, device: str) -> int:
    """Bytes of an entry in the model's products."""
    generators = ("generation", "imitation", "preferences")
    halved = task.kind in generators and device.startswith("cuda")
    return 2 if halved else task.entry


def _backward(shape: Shape, task: Task, sequences: int, entry: int, layers: int) -> int:
    """Bytes of activations and scores of one forward and backward pass."""
    tokens = sequences * task.tokens
    layer = LAYER_BYTES * shape.width + PAIR_BYTES * shape.heads * task.tokens
    scores = LOGITS * 4 * tokens * task.scored * shape.vocabulary
    return tokens * layer * layers * entry // 2 + int(scores)
