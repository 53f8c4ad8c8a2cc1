"""Which keys a run may change after it began: those of what is made of its releases.

Every key that all methods have, or its whole table, stands in one of the two lists; a key's own
entry goes before its table's. The keys of a method's own table are never changed. What
a method asks its users with although others write with it alone, its recipe holds back
(`server_apps.methods.recipe.Recipe.asks_with`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

Stale = Literal["nothing", "figures", "text"]  # what was made before a change, and is made again

CHANGEABLE: Mapping[str, Stale] = {
    "trackers": "nothing",
    "benchmark": "figures",
    "evaluation": "figures",
    "models.downstream": "figures",
    "models.generator": "text",
    "models.device": "nothing",
    "models.training-processes": "nothing",
    "models.accelerate-arguments": "nothing",
    "generation": "text",
    "generation.api-key-env": "nothing",
    "generation.vllm-python": "nothing",
    "generation.vllm-replicas": "nothing",
    "generation.vllm-tensor-parallel": "nothing",
    "generation.concurrency": "nothing",
    "generation.timeout": "nothing",
    "generation.retries": "nothing",
    "generation.start-timeout": "nothing",
    "expand": "text",
    "sft": "text",
}
FIXED = frozenset({  # of queries and of the privacy plan, and what those rest on
    "method", "epsilon", "delta", "noise-multiplier", "rounds", "spare-rounds", "aggregation",
    "node-keys", "sampler", "sampling-rate", "cohort-nodes", "min-surviving-weight",
    "colluding-weight", "round-timeout", "stage-timeout", "node-timeout", "nodes", "node-memory",
    "population-name", "ledger", "ledger-epsilon", "seed", "simulation-seeded-noise", "run-folder",
    "cache", "assets", "data", "training", "ftrl", "proximity", "models.embedder",
    "models.infiller", "models.conditional",
    "models.train-seconds", "models.train-steps", "models.lstm-words", "models.lstm-hidden",
    "models.lstm-embedding", "models.lstm-word-list", "models.lstm-batch-texts",
    "models.lstm-batch-words", "models.lstm-learning-rate", "models.lstm-adam-epsilon",
})  # fmt: skip
# What text is written with, wherever the server is: of methods that ask about such text.
WRITING = ("models.generator", "generation.backend", "generation.chat", "expand")


def entry_of(key: str, entries: Collection[str]) -> str:
    """The key's own entry, or its table's; "" where there is neither."""
    return next((name for name in (key, key.partition(".")[0]) if name in entries), "")


def changeable(key: str) -> bool:
    """Whether a key changes no query and nothing of the privacy plan."""
    return entry_of(key, {*CHANGEABLE, *FIXED}) in CHANGEABLE


def stale(keys: Collection[str]) -> Stale:
    """What has to be made again when these keys have changed."""
    found = {CHANGEABLE[entry_of(key, CHANGEABLE)] for key in keys}
    return next((what for what in ("text", "figures") if what in found), "nothing")
