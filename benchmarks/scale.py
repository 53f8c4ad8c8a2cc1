"""Many users on one machine: seconds of each stage, and the peak memory of each process.

    python benchmarks/scale.py [--users 10000 100000] [--json scale.json]

For each number of users a file of made-up users (8 texts of 12 words each), hashed n-gram
embeddings, and two rounds of votes for 1,024 candidates under secure aggregation on 8 simulated
SuperNodes, with empty caches. Memory is the largest resident set (VmHWM) of a process, as Linux
counts it; processor seconds are of all processes of that kind together. A million users take
about 15 GB of disk in the folder for temporary files.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.local.processes import started_under
from privsyn_flower.app.local.simulation import LocalFlower
from privsyn_flower.client_apps.node.failures import TIMINGS_FILE
from privsyn_flower.config import RunConfig, absolute_paths
from privsyn_flower.runs import read_jsonl

SAMPLES, CANDIDATES, WORDS = 8, 1024, 12
HELD_OUT = 100
KINDS = {  # what a process's command line holds -> what it is
    "ClientAppActor": "nodes",
    "flwr-simulation": "server",
    "flower-superlink": "SuperLink",
}
TICKS = os.sysconf("SC_CLK_TCK")


def write_users(path: Path, users: int, seed: int) -> None:
    """users x SAMPLES random sentences as jsonl, a thousand users at a time."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word{i}" for i in range(5000)])
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, users, 1000):
            drawn = rng.choice(words, size=(min(1000, users - first), SAMPLES, WORDS))
            for user, own in enumerate(drawn.tolist(), first):
                for text in own:
                    row = {"user_id": f"user-{user}", "text": " ".join(text)}
                    file.write(json.dumps(row) + "\n")


class Watcher:
    """Memory and processor time of a run's processes, read from /proc until it is stopped."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.peaks: dict[int, int] = {}  # process -> bytes
        self.seconds: dict[int, float] = {}
        self.kinds: dict[int, str] = {}
        self.together = 0  # resident bytes of all processes at once
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def peak(self, kind: str) -> int:
        """Of the largest process of a kind, bytes."""
        return max((self.peaks[p] for p, k in self.kinds.items() if k == kind), default=0)

    def processor(self, kind: str) -> float:
        """Seconds of all processes of a kind."""
        return sum(self.seconds[p] for p, k in self.kinds.items() if k == kind)

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            now = sum(self._look(process) for process in started_under(self.home))
            self.together = max(self.together, now)

    def _look(self, process: int) -> int:
        """Resident bytes of a process; 0 when it is gone."""
        entry = Path("/proc") / str(process)
        try:
            command = (entry / "cmdline").read_text()
            status = (entry / "status").read_text()
            times = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0
        if "VmHWM" not in status:
            return 0
        kind = next((name for mark, name in KINDS.items() if mark in command), "Ray, and others")
        self.kinds[process] = kind
        self.peaks[process] = max(self.peaks.get(process, 0), _kilobytes(status, "VmHWM") * 1024)
        self.seconds[process] = (int(times[11]) + int(times[12])) / TICKS
        return _kilobytes(status, "VmRSS") * 1024


def _kilobytes(status: str, name: str) -> int:
    return int(status.split(f"{name}:")[1].split()[0])


def configuration(folder: Path, users: int, options: argparse.Namespace) -> dict[str, Any]:
    """Flat keys of the run."""
    return {
        "rounds": options.rounds,
        "nodes": options.nodes,
        "epsilon": 50.0,
        "cache": str(folder / "cache"),
        "round-timeout": 3600.0,
        "stage-timeout": 600.0,
        "data.source": "files",
        "data.path": str(folder / "users.jsonl"),
        "data.public-path": str(folder / "public.jsonl"),
        "data.users": users,
        "data.samples-per-user": SAMPLES,
        "data.held-out-users": HELD_OUT,
        "data.development-users": 0,
        "data.public-pool": 2000,
        "data.public-validation": 8,
        "models.embedder": f"ngram-{options.dimension}",
        "pretext.population": CANDIDATES,
        "pretext.lookahead": 1,
        "pretext.variation": "retrieval",
        "expand.samples": 0,
        **dict(pair.split("=", 1) for pair in options.set),
    }


def measured(folder: Path, users: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run with so many users, from its file on."""
    write_users(folder / "users.jsonl", users + HELD_OUT, seed=0)
    write_users(folder / "public.jsonl", 300, seed=1)
    run = folder / "run"
    run.mkdir()
    config = absolute_paths(RunConfig.from_flat(configuration(folder, users, options)), run)
    flower, begin = LocalFlower(run), time.perf_counter()
    with Watcher(flower.home) as watcher:
        try:
            flower.start()
            flower.submit(config)
            server_when_ready = _wait(run, watcher)
        finally:
            flower.close()
    summary = json.loads((run / "summary.json").read_text())
    timings = [
        row
        for path in sorted((folder / "cache" / "nodes").glob(f"*/{TIMINGS_FILE}"))
        for row in read_jsonl(path)
    ]
    rounds = sorted({row["round"] for row in timings})
    kinds = sorted({*watcher.kinds.values()})
    return {
        "users": users,
        "nodes": options.nodes,
        "dimension": options.dimension,
        "wall_seconds": round(time.perf_counter() - begin, 1),
        "stage_seconds": summary["stage_seconds"],
        "round_seconds": [row["exchange_seconds"] for row in read_jsonl(run / "metrics.jsonl")],
        "answers_processor_seconds": [
            round(sum(row["cpu_seconds"] for row in timings if row["round"] == rnd), 1)
            for rnd in rounds
        ],
        "processor_seconds": {kind: round(watcher.processor(kind), 1) for kind in kinds},
        "peak_bytes": {kind: watcher.peak(kind) for kind in kinds},
        "server_bytes_when_data_is_ready": server_when_ready,
        "peak_bytes_together": watcher.together,
        "disk_bytes": sum(path.stat().st_size for path in _files(folder / "cache")),
    }


def _wait(run: Path, watcher: Watcher) -> int:
    """Until the run has ended; the server's peak when its data was ready, bytes."""
    ready = 0
    while not (run / "summary.json").exists():
        if (run / "error.txt").exists():
            raise RuntimeError((run / "error.txt").read_text())
        if not ready and (run / "progress.jsonl").exists():
            done = [
                row["done"]
                for row in read_jsonl(run / "progress.jsonl")
                if row.get("stage") == "data"
            ]
            if done and done[-1] == 1:
                time.sleep(0.6)  # the watcher's next look
                ready = watcher.peak("server")
        time.sleep(0.5)
    return ready


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def table(rows: list[dict[str, Any]]) -> str:
    """What was measured, a column for each number of users."""
    lines = [("users", [f"{row['users']:,}" for row in rows])]
    stages = list(dict.fromkeys(stage for row in rows for stage in row["stage_seconds"]))
    for stage in stages:
        found = [row["stage_seconds"].get(stage, 0.0) for row in rows]
        lines.append((f"{stage}, s", [f"{value:,.1f}" for value in found]))
    for rnd in range(max(len(row["round_seconds"]) for row in rows)):
        lines.append((f"round {rnd + 1}, s", [f"{row['round_seconds'][rnd]:,.1f}" for row in rows]))
        values = [row["answers_processor_seconds"][rnd] for row in rows]
        lines.append((f"round {rnd + 1}, answers' processor s", [f"{v:,.1f}" for v in values]))
    lines.append(("all, s", [f"{row['wall_seconds']:,.1f}" for row in rows]))
    for kind in sorted({kind for row in rows for kind in row["peak_bytes"]}):
        seconds = [row["processor_seconds"].get(kind, 0.0) for row in rows]
        lines.append((f"{kind}: processor s", [f"{value:,.1f}" for value in seconds]))
        peaks = [row["peak_bytes"].get(kind, 0) / 1e6 for row in rows]
        lines.append((f"{kind}: largest process, MB", [f"{value:,.0f}" for value in peaks]))
    ready = [row["server_bytes_when_data_is_ready"] / 1e6 for row in rows]
    lines.append(("server when its data is ready, MB", [f"{value:,.0f}" for value in ready]))
    together = [row["peak_bytes_together"] / 1e6 for row in rows]
    lines.append(("all processes at once, MB", [f"{value:,.0f}" for value in together]))
    lines.append(("disk, MB", [f"{row['disk_bytes'] / 1e6:,.0f}" for row in rows]))
    return "\n".join(f"{name:36}" + "".join(f"{v:>14}" for v in values) for name, values in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--dimension", type=int, default=256, help="of the n-gram embeddings")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="where the figures go, beside the table")
    options = parser.parse_args()
    rows = []
    for users in options.users:
        with tempfile.TemporaryDirectory() as name:
            rows.append(measured(Path(name), users, options))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
