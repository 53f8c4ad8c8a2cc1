"""What a simulated run cost: computing on the devices and on the server, bytes, releases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.run_ledger import run_id

TIMINGS_FILE = "timings.jsonl"  # as simulated nodes write it (`client_apps.node.failures.timed`)
SERVER_STAGES = ("public", "expansion")  # besides the rounds: what makes the result


def costs(config: RunConfig, folder: RunFolder, seconds: Mapping[str, float]) -> dict[str, Any]:
    """One run's costs, in the same words for every method; for a simulation only.

    Clients' CPU seconds were measured there (a device tells nobody), None where nothing was: of a
    user in a round in which the user is asked, and of a user in the whole run with its
    evaluations. seconds: of the stages. Server seconds are wall time without the exchange with
    the nodes. Bytes are those of one user on a node of its own.
    """
    run, metrics = run_id(folder), folder.exchanges()
    nodes = cache_folder(config) / "nodes"
    rounds = read_timings(nodes, run)
    beside = [
        row
        for path in folder.path.glob("evaluations/*")
        for row in read_timings(nodes, f"{run}-{path.name}")
    ]
    if not rounds:  # a run of questions without rounds
        rounds, beside = beside, []
    # Who is eligible takes turns; who is not sampled by the node costs it as much as the others.
    turns = config.ftrl.min_separation if config.ftrl.schedule == "users" else 1
    eligible = sum(row["users"] for row in rounds) / turns
    users = config.data.users
    spent, more = (sum(row["cpu_seconds"] for row in own) for own in (rounds, beside))
    outside = sum(max(0.0, row["seconds"] - row.get("exchange_seconds", 0.0)) for row in metrics)
    return {
        "client_cpu_seconds_per_user_round": round(spent / eligible, 6) if eligible else None,
        "client_cpu_seconds_per_user": round((spent + more) / users, 6) if eligible else None,
        "server_wall_seconds": round(outside + sum(seconds.get(s, 0.0) for s in SERVER_STAGES), 1),
        "bytes_up_per_user_round": max((r["bytes_up_per_node"] for r in metrics), default=0),
        "bytes_down_per_user_round": max((r["bytes_down_per_node"] for r in metrics), default=0),
        "releases": len(folder.metrics())
        + len(list(folder.path.glob("evaluations/*/releases/*.npz"))),
    }


def read_timings(folder: Path, run: str) -> list[dict[str, Any]]:
    """The entries of one run from all nodes with a cache in `folder`, by round and attempt.

    An entry has run, query, round, attempt, cpu_seconds and users: the users that the node
    stands for. A line that a killed node left unfinished is passed over.
    """
    found = []
    for path in sorted(folder.glob(f"*/{TIMINGS_FILE}")):
        for line in path.read_text("utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry["run"] == run:
                found.append(entry)
    return sorted(found, key=lambda entry: (entry["query"], entry["round"], entry["attempt"]))
