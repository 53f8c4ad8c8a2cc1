"""One of the processes that share a fine-tuning, started by `several.py`.

python -m privsyn_flower.evaluation.process FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from privsyn_flower.evaluation.downstream import Adapter, Downstream
from privsyn_flower.evaluation.fitting import trained_weights
from privsyn_flower.evaluation.rows import TokenRows
from privsyn_flower.evaluation.several import DONE, JOB, TOLD, TRAINED
from privsyn_flower.evaluation.tuning import Tuning
from privsyn_flower.files import replace_private


def main(folder: Path) -> None:
    """One of the processes: train, and the first writes the result."""
    job = json.loads((folder / JOB).read_text("utf-8"))
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = job["device"].startswith("cuda")
    if cuda:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{(folder / 'meeting').resolve()}",
        rank=rank,
        world_size=count,
    )
    adapter = Adapter(**job["adapter"]) if job["adapter"] else None
    names = ("length", "device", "special_tokens", "base_dtype")
    model = Downstream(job["model"], adapter=adapter, **{name: job[name] for name in names})
    rows, choice = (TokenRows.load(folder / f"{name}.npz") for name in ("rows", "choice"))

    def told(stage: str, done: float, total: float, note: str = "") -> None:
        print(TOLD + json.dumps([stage, done, total, note]), flush=True)

    tuning = Tuning(**job["tuning"])
    more: dict[str, Any] = {"work": folder / "work", "choice": choice if job["choose"] else None}
    loss = model.fine_tune(rows, tuning, told, job["stage"], **more)
    if rank == 0:
        save_file(trained_weights(model.model, model.adapter is not None), folder / TRAINED)
        replace_private(folder / DONE, json.dumps({"loss": loss}).encode())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
