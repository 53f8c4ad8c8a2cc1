"""Settings of a run that goes on: what may differ from those it began with, noted with both values.

Queries and the privacy plan stay. What is made of the releases may be made in another way: what was
made before is then removed, and never mixed with the new.

Every key that all methods have, or its whole table, stands in one of the two lists; a key's own
entry goes before its table's. The keys of a method's own table are never changed. Keys that a
method's queries depend on, though other methods only write with them, its recipe withholds
(`asks_with`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Literal

from privsyn_flower.common.files import write_atomic
from privsyn_flower.config import ConfigError, RunConfig, changed, flatten, relocated, to_toml
from privsyn_flower.config.section import Scalar
from privsyn_flower.runs import RunFolder, read_jsonl, write_jsonl
from privsyn_flower.server_apps.methods import recipe_of

CHANGES = "changes.jsonl"  # of a run folder: time, key, and its values before and after
CONFIG = "config"  # value in the run folder: what the run goes by
ALL_RELEASED = "all-released"  # value: rounds there were when all that is asked was released
REMADE = "remade"  # value: rows of CHANGES before which nothing is that was not made since

Changes = Mapping[str, tuple[Scalar | None, Scalar | None]]  # key -> now, before
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


def changes_of(folder: RunFolder, config: RunConfig) -> Changes:
    """What `config` differs in from what the run goes by, wherever its folder lies.

    Raises ConfigError, naming the values, for keys that must stay.
    """
    text = folder.load_value(CONFIG)
    if text is None:
        return {}
    place, stored = folder.path.absolute(), flatten(tomllib.loads(text))
    found = changed(relocated(config.flat(), place), relocated(stored, place))
    if barred := [key for key in found if not changeable(key)]:
        _refuse(folder, found, barred, "choose another run-folder or restore the values")
    # By what the run went by: a change must not hide what it was asked with.
    old = {key: value for key, (_, value) in found.items() if value is not None}
    before = RunConfig.from_flat({**config.flat(), **old})
    released = folder.load_value(ALL_RELEASED) == before.rounds
    held = recipe_of(before).asks_with(before, released=released)
    if barred := [key for key in found if entry_of(key, held)]:
        when = f"the queries of method = {before.method!r} depend on them"
        _refuse(folder, found, barred, f"{when}; restore the values, or choose another run-folder")
    return found


def _refuse(folder: RunFolder, changes: Changes, barred: list[str], hint: str) -> None:
    listing = ", ".join(f"{key} = {changes[key][0]!r} was {changes[key][1]!r}" for key in barred)
    raise ConfigError(
        f"run folder {folder.path} was made with another configuration: {listing}; {hint}"
    )


def go_by(folder: RunFolder, config: RunConfig) -> None:
    """Make `config` what the run goes by, and note what changed; the caller holds the folder.

    A result that has to be made again ends here: without a summary the run is not complete. A call
    that is killed does the same again. Raises ConfigError as `changes_of`.
    """
    text, stored = to_toml(config), folder.load_value(CONFIG)
    found = changes_of(folder, config)
    if found:
        _note(folder, found)
        if stale(found) != "nothing":
            (folder.path / "summary.json").unlink(missing_ok=True)
    if found or stored is None:
        folder.save_value(CONFIG, text)
    if found or not (folder.path / "config.toml").exists():
        write_atomic(folder.path / "config.toml", to_toml(config, comments=True).encode())


def _note(folder: RunFolder, changes: Changes) -> None:
    """One row for each key, unless a call that was killed has noted it."""
    rows = read_jsonl(folder.path / CHANGES)
    last = {row["key"]: (row["now"], row["was"]) for row in rows}
    time = datetime.now(UTC).isoformat(timespec="seconds")
    rows += [
        {"time": time, "key": key, "was": old, "now": new}
        for key, (new, old) in changes.items()
        if last.get(key) != (new, old)
    ]
    write_jsonl(folder.path / CHANGES, rows)


def changed_keys(folder: RunFolder) -> list[str]:
    """The keys that were changed since the run began."""
    return sorted({row["key"] for row in read_jsonl(folder.path / CHANGES)})


def to_remake(folder: RunFolder) -> Stale:
    """What was made before a change, and not again since (`remade`)."""
    rows = read_jsonl(folder.path / CHANGES)[folder.load_value(REMADE) or 0 :]
    return stale([row["key"] for row in rows])


def remade(folder: RunFolder) -> None:
    """What `to_remake` told of is gone."""
    if rows := read_jsonl(folder.path / CHANGES):
        folder.save_value(REMADE, len(rows))
