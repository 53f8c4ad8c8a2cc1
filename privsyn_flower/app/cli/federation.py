"""`privsyn federation`: a deployed federation on this machine, started, looked at and stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from privsyn_flower.app.cli.errors import AsJson, Commands, failing

federation_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="A SuperLink and SuperNodes on this machine, with TLS and node keys, not simulated.",
)

Folder = Annotated[Path, typer.Argument(help="The federation's folder; all its state is there.")]


@federation_app.command()
def start(
    folder: Folder,
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
    folder: Folder,
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
def stop(folder: Folder) -> None:
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
