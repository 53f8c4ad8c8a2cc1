"""The folder of a federation on one machine, before anything runs.

federation.json             ports and process ids
tls/                        ca.crt, server.crt, server.key
flower/                     FLWR_HOME of the SuperLink and of `flwr`: config.toml names it "local"
superlink.log
node-0/                     node.toml, key, key.pub, users.jsonl (PRIVATE), cache/ (PRIVATE),
                            flower/, supernode.log
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from privsyn_flower.app.local.simulation import flat_toml
from privsyn_flower.config import Scalar
from privsyn_flower.data import DataError, load_users, shard_sizes
from privsyn_flower.files import PRIVATE_FILE, private_folder, write_atomic
from privsyn_flower.runs import write_json, write_jsonl

FACTS = "federation.json"


def create(
    folder: Path,
    data: Sequence[Path],
    *,
    nodes: int = 0,
    node_config: Mapping[str, Scalar] = {},
) -> None:
    """Lay out a federation in `folder`; starts nothing.

    data: one file of users (PRIVATE) per node; or a single one, whose users are dealt in order
    to `nodes` nodes, as in simulation. A node's weight is the number of users it is given.
    node_config: what all nodes have in common (embedder, device, policy).
    Raises FileExistsError when the folder holds a federation, DataError on unusable files.
    """
    if (folder / FACTS).exists():
        raise FileExistsError(f"{folder} holds a federation: start it without --data")
    private_folder(folder)
    shards = _dealt(data[0], nodes) if len(data) == 1 and nodes > 1 else list(map(load_users, data))
    for number, users in enumerate(shards):
        node = private_folder(folder / f"node-{number}")
        file = node / "users.jsonl"
        if len(data) == len(shards):
            file = data[number].absolute()
        else:
            rows = ({"user_id": u, "text": text} for u, texts in users.items() for text in texts)
            write_jsonl(file, rows)
            file.chmod(PRIVATE_FILE)
        if not users:
            raise DataError(f"{file} holds no users: a node needs at least one")
        config = {
            "data": str(file),
            "weight": len(users),
            "cache": str(node / "cache"),
            "partition-id": number,
            **node_config,
        }
        write_atomic(node / "node.toml", flat_toml(config).encode())
    write_json(folder / FACTS, {"port": 0, "pid": 0, "nodes": [{"pid": 0}] * len(shards)})


def _dealt(file: Path, nodes: int) -> list[dict[str, list[str]]]:
    users = list(load_users(file).items())
    sizes = shard_sizes(len(users), nodes)
    starts = [sum(sizes[:at]) for at in range(nodes)]
    return [dict(users[at : at + size]) for at, size in zip(starts, sizes, strict=True)]
