"""`privsyn node`: what the owner of a device sees and decides; none of it talks to a server.
`privsyn federation`: a deployed federation on this machine, started, looked at and stopped.
"""

from __future__ import annotations

import json
import math
import shutil
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower import __version__
from privsyn_flower.app.cli.errors import AsJson, failing, group, json_text
from privsyn_flower.common.files import node_home, whole_path
from privsyn_flower.privacy.wording import at_most

node_app = group("Look after this device's node.")
roster_app = group("The list of nodes that may take part.")
node_app.add_typer(roster_app, name="roster")

Folder = Annotated[
    Path | None,
    typer.Option(
        help="The node's folder; default: the node config's, else "
        "~/.local/share/privsyn-flower/node."
    ),
]
NodeConfig = Annotated[Path | None, typer.Option(help="The file of the SuperNode's --node-config.")]
SHOWN_FAILURES = 10  # the latest


@node_app.command()
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
        typer.echo(json_text(facts))
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
    from privsyn_flower.secagg.identity import IDENTITY_FILE, identity, public_hex

    rules, counts = load_policy(policy), read_counts(folder)
    has_key = (folder / IDENTITY_FILE).exists()  # none is made here
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "folder": str(folder),
        "key": public_hex(identity(folder)) if has_key else None,
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
        "disk": {"used_bytes": used, "free_bytes": free_bytes(folder)},
    }


def read_node_config(path: Path | None) -> dict[str, Any]:
    """The node config in a file; empty without one. Raises ValueError or OSError."""
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


@node_app.command()
def key(folder: Folder = None, node_config: NodeConfig = None) -> None:
    """Print this node's public key, for a roster; the first call makes the key pair."""
    from privsyn_flower.secagg.identity import identity, public_hex

    with failing(ValueError, one_line=True):
        typer.echo(public_hex(identity(node_places(node_config, folder)[0])))


@node_app.command()
def forget(
    user: Annotated[str, typer.Argument(help="The user's id, as in the node's data file.")],
    folder: Folder = None,
    node_config: NodeConfig = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Also an id that this node never had.")
    ] = False,
) -> None:
    """Withdraw USER for good and erase what this node derived from the user's text.

    Past releases cannot be called back: epsilon bounds what they tell.
    """
    import sqlite3

    from privsyn_flower.client_apps.node.records import FOLDER, RECORDS_FILE, NodeRecords
    from privsyn_flower.client_apps.node.records_file import KEY_FILE
    from privsyn_flower.data import EmbeddingCache
    from privsyn_flower.data.values import to_name

    given, user = user, to_name(user)
    with failing(ValueError, RuntimeError, sqlite3.Error, one_line=True):
        place = _there(node_places(node_config, folder)[0])
        if not user:
            raise ValueError(f"user = {given!r} is no id: name the one in the data file")
        sums = any((place / FOLDER).glob("*"))
        records = NodeRecords(place / RECORDS_FILE)
        embeddings = EmbeddingCache(place / "embeddings", "")
        begun = (place / RECORDS_FILE).exists() or (place / KEY_FILE).exists()
        known = unknown or (begun and records.knows(user)) or _in_data(user, node_config)
        if not (known or embeddings.forget(user)):
            raise ValueError(
                f"user = {given!r}: this node never had this id, and nobody was withdrawn; look in "
                "the data file (--node-config FILE does), or add --unknown"
            )
        # Withdrawn first: a query answered meanwhile must not embed the text again.
        records.forget(user)
        erased = embeddings.forget(user) or not known
    typer.echo(f"withdrawn: {user!r} takes part in nothing from now on")
    typer.echo("embeddings erased" if erased else "no embeddings were kept")
    if sums:
        typer.echo("erased with all users' sums of earlier rounds: this node's next rows lack them")
    typer.echo("the text itself is in the node's data file: delete it there")


def _in_data(user: str, node_config: Path | None) -> bool:
    """Whether the data file that the node config names has this id, as the node reads it."""
    from privsyn_flower.data import load_samples

    path = Path(str(read_node_config(node_config).get("data", "")))
    return path.is_file() and user in load_samples(path, strict=False)


def _there(folder: Path) -> Path:
    """The folder, which must be a node's already. Raises ValueError."""
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is no folder of a node: name its `cache` with --folder, or --node-config"
        )
    return folder


@roster_app.command()
def check(file: Annotated[Path, typer.Argument(help="TOML or JSON")]) -> None:
    """Check a roster file and print who may take part."""
    from privsyn_flower.client_apps.node.policy import load_roster

    with failing(ValueError, one_line=True):
        entries = load_roster(file).values()
    for entry in entries:
        state = "revoked" if entry.revoked else f"weight {entry.weight}"
        typer.echo(f"{entry.key}  {entry.name}  {state}")
    active = [entry for entry in entries if not entry.revoked]
    weight = sum(entry.weight for entry in active)
    typer.echo(f"{len(active)} nodes, weight {weight}; {len(entries) - len(active)} revoked")


federation_app = group(
    "A SuperLink and SuperNodes on this machine, with TLS and node keys, not simulated."
)

FederationFolder = Annotated[
    Path, typer.Argument(help="The federation's folder; all its state is there.")
]


@federation_app.command()
def start(
    folder: FederationFolder,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="File of users, once per node; or once, with --nodes. First start only."),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes that one --data file is dealt to.")] = 0,
    weak: Annotated[int, typer.Option(help="Nodes, the last, with resources = 'weak'.")] = 0,
    embedder: Annotated[str, typer.Option(help="As models.embedder of the runs.")] = "minilm",
    device: Annotated[str, typer.Option(help="As models.device.")] = "auto",
    policy: Annotated[
        Path | None, typer.Option(help="The nodes' policy file; default: the defaults.")
    ] = None,
) -> None:
    """Start a federation, or what is not running of it; returns when all nodes are online."""
    from privsyn_flower.app.local import loopback_guard
    from privsyn_flower.app.local.federation import LocalFederation
    from privsyn_flower.app.local.layout import create
    from privsyn_flower.client_apps.node.policy import load_policy

    folder = folder.expanduser().absolute()
    with failing(ValueError):
        if data:
            load_policy(policy)  # a mistake in it is better told here than in every node's log
            common = {"embedder": embedder, "device": device}
            if policy is not None:
                common["policy"] = str(policy.expanduser().absolute())
            create(folder, data, nodes=nodes, weak=weak, node_config=common)
        if not loopback_guard.can_tell():
            typer.echo(loopback_guard.OPEN, err=True)
        federation = LocalFederation(folder)
        federation.start()
    _print(federation.status())
    typer.echo(f"run on it: privsyn run CONFIG.toml --federation {folder}")


@federation_app.command("status")
def federation_status(
    folder: FederationFolder,
    as_json: AsJson = False,
) -> None:
    """What is running; exits 1 unless all of it is."""
    from privsyn_flower.app.local.federation import LocalFederation

    facts = LocalFederation(folder).status()
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _print(facts)
    if not all(node["online"] for node in facts["nodes"]):
        raise typer.Exit(1)


@federation_app.command()
def stop(folder: FederationFolder) -> None:
    """End its processes, by their ids; what the nodes keep stays for the next start."""
    from privsyn_flower.app.local.federation import LocalFederation

    LocalFederation(folder).stop()


def _print(facts: dict[str, object]) -> None:
    typer.echo(f"superlink = {facts['superlink'] or 'not running'}")
    for node in facts["nodes"]:  # type: ignore[attr-defined]
        state = "online" if node["online"] else "starting" if node["pid"] else "not running"
        typer.echo(f"{node['name']}: {state}, Flower's node id {node['node_id'] or 'none'}")
