"""`privsyn metrics`: public numbers of a node or of a run in Prometheus' text format.

Monitoring carries them further than the owner's eyes, so none depends on a user's text or tells
who took part: what a node answered and refused is known to the server that asked, and epsilon is
a bound that all answered questions together give, whoever was in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from privsyn_flower import __version__
from privsyn_flower.app.cli.errors import failing
from privsyn_flower.app.cli.node import Folder, NodeConfig, free_bytes, node_places

KIND = "text/plain; version=0.0.4"
DISK = "Free space where the folder is."
COARSE = 256 << 20  # bytes
ABOUT = "Versions, in the labels."


class Metric(NamedTuple):
    """One metric: a counter where its name ends with _total, else a gauge. values: labels -> it."""

    name: str
    about: str
    values: Sequence[tuple[Mapping[str, str], float]]


def metrics(
    folder: Folder = None,
    node_config: NodeConfig = None,
    run: Annotated[
        Path | None, typer.Option(help="Folder of a run, for its server's numbers.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve at 127.0.0.1:PORT/metrics; 0: a free port."),
    ] = None,
) -> None:
    """Public numbers of this device's node, or of a run, for Prometheus: printed, or served."""
    with failing(ValueError, RuntimeError):
        if run is not None:
            if folder or node_config:
                raise ValueError("--run is of a server, --folder and --node-config of a node")
            measure = partial(run_metrics, run.expanduser())
        else:
            measure = partial(node_metrics, *node_places(node_config, folder))
        text = render(measure())
        if port is None:
            typer.echo(text, nl=False)
        else:
            serve(lambda: render(measure()), port)


def serve(make: Callable[[], str], port: int) -> None:
    """On loopback until Ctrl-C. Raises ValueError where the port is taken."""
    from privsyn_flower.app.report.serving import PageServer

    try:
        server = PageServer(make, port, path="/metrics", kind=KIND)
    except OSError as error:
        raise ValueError(f"port = {port}: {error.strerror}; choose another --port") from None
    typer.echo(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("ended")
    finally:
        server.server_close()


def node_metrics(folder: Path, policy_file: Path | None) -> list[Metric]:
    """Of a node's folder. Raises ValueError or OSError for a policy that cannot be read."""
    from importlib.metadata import version

    from privsyn_flower.client_apps.node.node_log import read_counts
    from privsyn_flower.client_apps.node.policy import load_policy
    from privsyn_flower.protocol.wire import PROTOCOL

    rules, counts = load_policy(policy_file), read_counts(folder)
    delta = {"delta": f"{rules.lifetime_delta:g}"}
    about = {"version": __version__, "flower": version("flwr"), "protocol": str(PROTOCOL)}
    codes: dict[str, int] = counts["refusals"]
    refused = [({"code": code}, n) for code, n in sorted(codes.items())]
    return [
        Metric("privsyn_node_info", ABOUT, [(about, 1)]),
        Metric("privsyn_node_answers_total", "Questions answered.", [({}, counts["answers"])]),
        Metric("privsyn_node_refusals_total", "Refusals, by code.", refused),
        Metric(
            "privsyn_node_last_answer_timestamp_seconds",
            "Unix time of the last answer; 0: none.",
            [({}, counts["last_answer"] or 0)],
        ),
        Metric(
            "privsyn_node_epsilon_bound",
            "No user has spent more: all answers together. +Inf: some were not counted.",
            [(delta, _bound(folder, counts, rules))],
        ),
        Metric(
            "privsyn_node_lifetime_epsilon",
            "The policy's limit: a user beyond it gives zeros.",
            [(delta, rules.lifetime_epsilon)],
        ),
        Metric("privsyn_node_disk_free_bytes", DISK, [({}, coarse(free_bytes(folder)))]),
    ]


def coarse(size: float) -> float:
    """Bytes in steps of 256 MB: an exact number would tell how much an answer wrote."""
    return size // COARSE * COARSE


def _bound(folder: Path, counts: Mapping[str, Any], rules: Any) -> float:
    from privsyn_flower.client_apps.node.lifetime import Spent, spent_epsilon
    from privsyn_flower.client_apps.node.records import RECORDS_FILE, NodeRecords

    if (folder / RECORDS_FILE).exists():
        runs = NodeRecords(folder / RECORDS_FILE).status(rules.lifetime_delta)["runs"]
        if sum(run["answers"] for run in runs) > counts["answers"]:
            return math.inf
    return spent_epsilon(Spent(counts["gaussian"], counts["distance"]), rules.lifetime_delta)


def run_metrics(folder: Path) -> list[Metric]:
    """Of a run's folder. Raises ReportError for a folder that is no run's."""
    from privsyn_flower.app.report.reading import read_run

    run = read_run(folder)
    stored, state = run.stored, run.state
    states = ("running", "finished", "failed", "stopped")
    found = [
        Metric("privsyn_run_info", ABOUT, [({"version": __version__}, 1)]),
        Metric(
            "privsyn_run_state",
            "1 for the run's state.",
            [({"state": s}, s == state) for s in states],
        ),
        Metric("privsyn_run_rounds", "Rounds released.", [({}, len(run.metrics))]),
        Metric("privsyn_run_disk_free_bytes", DISK, [({}, coarse(free_bytes(folder)))]),
    ]
    if "rounds" in stored:
        planned = float(stored["rounds"])
        found.append(Metric("privsyn_run_rounds_planned", "Rounds planned.", [({}, planned)]))
    if "epsilon" in stored and "delta" in stored:
        delta, total = {"delta": f"{stored['delta']:g}"}, float(stored["epsilon"])
        found.append(Metric("privsyn_run_epsilon", "The run's budget.", [(delta, total)]))
        if run.ledger is not None:
            spent = run.ledger.epsilon(run.ledger.own, float(stored["delta"]))
            about = "Charged to the ledger for this run so far."
            found.append(Metric("privsyn_run_epsilon_charged", about, [(delta, spent)]))
    return found


def render(rows: Iterable[Metric]) -> str:
    """The text format, version 0.0.4."""
    lines = []
    for metric in rows:
        kind = "counter" if metric.name.endswith("_total") else "gauge"
        lines += [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {kind}"]
        for labels, value in metric.values:
            named = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            number = "+Inf" if math.isinf(value) else f"{float(value):.17g}"
            lines.append(f"{metric.name}{f'{{{named}}}' if named else ''} {number}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
