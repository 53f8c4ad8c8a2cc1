"""Least squares under differential privacy, with a callback that writes a line for each release."""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from privsyn_flower import Callback, DPFedAvg

app = ServerApp()


class SignalToNoise(Callback):
    """How much longer a released sum is than its noise would be alone."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def released(self, question, noisy: np.ndarray, noise_std: float) -> None:
        ratio = np.linalg.norm(noisy) / (noise_std * np.sqrt(noisy.size))
        with self.file.open("a") as file:
            file.write(f"round {question.ticket.round}: {ratio:.1f}\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = Path.home() / "privsyn-runs" / str(context.run_id)
    result = DPFedAvg(clip_norm=1.0).start(
        grid,
        ArrayRecord([np.zeros(2)]),
        num_rounds=3,
        users=8,
        epsilon=50.0,  # for eight users: with a thousand it would be below 1
        delta=1e-3,
        folder=folder,
        callbacks=[SignalToNoise(folder.with_suffix(".txt"))],
    )
    print(folder.with_suffix(".txt").read_text(), *result.arrays.to_numpy_ndarrays())
