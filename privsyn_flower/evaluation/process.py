"""One of the processes that fine-tune for another, started by `process_pool.py`.

python -m privsyn_flower.evaluation.process FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CUT = 3  # exit status: whoever wanted this is gone


def main(folder: Path) -> None:
    """Train; the first process writes the result."""
    threading.Thread(target=_end_with_the_line, daemon=True).start()
    # What follows loads torch for seconds, and may be ended meanwhile.
    import torch

    from privsyn_flower.common.files import replace_private
    from privsyn_flower.evaluation.process_pool import DONE, JOB, PROGRESS_PREFIX
    from privsyn_flower.evaluation.rows import TokenRows
    from privsyn_flower.evaluation.tuning import Tuning

    job = json.loads((folder / JOB).read_text("utf-8"))
    rank, count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if count > 1:
        _join(folder, rank, count, job["model"]["device"].startswith("cuda"))
    model = _loaded(job["model"])
    rows, choice = (
        model.unpacked(TokenRows.load(folder / f"{name}.npz")) for name in ("rows", "choice")
    )

    def report(stage: str, done: float, total: float, note: str = "") -> None:
        print(PROGRESS_PREFIX + json.dumps([stage, done, total, note]), flush=True)

    more: dict[str, Any] = {"work": folder / "work", "choice": choice if job["choose"] else None}
    loss = model.fine_tune(rows, Tuning(**job["tuning"]), report, job["stage"], **more)
    if rank == 0:
        result = {"loss": loss, **_result(folder, job, model)}
        replace_private(folder / DONE, json.dumps(result).encode())
    if count > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _end_with_the_line() -> None:
    """Nothing is ever written to this process: its stdin ends when it has to."""
    while os.read(0, 1):
        pass
    os._exit(CUT)


def _join(folder: Path, rank: int, count: int, cuda: bool) -> None:
    import torch

    if cuda:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{(folder / 'meeting').resolve()}",
        rank=rank,
        world_size=count,
    )


def _loaded(spec: Mapping[str, Any]) -> Any:
    """The model that said this of itself."""
    from privsyn_flower.evaluation.classification import Classifier
    from privsyn_flower.evaluation.downstream import Adapter, Downstream

    if "labels" in spec:
        return Classifier(**spec)
    adapter = Adapter(**spec["adapter"]) if spec["adapter"] else None
    return Downstream(**{**spec, "adapter": adapter})


def _result(folder: Path, job: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The users' sums, where users were given; else the weights are written for the others."""
    from privsyn_flower.evaluation.process_pool import TRAINED
    from privsyn_flower.evaluation.rows import TokenRows

    if "users" not in job:
        from safetensors.torch import save_file

        from privsyn_flower.evaluation.fitting import trained_weights

        save_file(trained_weights(model.model, model.adapter is not None), folder / TRAINED)
        return {}
    rows, users, first = model.unpacked(TokenRows.load(folder / "users.npz")), {}, 0
    for user, count in enumerate(job["users"]):
        users[str(user)] = rows[first : first + count]
        first += count
    return {"sums": model.user_sums(users).tolist()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
