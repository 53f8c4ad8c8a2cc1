"""A DP-Adam step on one node against the same step without privacy, and the memory it takes.

    python benchmarks/dp_adam.py [--records 256] [--length 64] [--threads 1] [--model FOLDER]

Both sides start from the same tokens, records of exactly this length: so nothing is gained or lost
by padding. Without privacy: the gradient of the mean loss over all records, in batches that fit,
and a step of torch's AdamW. With it: every record's own gradient (`training/per_example.py`),
clipped, added up, and a step of ours on the mean. Goal: at most 2.5 times the processor's seconds.
Printed beside it: one record after another in place of groups, and what each node with noise of its
own pays besides: every record's rotation and rounding to integers (`encode_dense`).
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from local_training import EMBEDDED, RANK

from privsyn_flower.config import AveragingConfig
from privsyn_flower.privacy.encoding.dense import dense_numbers, encode_dense
from privsyn_flower.queries.updates import shard_updates
from privsyn_flower.strategies.averaging.server_optimizers import server_optimizer
from privsyn_flower.text.models.batches import causal_loss
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.low_rank import initial_parameters, trained_patterns
from privsyn_flower.training.models import LoadedLM, load_model

CLIP = 1.0
TOKENS = 2048  # of a batch without privacy
Rows = list[list[tuple[list[int], int]]]


def cpu_ms(work: Callable[[], Any], records: int, repeat: int = 3) -> float:
    """Median milliseconds of the processor for a record, after a first call."""
    work()
    spent = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return 1000 * float(np.median(spent)) / records


def without_privacy(loaded: LoadedLM, rows: Rows) -> Callable[[], Any]:
    """AdamW on the gradient of the mean loss, the batch in parts."""
    import torch

    model, leaves = loaded._scorer.model, loaded._leaves
    ids = torch.tensor([own for ((own, _),) in rows])
    optimizer = torch.optim.AdamW(leaves, lr=1e-9)
    part = max(1, TOKENS // ids.shape[1])

    def step() -> None:
        optimizer.zero_grad()
        with torch.enable_grad():
            for some in ids.split(part):  # type: ignore[no-untyped-call]
                loss = causal_loss(model, some, torch.ones_like(some))
                (loss * len(some) / len(ids)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def with_privacy(loaded: LoadedLM, rows: Rows, deltas: Callable[[], Any]) -> Callable[[], Any]:
    """Clipped one by one, and our AdamW on the mean."""
    adamw = server_optimizer(AveragingConfig(server_optimizer="adamw", server_learning_rate=1e-9))
    length = loaded.layout.length
    slots = adamw.start(length)

    def step() -> None:
        total = shard_updates(deltas(), length=length, clip_norm=CLIP, indicator=0.0)
        adamw.step(total / len(rows), slots)

    return step


def measure(folder: Path, kind: Any, records: int, length: int) -> None:
    """Prints one line for the parameters of this kind."""
    options = LocalTraining(
        "sgd", 1.0, 0.0, 0.0, epochs=1, batch_size=1, max_steps=1, sequence_length=length
    )
    parameters = initial_parameters(folder, kind, rank=RANK)
    rng = np.random.default_rng(0)
    with load_model(folder, "cpu").load(parameters, trained_patterns(folder, kind)) as loaded:
        drawn = rng.integers(3, loaded._scorer.model.config.vocab_size, size=(records, length))
        rows: Rows = [[(own.tolist(), 1)] for own in drawn]
        plain = cpu_ms(without_privacy(loaded, rows), records)
        group = loaded.group(options)
        alone = cpu_ms(
            with_privacy(loaded, rows, lambda: (loaded._fit(own, options, rng) for own in rows)),
            records,
        )
        line = f"{alone:.2f} ({alone / plain:.2f} x) one by one"
        if group is not None:
            ours = cpu_ms(with_privacy(loaded, rows, lambda: group.deltas(rows)), records)
            line = f"{ours:.2f} ({ours / plain:.2f} x) in groups of {group._shape[0]}, {line}"
        plan = dense_numbers(CLIP, loaded.layout.length, 1.0, records, records)
        vector = rng.standard_normal(loaded.layout.length)
        vector /= np.linalg.norm(vector)
        encoding = cpu_ms(lambda: [encode_dense(vector, plan, bytes(32)) for _ in range(32)], 32)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{kind}: d = {loaded.layout.length:,}; CPU ms a record: without privacy {plain:.2f}; "
            f"DP-Adam {line}; encoding {encoding:.2f}; peak memory of the process {peak:.0f} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=256)
    parser.add_argument("--length", type=int, default=64, help="tokens of a record")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its own choice")
    parser.add_argument("--model", type=Path, default=EMBEDDED, help="a causal LM's folder")
    parser.add_argument("--kinds", default="full,lora", help="parameters, with commas between")
    options = parser.parse_args()
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    for kind in options.kinds.split(","):
        measure(options.model, kind, options.records, options.length)


if __name__ == "__main__":
    main()
