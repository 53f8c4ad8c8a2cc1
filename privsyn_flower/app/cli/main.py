"""`privsyn`: run, plan, account, audit, report and more. Commands import what they need."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from privsyn_flower import __version__
from privsyn_flower.app.cli.account import account, calibrate, ledger_app
from privsyn_flower.app.cli.data import data_app
from privsyn_flower.app.cli.embedder import embedder_app, models_app
from privsyn_flower.app.cli.errors import (
    AsJson,
    Commands,
    Config,
    Settings,
    benchmark_free,
    fail,
    failing,
)
from privsyn_flower.app.cli.metrics import metrics
from privsyn_flower.app.cli.node import federation_app, node_app
from privsyn_flower.app.cli.proximity import proximity
from privsyn_flower.app.cli.public import public_app
from privsyn_flower.app.cli.publish import inspect, publish
from privsyn_flower.app.cli.topics import topics_app
from privsyn_flower.app.cli.watch import watch
from privsyn_flower.app.report.summaries import ReportError, read_named
from privsyn_flower.config import ConfigError, load_config, parse_override, split_list
from privsyn_flower.config.api import configured

STOPPED = "interrupted; its runs were stopped, and resume when it is called again"

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learn from private, distributed text by noisy sums of bounded answers.",
)
app.add_typer(data_app, name="data")
app.add_typer(node_app, name="node")
app.add_typer(ledger_app, name="ledger")
app.add_typer(models_app, name="models")
app.add_typer(embedder_app, name="embedder")
app.add_typer(federation_app, name="federation")
app.add_typer(topics_app, name="topics")
app.add_typer(public_app, name="public")
public_app.command()(proximity)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """privsyn-flower."""
    context.with_resource(configured())  # errors name keys


@app.command()
def run(
    config: Config = None,
    settings: Settings = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Run folder to continue or attach to.")
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(help="Folder of a running federation (privsyn federation); else simulate."),
    ] = None,
    ray: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Simulate in this Ray cluster (RAY_ADDRESS).")
    ] = "",
    canaries: Annotated[
        int, typer.Option(help="Put N made-up users among the simulated ones, for privsyn inspect.")
    ] = 0,
) -> None:
    """Run a configuration through `flwr run`; the last line on stdout is the run folder.

    Ends with 3 when the run ended early, with a result but fewer rounds than planned; with 4 when
    it has its result, but not the benchmark; with 5 when its result is of no use.
    """
    from privsyn_flower.app.cli.ending import exit_status
    from privsyn_flower.app.cli.run import run_command

    if canaries and (resume is not None or federation is not None):
        raise fail("--canaries is for a new simulation: they are there from its beginning, or not")
    audited = [f"data.canaries={canaries}", "benchmark=true"] if canaries else []
    if canaries and not any(one.startswith("data.seed=") for one in settings or []):
        audited.append(f"data.seed={secrets.randbelow(2**31)}")  # else each run's draw is the same
    with failing(OSError, code=1, interrupted="interrupted; the Flower run was stopped"):
        folder = run_command(config, [*(settings or []), *audited], resume, federation, ray)
    print(folder)
    if code := exit_status(folder):
        raise typer.Exit(code)


@app.command()
def plan(
    config: Config = None,
    settings: Settings = None,
    as_json: AsJson = False,
    vary: Annotated[
        str, typer.Option(help="key=value,value,...: a table of noise and signal over the values.")
    ] = "",
) -> None:
    """Before a run: noise against signal, epsilon, bytes, seconds, memory, disk, what is missing.

    Begins nothing and fetches nothing. Work of small models is timed on made-up text, once: their
    speeds are kept in the cache folder. Ends with 0 also when the run would be refused here.
    """
    from privsyn_flower.app.cli import plan as plans
    from privsyn_flower.app.cli.run import default_config

    with failing(ValueError, RuntimeError):
        text = plans.printed(config or default_config(), settings or [], vary, as_json)
    typer.echo(text)


app.command()(account)
app.command()(calibrate)


@app.command()
def audit(
    config: Config = None,
    settings: Settings = None,
    trials: Annotated[int, typer.Option(help="Releases, half of them with the canary.")] = 10_000,
    kind: Annotated[
        str,
        typer.Option(help="evaluation; default: the rounds' query and what is asked beside them."),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each kind, a line each.")
    ] = False,
) -> None:
    """Measure releases in this process: do they leak more, or are they less noisy, than claimed?

    One release; for correlated noise or a trusted aggregator's, all rounds of a run.
    Exits 1 when a measurement contradicts the claim. Passing is evidence, not a proof.
    """
    from privsyn_flower.app.audit import audit as measure
    from privsyn_flower.app.audit import described, kinds
    from privsyn_flower.app.cli.run import default_config

    with failing(ValueError):
        overrides = dict(parse_override(text) for text in settings or [])
        path = config or default_config()
        loaded = load_config(path, overrides | benchmark_free(path, overrides))
        found = [measure(loaded, trials, one) for one in ([kind] if kind else kinds(loaded))]
    told = [json.dumps(one.to_dict()) if as_json else described(one) for one in found]
    typer.echo(("\n" if as_json else "\n\n").join(told))
    if any(one.contradiction for one in found):
        raise typer.Exit(1)


@app.command()
def generate(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or failed.")],
    samples: Annotated[int, typer.Option(min=1, help="Texts to write.")],
    out: Annotated[
        Path | None, typer.Option(help="File of JSON lines; RUN/generated-SEED-SAMPLES.jsonl.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other text.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, as generation.base-url=...")
    ] = None,
) -> None:
    """More synthetic text of what a run released: no private data, no federation, no privacy spent.

    Called again after it was stopped, CTCL's and resource-adaptive's go on; others begin anew. The
    last line on stdout is the file.
    """
    from privsyn_flower.app.cli.generate import generate_command

    interrupted = "interrupted; call it again"
    with failing(ValueError, RuntimeError, OSError, code=1, interrupted=interrupted):
        path, notes = generate_command(run, samples, out, seed, settings)
    for note in notes:
        typer.secho(note, err=True)
    print(path)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or their summary.json.")],
    checklist: Annotated[
        bool, typer.Option("--checklist", help="What a report of differential privacy must say.")
    ] = False,
    fact_sheet: Annotated[
        bool, typer.Option("--fact-sheet", help="The guarantee by the points of NIST SP 800-226.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one page of the runs to this file instead.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Tables as Markdown, however wide they are.")
    ] = False,
) -> None:
    """Finished runs side by side: accuracy, epsilon, bytes and computing, grouped by trust model.

    With --checklist, the guarantee of each run item by item (Ponomareva et al. 2023); with
    --fact-sheet, by the points of NIST SP 800-226. With --html, a file that needs no network: of
    one run, finished or not, or of several compared; the last line on stdout is the file.
    """
    if checklist + fact_sheet + (html is not None) > 1:
        raise fail("--checklist, --fact-sheet and --html are different reports: name one of them")
    if html is not None:
        _page(runs, html)
        return
    from privsyn_flower.app.cli.display import fitted, width
    from privsyn_flower.app.report.guarantee import checklists, fact_sheets
    from privsyn_flower.app.report.tables import report as tables

    form = checklists if checklist else fact_sheets if fact_sheet else tables
    shown = form([read_named(folder) for folder in runs])
    typer.echo(shown if markdown or form is not tables else fitted(shown, width()))


def _page(runs: list[Path], file: Path) -> None:
    """Write the report page and print where it is."""
    from privsyn_flower.app.report.html.library import INSTALL, library
    from privsyn_flower.app.report.page import write_page

    found = write_page(runs, file.expanduser().absolute())
    if not library():
        typer.secho(f"the page has tables and no charts: for those, {INSTALL}", err=True)
    print(found)


app.command()(watch)
app.command()(inspect)
app.command()(metrics)
app.command()(publish)


@app.command()
def compare(
    grid: Annotated[Path, typer.Argument(help="TOML file of methods, axes and seeds.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs, tables, pictures; results/GRID.")
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option(help="Run the grid with this file, not its own methods.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, for every run")
    ] = None,
    only: Annotated[
        str, typer.Option(help="Run these methods alone, by name and with commas between them.")
    ] = "",
    jobs: Annotated[int, typer.Option(help="Runs at once.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs; run none.")] = False,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Run nothing: tables of what is there.")
    ] = False,
) -> None:
    """Run a grid of methods, settings and seeds, as far as it is missing; then compare.

    The last line on stdout is the folder with table.md, CSV and pictures. Ends with 1 when a run
    failed or cannot be run; the others go on.
    """
    from privsyn_flower.app.cli.compare.command import compare_command, failures, left_out, listed

    with failing(ConfigError, ReportError, code=1, interrupted=STOPPED):
        given = dict(parse_override(text) for text in settings or [])
        if dry_run:
            lines, fine = listed(grid, out, config or [], given, split_list(only))
            typer.echo("\n".join(lines))
            raise typer.Exit(0 if fine else 1)
        folder, outcomes = compare_command(
            grid,
            out=out,
            configs=config or [],
            given=given,
            jobs=jobs,
            run=not table_only,
            only=split_list(only),
        )
    for line in left_out(outcomes):
        typer.secho(line, err=True)
    for line in (missing := failures(outcomes)):
        typer.secho(f"missing: {line}" if table_only else f"failed: {line}", err=True)
    print(folder)
    if missing and not table_only:
        raise typer.Exit(1)


def main() -> None:
    """Entry point of the `privsyn` command."""
    app()


if __name__ == "__main__":
    sys.exit(app())
