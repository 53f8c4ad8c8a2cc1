"""`privsyn node`: what the owner of a device sees and decides. Nothing here talks to a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from privsyn_flower.cli_errors import Commands, fail

node_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Look after this device's node.")
roster_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="The list of nodes that may take part."
)
node_app.add_typer(roster_app, name="roster")

Folder = Annotated[
    Path, typer.Option(help="The node's folder: node-config key `cache` of its SuperNode.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DEFAULT_FOLDER = Path("~/.cache/privsyn-flower-node")


@node_app.command()
def show(
    folder: Folder = DEFAULT_FOLDER,
    policy: Annotated[Path | None, typer.Option(help="Policy file; default: the defaults.")] = None,
    as_json: AsJson = False,
) -> None:
    """This node's limits and what it has spent; changes nothing."""
    from privsyn_flower.client_apps.policy import load_policy

    folder = folder.expanduser()
    try:
        rules = load_policy(policy)
        facts: dict[str, Any] = {
            "folder": str(folder),
            "key": _existing_key(folder),
            "policy": rules.model_dump(mode="json", by_alias=True),
            "records": _status(folder, rules.lifetime_delta),
        }
    except (ValueError, RuntimeError) as error:
        raise _fail(error) from None
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"folder = {folder}\nkey = {facts['key'] or 'none yet: privsyn node key'}")
    for key, value in facts["policy"].items():
        typer.echo(f"{key} = {json.dumps(value)}")
    typer.echo("\n".join(_described(facts["records"], rules.lifetime_epsilon)))


@node_app.command()
def key(folder: Folder = DEFAULT_FOLDER) -> None:
    """Print this node's public key, for a roster; the first call makes the key pair."""
    from privsyn_flower.secagg.identity import identity, public_hex

    try:
        typer.echo(public_hex(identity(folder.expanduser())))
    except ValueError as error:
        raise _fail(error) from None


@node_app.command()
def forget(
    user: Annotated[str, typer.Argument(help="The user's id, as in the node's data file.")],
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Withdraw USER for good and erase what this node derived from the user's text.

    Past releases cannot be called back: epsilon bounds what they tell.
    """
    import sqlite3

    from privsyn_flower.client_apps.records import RECORDS_FILE, NodeRecords
    from privsyn_flower.data import EmbeddingCache
    from privsyn_flower.data.users import to_name

    folder, user = folder.expanduser(), to_name(user)
    try:
        # Withdrawn first: a query answered meanwhile must not embed the text again.
        known = NodeRecords(folder / RECORDS_FILE).forget(user)
        erased = EmbeddingCache(folder / "embeddings", "").forget(user)
    except (ValueError, RuntimeError, sqlite3.Error) as error:
        raise _fail(error) from None
    typer.echo(f"withdrawn: {user!r} takes part in nothing from now on")
    typer.echo("embeddings erased" if erased else "no embeddings were kept")
    if not (known or erased):
        typer.echo(
            "this node has had nothing of this id so far: unless it is new, check its spelling "
            "against the data file, or the user goes on taking part"
        )
    typer.echo("the text itself is in the node's data file: delete it there")


@roster_app.command()
def check(file: Annotated[Path, typer.Argument(help="TOML or JSON")]) -> None:
    """Check a roster file and print who may take part."""
    from privsyn_flower.client_apps.policy import load_roster

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
    from privsyn_flower.client_apps.records import RECORDS_FILE, NodeRecords
    from privsyn_flower.client_apps.records_file import KEY_FILE

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
        if not mark["run"].endswith(("/share", "/confirm", "/unmask"))  # stages of a secure sum
    ]
    return [
        *lines,
        f"users = {records['users']}, of them withdrawn {records['withdrawn']}",
        f"most participations of a user = {records['max_participations']}",
        f"most spent by a user: epsilon = {records['max_spent_epsilon']:.4g} of "
        f"{lifetime_epsilon:g} at delta = {records['delta']:g}, over all runs of this node",
        f"peers' keys kept = {records['pins']}",
    ]


def _fail(error: Exception) -> typer.Exit:
    """On one line, whoever's words are in it."""
    return fail(" ".join(str(error).split()))
