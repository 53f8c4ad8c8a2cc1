"""`privsyn node status`: what the owner of a device sees of its node; changes nothing."""

from __future__ import annotations

import json
import math
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower import __version__
from privsyn_flower.app.cli.errors import AsJson, failing
from privsyn_flower.common.files import node_home, whole_path
from privsyn_flower.privacy.wording import at_most

Folder = Annotated[
    Path | None,
    typer.Option(
        help="The node's folder; default: the node config's, else ~/.cache/privsyn-flower-node."
    ),
]
NodeConfig = Annotated[Path | None, typer.Option(help="The file of the SuperNode's --node-config.")]
SHOWN_FAILURES = 10  # the latest


def status(
    folder: Folder = None,
    policy: Annotated[
        Path | None, typer.Option(help="Policy file; default: the node config's.")
    ] = None,
    node_config: NodeConfig = None,
    as_json: AsJson = False,
) -> None:
    """This node's limits, what it has spent, answered and refused, and whose data failed.

    Without a node config or a policy file the limits shown are the defaults, whatever the node has.
    """
    with failing(ValueError, RuntimeError, one_line=True):
        place, named = node_places(node_config, folder, policy)
        facts = node_facts(place, named)
    if as_json:
        if facts["records"] and math.isinf(facts["records"]["max_spent_epsilon"]):
            facts["records"]["max_spent_epsilon"] = None  # JSON has no infinity
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"folder = {facts['folder']}\nkey = {facts['key'] or 'none yet: privsyn node key'}")
    typer.echo(f"policy: {_source(facts['policy_file'], node_config)}")
    for key, value in facts["policy"].items():
        typer.echo(f"{key} = {json.dumps(value)}")
    if not place.is_dir():
        typer.echo("the folder does not exist: a node's is the `cache` of its node config")
    typer.echo("\n".join(_described(facts["records"], facts["policy"]["lifetime-epsilon"])))
    typer.echo("\n".join(_counted(facts)))
    typer.echo("\n".join(_failed(facts["failures"])))


def node_places(
    node_config: Path | None, folder: Path | None, policy: Path | None = None
) -> tuple[Path, Path | None]:
    """A node's folder and policy file, by its node config and what is named besides. Raises
    ValueError or OSError."""
    own = read_node_config(node_config)
    cache, named = (whole_path(str(own.get(key, "")), key) for key in ("cache", "policy"))
    named = policy or named
    place = folder or (node_home() if cache == Path() else cache)
    return place.expanduser(), named.expanduser() if named != Path() else None


def node_facts(folder: Path, policy: Path | None) -> dict[str, Any]:
    """What a node's folder and policy file say. Raises ValueError, RuntimeError or OSError."""
    from privsyn_flower.client_apps.node.failures import read_failures
    from privsyn_flower.client_apps.node.node_log import read_counts
    from privsyn_flower.client_apps.node.policy import load_policy
    from privsyn_flower.protocol.wire import PROTOCOL

    rules, counts = load_policy(policy), read_counts(folder)
    return {
        "folder": str(folder),
        "key": _existing_key(folder),
        "policy_file": None if policy is None else str(policy),
        "policy": rules.model_dump(mode="json", by_alias=True),
        "records": _records(folder, rules, counts["last_cost"]),
        "answers": counts["answers"],
        "last_answer": counts["last_answer"],
        "refusals": counts["refusals"],
        "failures": read_failures(folder),
        "versions": {
            "privsyn_flower": __version__,
            "flower": version("flwr"),
            "protocol": PROTOCOL,
        },
        "disk": {"used_bytes": _used(folder), "free_bytes": free_bytes(folder)},
    }


def read_node_config(path: Path | None) -> dict[str, Any]:
    """The node config in a file; empty without one. Raises ValueError or OSError."""
    import tomllib

    if path is None:
        return {}
    try:
        return tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"{path} is no node config in TOML: {error}") from None


def free_bytes(folder: Path) -> int:
    """Free space where the folder is, or will be."""
    there = next(
        place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
    )
    return shutil.disk_usage(there).free


def _used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _source(file: str | None, node_config: Path | None) -> str:
    """Where the limits come from that are shown."""
    if file is not None:
        return file
    if node_config is not None:
        return f"the defaults: {node_config} names no policy file"
    return (
        "the defaults: no policy file was named, so these need not be this node's; name "
        "--node-config FILE or --policy FILE"
    )


def _existing_key(folder: Path) -> str | None:
    """The public key, without making one."""
    from privsyn_flower.secagg.identity import IDENTITY_FILE, identity, public_hex

    return public_hex(identity(folder)) if (folder / IDENTITY_FILE).exists() else None


def _records(folder: Path, rules: Any, last_cost: list[float]) -> dict[str, Any] | None:
    """What the records count, None where there are none. last_cost: of the latest answer, by which
    it is told who can give no further one."""
    from privsyn_flower.client_apps.node.lifetime import Spent
    from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
    from privsyn_flower.client_apps.node.records_file import KEY_FILE

    # A key without its records is a loss that `status` explains, not a new node.
    if not ((folder / RECORDS_FILE).exists() or (folder / KEY_FILE).exists()):
        return None
    records = NodeRecords(folder / RECORDS_FILE)
    found = records.status(rules.lifetime_delta)
    return {**found, "at_limit": records.at_limit(rules, Spent(*last_cost))}


def _described(records: dict[str, Any] | None, lifetime_epsilon: float) -> list[str]:
    if records is None:
        return ["no records yet: this node has answered nothing"]
    lines = [  # the server chose the names: repr, so that none of them talks to the terminal
        f"run {mark['run']!r}, {mark['query']!r}: last round {mark['round']}, attempt "
        f"{mark['attempt']}; {mark['answers']} answers"
        for mark in records["runs"]
    ]
    most = f"epsilon = {at_most(records['max_spent_epsilon'])}"
    if math.isinf(records["max_spent_epsilon"]):
        most = "all (in integers too coarse for any epsilon)"
    return [
        *lines,
        f"users = {records['users']}, of them withdrawn {records['withdrawn']}",
        f"users at a limit, for whom zeros are sent = {records['at_limit']}",
        f"most participations of a user = {records['max_participations']}",
        f"most spent by a user: {most} of {at_most(lifetime_epsilon)} at delta = "
        f"{records['delta']:g}, over all runs of this node",
        f"peers' keys kept = {records['pins']}",
    ]


def _counted(facts: dict[str, Any]) -> list[str]:
    """Answers, refusals, versions and disk."""
    refusals = ", ".join(f"{code} {n}" for code, n in sorted(facts["refusals"].items()))
    versions, disk = facts["versions"], facts["disk"]
    return [
        f"answers = {facts['answers']}, refusals: {refusals or 'none'}",
        f"privsyn-flower {versions['privsyn_flower']}, Flower {versions['flower']}, protocol "
        f"{versions['protocol']}",
        f"disk: {disk['used_bytes'] / 1e6:.1f} MB used, {disk['free_bytes'] / 1e9:.1f} GB free",
    ]


def _failed(rows: list[dict[str, Any]]) -> list[str]:
    """The latest answers that users' data were missing from."""
    if not rows:
        return ["users' data raised nothing in the answers so far"]
    lines = [f"users' data failed {len(rows)} times; more in node.log of that folder; the latest:"]
    for row in rows[-SHOWN_FAILURES:]:
        what = "could not be read" if row.get("kind") == "users" else "gave no vector"
        lines.append(
            f"  run {row.get('run')!r}, round {row.get('round')}, attempt {row.get('attempt')}: "
            f"{row.get('users')} of {row.get('of')} users {what}: {row.get('error')} at "
            f"{row.get('at')!r}"
        )
    return lines
