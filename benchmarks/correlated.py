"""Seconds and memory of a round of correlated noise, by mechanism.

    python benchmarks/correlated.py [--length 2000000] [--only blt banded ...]
    python benchmarks/correlated.py --length 82000000     # a quarter of an hour, 25 GB of disk

One process for each line, so that the peak memory is its own. "seconds" is the mean of the rounds
named, "cpu s" the processor time of the same, both for one round. "memory" is the peak of the
process beyond what it had before, in copies of the model (4 bytes a parameter), the returned
noise (float64: two copies) included; "disk" the largest size of the records, in the same unit.
Regenerated noise takes as long as all the rounds up to its own, so its line holds for that round
alone. On a machine that does other things, look at the processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from privsyn_flower.privacy.correlated import Keep, NoiseKey, Participation, factorization

# Mechanism, options, what is kept, and the first, first measured and last round. Records of a
# round that is entered in the middle are drawn first, all at once, outside of what is measured.
LINES: dict[str, tuple[str, dict[str, int], Keep, tuple[int, int, int]]] = {
    "tree": ("tree", {}, "nothing", (1, 1, 8)),
    "tree-honaker": ("tree-honaker", {}, "files", (1, 1, 8)),
    "banded": ("banded", {"bands": 32}, "files", (33, 34, 36)),
    "banded-regenerated": ("banded", {"bands": 32}, "nothing", (8, 8, 8)),
    "blt": ("blt", {"buffers": 4}, "files", (1, 3, 6)),
}


def resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The largest resident size, looked at every 20 ms: `ru_maxrss` cannot be set back."""

    def __enter__(self) -> Peak:
        self.start = self.bytes = resident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.bytes = max(self.bytes, resident())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure(line: str, length: int, folder: Path) -> dict[str, float]:
    name, options, keep, (first, measured, last) = LINES[line]
    users = Participation(2000, 100, 20)
    mechanism = factorization(name, users.rounds, participation=users, **options)
    key = NoiseKey.create(folder, line)
    stream = mechanism.stream(key, length, keep=keep)
    disk, wall, cpu = 0, 0.0, 0.0
    with Peak() as peak:
        for rnd in range(first, last + 1):
            before, used = time.perf_counter(), time.process_time()
            stream.noise(rnd)
            if rnd >= measured:
                wall += time.perf_counter() - before
                cpu += time.process_time() - used
            disk = max(disk, sum(path.stat().st_size for path in key.place.iterdir()))
    key.erase()
    rounds, copy = last - measured + 1, 4 * length
    memory = (peak.bytes - peak.start) / copy
    return {"seconds": wall / rounds, "cpu": cpu / rounds, "memory": memory, "disk": disk / copy}


def bare(length: int) -> float:
    rng, used = np.random.default_rng(0), time.process_time()
    rng.standard_normal(length)
    return time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="for keys and records")
    parser.add_argument("--only", nargs="*", default=list(LINES), choices=list(LINES))
    parser.add_argument("--line", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.line:
        print(json.dumps(measure(args.line, args.length, args.folder)))
        return
    print(f"{args.length:,} parameters, {os.cpu_count()} cores; memory and disk in model copies")
    print(f"one vector by numpy's generator  {bare(args.length):.2f} cpu s")
    print(f"{'mechanism':20}{'rounds':>8}{'seconds':>9}{'cpu s':>8}{'memory':>8}{'disk':>7}")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        Path(name).chmod(0o700)
        for line in args.only:
            command = [sys.executable, __file__, "--line", line, "--folder", name]
            command += ["--length", str(args.length)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row = json.loads(done.stdout)
            _, measured, last = LINES[line][3]
            rounds = f"{measured}-{last}" if last > measured else str(last)
            print(
                f"{line:20}{rounds:>8}{row['seconds']:>9.2f}{row['cpu']:>8.2f}"
                f"{row['memory']:>8.2f}{row['disk']:>7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
