"""Asks every node of a Ray cluster what it has, as a process of its own that can be ended.

`python -P -m privsyn_flower.app.local.ray_probe`, with RAY_ADDRESS set: a question as JSON on
stdin, the answer as the last line of stdout. Whoever asks is `ray_cluster`. What runs on the nodes
travels by value (it is `__main__`'s), so that a node with other code, or none, can still say so.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds for the nodes' answers: a first worker of a machine is started for each
SEEN_WITHIN = 5.0  # seconds in which a shared folder must show what another machine wrote
HERE, FLOCK, LOCKF = "here", "flock", "lockf"  # files of the folder that is tried


def facts(question: dict[str, Any]) -> dict[str, str]:
    """What this machine has, by name; runs on every node and where the run is started.

    question: "config", flat; "libraries", names of distributions; "paths", of files and folders.
    """
    found = {"account": str(os.getuid()), "Python": platform.python_version()}
    found["code of privsyn-flower"] = _text_of(_code)
    for name in question["libraries"]:
        found[name] = _text_of(lambda name=name: _version(name))
    found["data"] = _text_of(lambda: _data(question["config"]))
    for path in question["paths"]:
        found[path] = _text_of(lambda path=path: _content(path))
    return found


def _text_of(look: Any) -> str:
    """What was found, or why nothing was."""
    try:
        return str(look())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _code() -> str:
    """A digest of all modules of the package, as they lie on this machine."""
    import importlib.util

    spec = importlib.util.find_spec("privsyn_flower")
    if spec is None or spec.origin is None:
        return "not installed"
    state, root = hashlib.sha256(), Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        state.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _version(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _data(flat: dict[str, Any]) -> str:
    """Says of which users, in which form: files go by their bytes, packages by their versions."""
    from privsyn_flower.config import RunConfig
    from privsyn_flower.data.federation import prepared_key

    return prepared_key(RunConfig.from_flat(flat).data)[:16]


def _content(path: str) -> str:
    """Names and sizes of a folder's files; what is in a model, nodes compare with the question."""
    place = Path(path)
    if not place.exists():
        return "not there"
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    rows = [(str(f.relative_to(place)), f.stat().st_size) for f in files if f.is_file()]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def tried(folder: str, name: str) -> dict[str, bool]:
    """Whether this node sees the folder as its maker does; writes the file `name` into it.

    reads: the maker's word. flock, lockf: whether the maker's lock of this kind holds here.
    """
    place = Path(folder)
    try:
        (place / name).write_text(_word(place / HERE, SEEN_WITHIN), encoding="ascii")
    except OSError:
        return {"reads": False, FLOCK: False, LOCKF: False}
    return {"reads": True, FLOCK: _holds(place / FLOCK), LOCKF: _holds(place / LOCKF)}


def _word(path: Path, patience: float) -> str:
    """The content of a small file that may take a moment to be seen. Raises OSError."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return path.read_text(encoding="ascii")
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _holds(path: Path) -> bool:
    """Whether somebody else's lock keeps this process out."""
    import fcntl

    with path.open("r+b") as file:
        try:
            getattr(fcntl, path.name)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def _node_answer(question: dict[str, Any]) -> tuple[dict[str, str], dict[str, bool]]:
    """Both, on one node."""
    return facts(question), tried(question["folder"], question["name"])


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """Put the question to all nodes that may run clients; "nodes": a list, "here": this machine."""
    import fcntl

    import ray

    place = Path(question["folder"])
    with (place / FLOCK).open("r+b") as one, (place / LOCKF).open("r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.lockf(two, fcntl.LOCK_EX)
        # As Flower's own driver does: its paths go before the workers' own.
        paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
        ray.init(runtime_env=paths, log_to_driver=False, include_dashboard=False)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        useful = [node for node in nodes if node["Resources"].get("CPU", 0) >= 1]
        answers = _answers(ray, question, useful)
        left = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        answers = [answer for answer in answers if answer["id"] in left]
        here = facts(question)
    for answer in answers:
        word = question["word"]
        with_word = _text_of(lambda answer=answer: _word(place / answer["id"], SEEN_WITHIN))
        answer["written"] = with_word == word
    cpus = sum(node["Resources"]["CPU"] for node in useful if node["NodeID"] in left)
    return {"here": here, "nodes": answers, "cpus": cpus}


def _answers(ray: Any, question: dict[str, Any], nodes: list[Any]) -> list[dict[str, Any]]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=0)(_node_answer)
    waiting = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        own = question | {"name": node["NodeID"]}
        waiting[remote.options(scheduling_strategy=there).remote(own)] = node
    ready, _ = ray.wait(list(waiting), num_returns=len(waiting) or 1, timeout=PATIENCE)
    answers = []
    for reference, node in waiting.items():
        answer: dict[str, Any] = {"id": node["NodeID"], "address": node["NodeManagerAddress"]}
        answer["host"] = node["NodeManagerHostname"]
        try:
            if reference not in ready:
                raise TimeoutError(f"no answer within {PATIENCE:g} s")
            answer["facts"], answer["folder"] = ray.get(reference)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        answers.append(answer)
    return answers


if __name__ == "__main__":
    print(json.dumps(ask(json.load(sys.stdin))), flush=True)
