"""Whether a simulation can run in a Ray cluster of the user's: told before it starts, in seconds.

Flower attaches to the cluster that RAY_ADDRESS names, and hangs for minutes where there is none. A
simulated node's next message may be answered on any machine of it. So all of them need the same
code, libraries and data, and one cache folder between them: there the nodes keep which questions
they have answered, and their keys. Two folders would be two nodes of one name.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.app.local.ray_probe import FLOCK, HERE, LOCKF, PATIENCE
from privsyn_flower.app.local.simulation import CLUSTER_CHECKED, FlowerError, users_cluster
from privsyn_flower.common.files import private_folder
from privsyn_flower.common.python_path import finding_us
from privsyn_flower.config import RunConfig, cache_folder

REACH_SECONDS = 3.0
MAX_DIFFERENCES = 12  # differences that are listed
LIBRARIES = (
    "flwr", "ray", "numpy", "scipy", "cryptography", "pyarrow", "torch", "transformers",
    "tokenizers", "sentence-transformers", "onnxruntime", "safetensors", "peft",
)  # fmt: skip
# Ray asks a cluster 20 times, a second apart, before it says that it cannot.
IMPATIENT = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


class ClusterError(FlowerError):
    """The simulation cannot run in that cluster; the text says why, a line for each reason."""


class NoCluster(ClusterError):
    """Nobody takes this machine in there. Ray itself would go on trying for minutes."""


def check_cluster(config: RunConfig, address: str) -> str:
    """What the cluster offers, in one line. Raises NoCluster within seconds where nobody
    answers, ClusterError where a machine differs from this one or does not share its cache folder.

    config: with absolute paths. address: as RAY_ADDRESS has it.
    """
    _reach(*parsed(address))
    answer = _probe_answer(config, address)
    errors = differences(answer["here"], answer["nodes"], cache_folder(config))
    if not answer["nodes"]:
        errors = [f"the Ray cluster at {address} has no node with a CPU for a client"]
    if errors:
        raise ClusterError("\nerror: ".join(errors[:MAX_DIFFERENCES]))
    count = len(answer["nodes"])
    return (
        f"Ray cluster at {address}: {count} {'node' if count == 1 else 'nodes'} with "
        f"{answer['cpus']:g} CPUs, of the same code, libraries and data as here"
    )


def check_here(config: RunConfig) -> str:
    """`check_cluster` from a ServerApp: of the cluster that RAY_ADDRESS names, unless whoever
    started Flower has done so; "" then, and without a cluster."""
    address = users_cluster()
    if not address or os.environ.get(CLUSTER_CHECKED) == address:
        return ""
    return check_cluster(config, address)


def parsed(address: str) -> tuple[str, int]:
    """Host and port. Raises ClusterError for anything else, `ray://...` among it."""
    host, _, port = address.rpartition(":")
    name = host.removeprefix("[").removesuffix("]")
    if not name or "/" in address or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ClusterError(
            f"Ray address {address!r} must be HOST:PORT, the one that `ray start --head` shows for "
            "other nodes (port 6379 unless told otherwise; no ray://, which is for Ray's clients)"
        )
    return name, int(port)


def _reach(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=REACH_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise NoCluster(
            f"no Ray cluster answers at {host}:{port} ({reason}): start one there with "
            "`ray start --head`, or mend --ray HOST:PORT (RAY_ADDRESS)"
        ) from None


def _probe_answer(config: RunConfig, address: str) -> dict[str, Any]:
    """The probe's answer. Raises NoCluster with what Ray says when it cannot connect."""
    folder = private_folder(cache_folder(config)) / f".ray-check-{secrets.token_hex(8)}"
    private_folder(folder)
    try:
        word = secrets.token_hex(16)
        for name in (HERE, FLOCK, LOCKF):
            (folder / name).write_text(word, encoding="ascii")
        question = {
            "config": config.flat(),
            "libraries": LIBRARIES,
            "paths": _paths(config),
            "folder": str(folder),
            "word": word,
        }
        return _probe(question, address)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _probe(question: Mapping[str, Any], address: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "privsyn_flower.app.local.ray_probe"]
    environment = {**finding_us(os.environ), **IMPATIENT, "RAY_ADDRESS": address}
    try:
        done = subprocess.run(
            command,
            env=environment,
            input=json.dumps(question),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=2 * PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoCluster(
            f"the Ray cluster at {address} did not answer within {2 * PATIENCE:g} s"
        ) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    if "InvalidAuthToken" in done.stderr:
        raise NoCluster(
            f"the Ray cluster at {address} asks for another token: set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as on its machines"
        )
    said = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
    raise NoCluster(
        f"no simulation can join the Ray cluster at {address}: {said[0]}. This machine must be "
        f"one of its nodes (`ray start --address {address}`, with --num-cpus 0 if no client is to "
        "run here), with the same versions of Ray and Python"
    )


def differences(
    here: Mapping[str, str], nodes: Sequence[Mapping[str, Any]], cache: Path
) -> list[str]:
    """What keeps each node from being as good as this machine, a line each; arguments as
    `ray_probe.ask` returns them. cache: the folder that all must share."""
    found = []
    for node in nodes:
        name = f"Ray node {node['address']} ({node['host']}, {node['id'][:8]})"
        if "error" in node:
            said = str(node["error"]).strip().splitlines()
            found.append(f"{name}: {said[0]} ... {said[-1]}" if said[1:] else f"{name}: {said[0]}")
            continue
        for what, ours in here.items():
            theirs = node["facts"].get(what, "unknown")
            if theirs != ours:
                found.append(f"{name}: {what}: {theirs}, here {ours}")
        found += [f"{name}: {fault}" for fault in _faults(node, cache)]
    return found


def _faults(node: Mapping[str, Any], cache: Path) -> list[str]:
    """What is wrong with the folder that a node was to share."""
    seen = node["folder"]
    if not (seen["reads"] and node["written"]):
        return [
            f"cache = {cache} is not the folder of this name here: what was written into it on "
            "one machine is not there on the other. Simulated nodes keep in it which questions "
            "they have answered, and their keys; set cache to a folder that all machines share"
        ]
    kinds = [kind for kind in (FLOCK, LOCKF) if not seen[kind]]
    if kinds:
        return [
            f"cache = {cache} is shared, but locks ({', '.join(kinds)}) taken on one machine do "
            "not hold on the other: two could answer for one node at once; mount it with locking"
        ]
    return []


def _paths(config: RunConfig) -> list[str]:
    """Folders and files that nodes read beside the data."""
    models = (getattr(config.models, kind) for kind in config.models.kinds)
    named = [*models, config.assets, config.models.lstm_word_list]
    return [name for name in named if name and Path(name).is_absolute()]
