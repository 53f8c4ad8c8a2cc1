"""What DP-FTRL with noise made by the nodes costs a device each round, beside any secure round.

    python benchmarks/matrix_noise.py [--length 1300000 8000000] [--bands 25 100]

CPU seconds of one round of a node of one user, after `bands` rounds: the row, whose past vectors
are read from disk one by one; and what every secure round with dense updates does: one user's
encoding, the noise, and the mask of one pair (a node has one for each neighbour, and its own).
"memory": the peak of the row beyond what the process had, in bytes a coordinate; "disk": the past
vectors. Every answer has 4 bytes a coordinate, where independent noise may fit in 3. One process
for each line; on a machine that does other things look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from privsyn_flower.client_apps.node.past_vectors import load_vector, store_vector
from privsyn_flower.privacy.correlated import Participation
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.correlated.toeplitz import square_root
from privsyn_flower.privacy.encoding.dense import dense_numbers, encode_dense
from privsyn_flower.privacy.noise.integer_noise import node_variance, system_discrete_gaussian
from privsyn_flower.secagg.keys import mask_stream

WEIGHT, Z = 1000, 1.0  # users of the cohort; a row's noise per unit of a_0 and one bound


def cpu(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def measure(length: int, bands: int, folder: Path) -> dict[str, float]:
    users = Participation(2000, 100, 20)
    matrix = IntegerMatrix.nearest(square_root(bands), users)
    plan = dense_numbers(1.0, length, Z, WEIGHT, WEIGHT, rows=(matrix.unit, matrix.row_norm))
    padded, rng = plan.padded_length, np.random.default_rng(0)
    vector = rng.standard_normal(length) / length**0.5
    encoded = encode_dense(vector, plan, b"seed")
    encoding = cpu(lambda: encode_dense(vector, plan, b"seed"))
    for past in range(bands):
        store_vector(folder, str(past), encoded)
    disk = sum(path.stat().st_size for path in folder.iterdir())

    def load(rnd: int) -> np.ndarray:
        return load_vector(folder, str(rnd - 1), padded)

    storing = cpu(lambda: store_vector(folder, "0", encoded))
    row = cpu(lambda: matrix.row(bands, load))
    tracemalloc.start()  # a few vectors will do: one is held at a time
    matrix.row(min(bands, 4), load)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    variance = node_variance(Z, 1.0, WEIGHT, plan.sensitivity * matrix.unit)
    return {
        "row": row + storing,
        "noise": cpu(lambda: system_discrete_gaussian(padded, variance)),
        "encoding": encoding,
        "mask": cpu(lambda: mask_stream(bytes(32), padded, plan.bits)),
        "memory": memory / padded,
        "disk": disk / 2**20,
        "bits": plan.bits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, nargs="*", default=[1_300_000, 8_000_000])
    parser.add_argument("--bands", type=int, nargs="*", default=[25, 100])
    parser.add_argument("--line", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.line:
        print(json.dumps(measure(args.length[0], args.bands[0], Path(args.line))))
        return
    names = ("row", "noise", "encoding", "mask", "memory", "disk", "bits")
    units = ("cpu s", "cpu s", "cpu s", "cpu s", "bytes", "MiB", "")
    print(f"{'parameters':>11}{'bands':>7}" + "".join(f"{name:>10}" for name in names))
    print(" " * 18 + "".join(f"{unit:>10}" for unit in units))
    for length in args.length:
        for bands in args.bands:
            with tempfile.TemporaryDirectory() as name:
                command = [sys.executable, __file__, "--line", name]
                command += ["--length", str(length), "--bands", str(bands)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            line = json.loads(done.stdout)
            numbers = "".join(f"{line[name]:>10.2f}" for name in names[:5])
            print(
                f"{length:>11,}{bands:>7}{numbers}{line['disk']:>10.0f}{line['bits']:>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
