"""What one node knows about itself: its users' text (PRIVATE), its public weight, its policy.

A simulated node takes its shard of the federation named in the run config. A deployed node
takes everything from its own node config (`flower-supernode --node-config`) and nothing from
the server: `data` (a file of its users), `weight`, `cache`, `embedder`, `allow-plain`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from privsyn_flower.config import RunConfig, cache_folder
from privsyn_flower.wire import Hello, Refusal, WireError

UserTexts = Mapping[str, Sequence[str]]
NODE_KEYS = {"data", "weight", "cache", "embedder", "device", "allow-plain", "samples-per-user"}


@dataclass(frozen=True)
class Node:
    """One node. load() opens its users' text (PRIVATE) and must stay on the node."""

    facts: Hello
    cache: Path
    embedder: str
    device: str
    allow_plain: bool
    noise_seed: int | None
    load: Callable[[], UserTexts]

    def log(self) -> logging.Logger:
        """The node's local log: a file readable by its owner only, sent nowhere."""
        logger = logging.getLogger(f"privsyn_flower.node.{self.facts.partition}")
        if not logger.handlers:
            self.cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self.cache / "node.log"
            path.touch(mode=0o600)
            handler = logging.FileHandler(path, encoding="utf-8")
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.propagate = False  # nothing reaches Flower's log, which the server may read
            logger.setLevel(logging.INFO)
        return logger


def open_node(context: Context) -> Node:
    """The node described by Flower's context. Raises WireError(SETUP) for a wrong set-up."""
    process = Path(sys.argv[0]).name
    supernode = process.startswith(("flwr-clientapp", "flower-supernode"))
    if "data" in context.node_config or supernode:
        return _deployed(context)
    return _simulated(context)


def _deployed(context: Context) -> Node:
    config = context.node_config
    unknown = sorted(set(config) - NODE_KEYS - {"partition-id", "num-partitions"})
    if unknown:
        raise WireError(
            Refusal.SETUP, f"unknown node-config keys {unknown}; known: {sorted(NODE_KEYS)}"
        )
    path = str(config.get("data", ""))
    if not path:
        raise WireError(Refusal.SETUP, 'node-config has no data="/path/to/users.jsonl"')
    weight = int(config.get("weight", 1))
    if weight < 1:
        raise WireError(Refusal.SETUP, f"node-config weight = {weight} must be at least 1")
    cap = int(config.get("samples-per-user", 0))
    cache = Path(str(config.get("cache", "~/.cache/privsyn-flower-node"))).expanduser()

    def load() -> UserTexts:
        from privsyn_flower.data import load_users

        users = load_users(Path(path).expanduser(), samples_cap=cap)
        # A node never hosts more users than it adds noise for.
        return dict(list(users.items())[:weight])

    return Node(
        facts=Hello(weight, int(config.get("partition-id", 0)), deployed=True),
        cache=cache,
        embedder=str(config.get("embedder", "minilm")),
        device=str(config.get("device", "auto")),
        allow_plain=bool(config.get("allow-plain", False)),
        noise_seed=None,
        load=load,
    )


def _simulated(context: Context) -> Node:
    try:
        partition = int(context.node_config["partition-id"])
        partitions = int(context.node_config["num-partitions"])
    except KeyError as error:
        raise WireError(Refusal.SETUP, f"node-config has no {error}") from None
    config = RunConfig.from_flat(context.run_config)
    cache = cache_folder(config)

    def load() -> UserTexts:
        from privsyn_flower.data import Federation, prepare

        return Federation(prepare(config.data, cache)).shard(partition, partitions)

    from privsyn_flower.data import shard_sizes

    weight = shard_sizes(config.data.users, partitions)[partition]
    return Node(
        facts=Hello(weight, partition, deployed=False),
        cache=cache / "nodes" / f"{partition}-of-{partitions}",
        embedder=config.models.embedder,
        device=config.models.device,
        allow_plain=True,
        noise_seed=config.seed if config.simulation_seeded_noise else None,
        load=load,
    )
