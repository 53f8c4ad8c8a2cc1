"""`privsyn node`: what the owner of a device sees and decides; none of it talks to a server.
`privsyn federation`: a deployed federation on this machine, started, looked at and stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from privsyn_flower.app.cli.errors import AsJson, Commands, failing
from privsyn_flower.app.cli.node_status import (
    Folder,
    NodeConfig,
    node_places,
    read_node_config,
    status,
)

node_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Look after this device's node.")
roster_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="The list of nodes that may take part."
)
node_app.add_typer(roster_app, name="roster")

node_app.command()(status)


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
