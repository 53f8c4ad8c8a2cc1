"""`privsyn node`: what the owner of a device sees and decides; none of it talks to a server.
`privsyn federation`: a deployed federation on this machine, started, looked at and stopped.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower.app.cli.errors import AsJson, Commands, fail, failing
from privsyn_flower.common.files import node_home, whole_path
from privsyn_flower.privacy.wording import at_most

node_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Look after this device's node.")
roster_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="The list of nodes that may take part."
)
node_app.add_typer(roster_app, name="roster")

Folder = Annotated[
    Path,
    typer.Option(
        default_factory=node_home,
        help="The node's folder: node-config key `cache` of its SuperNode.",
    ),
]
SHOWN_FAILURES = 10  # the latest


@node_app.command()
def show(
    folder: Annotated[
        Path | None,
        typer.Option(
            help="The node's folder; default: the node config's, else ~/.cache/privsyn-flower-node."
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Policy file; default: the node config's.")
    ] = None,
    node_config: Annotated[
        Path | None, typer.Option(help="The file of the SuperNode's --node-config.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """This node's limits, what it has spent, and whose data failed; changes nothing.

    Without a node config or a policy file the limits shown are the defaults, whatever the node has.
    """
    try:
        own = _read_node_config(node_config)
        cache, named = (whole_path(str(own.get(key, "")), key) for key in ("cache", "policy"))
        named = policy or named
        facts = _facts(
            (folder or (node_home() if cache == Path() else cache)).expanduser(),
            named.expanduser() if named != Path() else None,
        )
    except (ValueError, RuntimeError) as error:
        raise _fail(error) from None
    if as_json:
        if facts["records"] and math.isinf(facts["records"]["max_spent_epsilon"]):
            facts["records"]["max_spent_epsilon"] = None  # JSON has no infinity
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"folder = {facts['folder']}\nkey = {facts['key'] or 'none yet: privsyn node key'}")
    typer.echo(f"policy: {_source(facts['policy_file'], node_config)}")
    for key, value in facts["policy"].items():
        typer.echo(f"{key} = {json.dumps(value)}")
    if not Path(facts["folder"]).is_dir():
        typer.echo("the folder does not exist: a node's is the `cache` of its node config")
    typer.echo("\n".join(_described(facts["records"], facts["policy"]["lifetime-epsilon"])))
    typer.echo("\n".join(_failed(facts["failures"])))


@node_app.command()
def key(folder: Folder) -> None:
    """Print this node's public key, for a roster; the first call makes the key pair."""
    from privsyn_flower.secagg.identity import identity, public_hex

    try:
        typer.echo(public_hex(identity(folder.expanduser())))
    except ValueError as error:
        raise _fail(error) from None


@node_app.command()
def forget(
    user: Annotated[str, typer.Argument(help="The user's id, as in the node's data file.")],
    folder: Folder,
) -> None:
    """Withdraw USER for good and erase what this node derived from the user's text.

    Past releases cannot be called back: epsilon bounds what they tell.
    """
    import sqlite3

    from privsyn_flower.client_apps.node.past_vectors import FOLDER
    from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
    from privsyn_flower.data import EmbeddingCache
    from privsyn_flower.data.values import to_name

    folder, given, user = _there(folder.expanduser()), user, to_name(user)
    if not user:
        raise _fail(ValueError(f"user = {given!r} is no id: name the one in the data file"))
    try:
        sums = any((folder / FOLDER).glob("*"))
        # Withdrawn first: a query answered meanwhile must not embed the text again.
        known = NodeRecords(folder / RECORDS_FILE).forget(user)
        erased = EmbeddingCache(folder / "embeddings", "").forget(user)
    except (ValueError, RuntimeError, sqlite3.Error) as error:
        raise _fail(error) from None
    typer.echo(f"withdrawn: {user!r} takes part in nothing from now on")
    typer.echo("embeddings erased" if erased else "no embeddings were kept")
    if sums:
        typer.echo("erased with all users' sums of earlier rounds: this node's next rows lack them")
    if not (known or erased):
        typer.echo(
            "this node has had nothing of this id so far: unless it is new, check its spelling "
            "against the data file, or the user goes on taking part"
        )
    typer.echo("the text itself is in the node's data file: delete it there")


def _there(folder: Path) -> Path:
    """The folder, which must be a node's already."""
    if not folder.is_dir():
        raise _fail(ValueError(f"{folder} is no folder of a node: name its `cache` with --folder"))
    return folder


def _facts(folder: Path, policy: Path | None) -> dict[str, Any]:
    """What a node's folder and policy file say. Raises ValueError, RuntimeError or OSError."""
    from privsyn_flower.client_apps.node.failures import read_failures
    from privsyn_flower.client_apps.node.policy import load_policy

    rules = load_policy(policy)
    return {
        "folder": str(folder),
        "key": _existing_key(folder),
        "policy_file": None if policy is None else str(policy),
        "policy": rules.model_dump(mode="json", by_alias=True),
        "records": _status(folder, rules.lifetime_delta),
        "failures": read_failures(folder),
    }


def _read_node_config(path: Path | None) -> dict[str, Any]:
    """The node config in a file; empty without one. Raises ValueError or OSError."""
    import tomllib

    if path is None:
        return {}
    try:
        return tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"{path} is no node config in TOML: {error}") from None


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


@roster_app.command()
def check(file: Annotated[Path, typer.Argument(help="TOML or JSON")]) -> None:
    """Check a roster file and print who may take part."""
    from privsyn_flower.client_apps.node.policy import load_roster

    try:
        entries = load_roster(file).values()
    except ValueError as error:
        raise _fail(error) from None
    for entry in entries:
        state = "revoked" if entry.revoked else f"weight {entry.weight}"
        typer.echo(f"{entry.key}  {entry.name}  {state}")
    active = [entry for entry in entries if not entry.revoked]
    weight = sum(entry.weight for entry in active)
    typer.echo(f"{len(active)} nodes, weight {weight}; {len(entries) - len(active)} revoked")


def _existing_key(folder: Path) -> str | None:
    """The public key, without making one."""
    from privsyn_flower.secagg.identity import IDENTITY_FILE, identity, public_hex

    return public_hex(identity(folder)) if (folder / IDENTITY_FILE).exists() else None


def _status(folder: Path, delta: float) -> dict[str, Any] | None:
    from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords
    from privsyn_flower.client_apps.node.records_file import KEY_FILE

    # A key without its records is a loss that `status` explains, not a new node.
    begun = (folder / RECORDS_FILE).exists() or (folder / KEY_FILE).exists()
    return NodeRecords(folder / RECORDS_FILE).status(delta) if begun else None


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
        f"most participations of a user = {records['max_participations']}",
        f"most spent by a user: {most} of {at_most(lifetime_epsilon)} at delta = "
        f"{records['delta']:g}, over all runs of this node",
        f"peers' keys kept = {records['pins']}",
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


def _fail(error: Exception) -> typer.Exit:
    """On one line, whoever's words are in it."""
    return fail(" ".join(str(error).split()))


federation_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="A SuperLink and SuperNodes on this machine, with TLS and node keys, not simulated.",
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
    from privsyn_flower.app.local.simulation import FlowerError
    from privsyn_flower.client_apps.node.policy import load_policy

    folder = folder.expanduser().absolute()
    with failing(ValueError, FlowerError):
        if data:
            load_policy(policy)  # a mistake in it is better told here than in every node's log
            common = {"embedder": embedder, "device": device}
            if policy is not None:
                common["policy"] = str(policy.expanduser().absolute())
            create(folder, data, nodes=nodes, node_config=common)
        if not loopback_guard.can_tell():
            typer.echo(loopback_guard.OPEN, err=True)
        federation = LocalFederation(folder)
        federation.start()
    _print(federation.status())
    typer.echo(f"run on it: privsyn run CONFIG.toml --federation {folder}")


@federation_app.command()
def status(
    folder: FederationFolder,
    as_json: AsJson = False,
) -> None:
    """What is running; exits 1 unless all of it is."""
    from privsyn_flower.app.local.federation import LocalFederation
    from privsyn_flower.app.local.simulation import FlowerError

    with failing(FlowerError):
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
    from privsyn_flower.app.local.simulation import FlowerError

    with failing(FlowerError):
        LocalFederation(folder).stop()


def _print(facts: dict[str, object]) -> None:
    typer.echo(f"superlink = {facts['superlink'] or 'not running'}")
    for node in facts["nodes"]:  # type: ignore[attr-defined]
        state = "online" if node["online"] else "starting" if node["pid"] else "not running"
        typer.echo(f"{node['name']}: {state}, Flower's node id {node['node_id'] or 'none'}")
