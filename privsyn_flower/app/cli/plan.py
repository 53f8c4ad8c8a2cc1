"""`privsyn plan`: what a run guarantees, exchanges, computes and needs, before it is begun."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privsyn_flower.app.cli.display import fitted, width
from privsyn_flower.app.cli.ending import tell
from privsyn_flower.app.cli.errors import benchmark_free, json_text
from privsyn_flower.app.preflight.data import default_generator
from privsyn_flower.app.preflight.exchange import exchange_of, weak_vote
from privsyn_flower.app.preflight.numbers import SURE, signal_of
from privsyn_flower.app.preflight.plan import ModelPlan, Plan, plan_of, releases
from privsyn_flower.app.preflight.speeds import Machine, Stage, spoken, this_machine, timed
from privsyn_flower.config import (
    RunConfig,
    absolute_paths,
    cache_folder,
    load_config,
    parse_override,
)
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.privacy_plan import baseline, privacy_plan
from privsyn_flower.text.embedders import ngram_dimension

TIMING_SECONDS = 30.0  # no timing starts later; alone, most plans have all they need in three


def printed(path: Path | None, settings: list[str], vary: str, in_json: bool) -> str:
    """What `privsyn plan` prints: the plan, or with `vary` a table over a key's values. Raises
    ValueError for a configuration that is wrong."""
    given = dict(parse_override(text) for text in settings)
    changed = benchmark_free(path, given)
    chosen, why = default_generator(path, given | changed)
    if why:
        tell(why)
    settings = [*settings, *(f"{key}={value}" for key, value in (changed | chosen).items())]
    if vary:
        rows = plan_rows(path, settings, vary)
        return json_text(rows) if in_json else fitted(as_table(rows), width())
    config, folder = _loaded(path, settings)
    with contextlib.redirect_stderr(io.StringIO()):  # bars of the model libraries
        found = plan_of(config, folder, machine_for(config))
    return json_text(found.as_dict()) if in_json else described(found)


def _loaded(path: Path | None, settings: list[str]) -> tuple[RunConfig, Path]:
    """A configuration, and the folder that its run would have."""
    loaded = load_config(path, dict(parse_override(text) for text in settings))
    folder = Path(loaded.run_folder or Path("runs") / "plan").expanduser().absolute()
    return absolute_paths(loaded, folder), folder


def plan_rows(path: Path | None, settings: list[str], vary: str) -> list[dict[str, Any]]:
    """A row of numbers for each value of `key=value,value,...`. Raises ValueError for a
    configuration that is wrong, or has no client queries."""
    key, sign, values = vary.partition("=")
    if not sign or not values:
        raise ValueError(f"--vary {vary!r}: expected key=value,value, as epsilon=1,3,7.58")
    rows = list[dict[str, Any]]()
    machine = None
    for value in values.split(","):
        config, _ = _loaded(path, [*settings, f"{key}={value.strip()}"])
        if baseline(config):
            raise ValueError(f"--vary {vary!r}: method = {config.method!r} asks nobody")
        machine = machine or this_machine(cache_folder(config), config.models.device)
        device = exchange_of(config, machine)
        signal = signal_of(config, device.coordinates if config.updates else None)
        made = privacy_plan(config)
        rows.append(
            {
                "key": key, "value": value.strip(), "epsilon": made.epsilon,
                "users": config.data.users, "noise_multiplier": made.main.multiplier,
                "noise_std": signal.noise, "signal": signal.expected, "ratio": signal.ratio,
                "readable": signal.readable, "bytes_down": device.down, "bytes_up": device.up,
            }
        )  # fmt: skip
    return rows


def as_table(rows: list[dict[str, Any]]) -> str:
    """Rows of `plan_rows`, in Markdown."""
    lines = [
        [
            str(row["value"]), at_most(row["epsilon"]), f"{row['noise_multiplier']:.4f}",
            f"{row['noise_std']:,.4g}", f"{row['signal']:,.4g}",
            f"{row['ratio']:,.3g}{'' if row['readable'] else ', weak'}",
            _bytes(row["bytes_down"]), _bytes(row["bytes_up"]),
        ]
        for row in rows
    ]  # fmt: skip
    heading = [f"{rows[0]['key']} =", "epsilon", "noise multiplier", "noise std", "signal",
               "signal / noise", "down", "up"]  # fmt: skip
    lines = [heading, *lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * (width - 1) + ":" for width in widths])
    cells = ([c.rjust(w) for c, w in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(
        [
            *(f"| {' | '.join(line)} |" for line in cells),
            f"signal / noise: in standard deviations of the noise, readable from {SURE} on",
            "down and up: of a device and round",
        ]
    )


def machine_for(config: RunConfig) -> Machine:
    """This machine, with the speeds of the configuration's small models: remembered, or timed."""
    work = recipe_of(config).work(config)
    needs_torch = any(
        task.kind != "embedding" or ngram_dimension(config.models.embedder) is None for task in work
    )
    found = this_machine(cache_folder(config), config.models.device, needs_torch=needs_torch)
    return timed(config, work, found, seconds=TIMING_SECONDS)


def described(plan: Plan) -> str:
    """The plan in words, one part after the other."""
    return "\n".join(line for part in _parts(plan) for line in part)


def _parts(plan: Plan) -> Iterator[list[str]]:
    yield _privacy(plan)
    yield _device(plan)
    yield _weak_vote(plan)
    yield [f"trust: {plan.trust}"]
    yield [f"machine: {plan.machine.summary()}"]
    yield ["models:", *_indented([_model(model) for model in plan.models])]
    if plan.launches:
        yield ["processes that the run starts:", *_indented([one.shown() for one in plan.launches])]
    yield ["stages (work at most what the keys allow, times speeds of this machine):"]
    for stage in plan.stages:
        yield _indented(_stage(stage))
    yield [_total(plan), _memory(plan), _disk(plan)]
    yield _findings(plan)


def _privacy(plan: Plan) -> list[str]:
    made, signal = plan.privacy_plan, plan.signal
    if made is None or signal is None:
        claim = plan.claim
        return [
            f"privacy: epsilon {at_most(claim.epsilon)}, {claim.threat_model}",
            "  no rounds: no noise, no signal, and no question to a device",
        ]
    return [
        f"privacy: epsilon {at_most(made.epsilon)} of {at_most(made.target)} at delta "
        f"{made.delta:g}, {releases(made.phases)} releases, noise multiplier "
        f"{made.main.multiplier:.4f}",
        *_indented([f"{p.name}: {_counted(p.rounds, 'round')}, at most {p.most} of one user, noise "
                    f"of the {p.source}{_group(plan, p)}" for p in made.phases]),
        f"signal ({signal.kind}): " + signal.lines()[0],
        *_indented(signal.lines()[1:]),
    ]  # fmt: skip


def _group(plan: Plan, phase: Phase) -> str:
    """Whom alone a phase asks, and its own noise."""
    asked = plan.group_of(phase)
    if not asked:
        return ""
    nodes = _counted(asked["nodes"], f"{phase.group} node")
    return (
        f", multiplier {phase.multiplier:.4f}, on {nodes} with {_counted(asked['users'], 'user')}"
    )


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _device(plan: Plan) -> list[str]:
    found = plan.exchange
    if found is None:
        return []
    size = "unknown" if found.coordinates is None else f"{found.coordinates:,}"
    bits = "" if found.bits is None else f" of {found.bits} bits"
    secure = plan.config.aggregation == "secure"
    beside = "; keys and shares of secure aggregation come on top" if secure else ""
    once = f"; down {_bytes(found.once)} once for the histogram" if found.once else ""
    past = (
        f"  earlier rounds stay on its disk: {_bytes(found.past)}; a node that misses a round "
        "takes its share of them out of that sum, too"
    )
    lines = [
        f"a device and round: down {_bytes(found.down)}, up {_bytes(found.up)} ({size} "
        f"coordinates{bits}{beside}){once}",
        *([past] if found.past else []),
    ]
    if found.seconds is None or found.first_seconds is None:
        return [*lines, "  its computing: unknown, the size of its model is not known here"]
    speed = "as fast as this machine" if found.timed else "as fast as this machine at its best"
    first = (
        f"{spoken(found.first_seconds)} in the first round, {spoken(found.seconds)} in others"
        if found.first_seconds != found.seconds
        else spoken(found.seconds)
    )
    need = f", {_bytes(found.memory)} of memory" if found.memory else ""
    lines.append(f"  its computing: {first}, for one user, {speed}{need}; Flower's own part apart")
    return lines


def _weak_vote(plan: Plan) -> list[str]:
    vote = weak_vote(plan.config)
    if vote is None:
        return []
    signal, down, up = vote
    return [f"a weak node, once: down {_bytes(down)}, up {_bytes(up)}; {signal.first()}"]


def _model(model: ModelPlan) -> str:
    if model.parameters is None:
        return f"{model.key} = {model.name!r}: {model.source}"
    size = f"{model.parameters:,} parameters ({model.source})" if model.parameters else model.source
    where = "here" if model.here else f"not here: about {_bytes(model.download)} to fetch"
    return f"{model.key} = {model.name!r}: {size}; {where}"


def _stage(stage: Stage) -> list[str]:
    least = "" if stage.timed else "at least "
    parts = []
    if stage.seconds is None:
        parts.append("time unknown")
    elif stage.seconds or not stage.node_seconds:
        parts.append(f"{least}{spoken(stage.seconds)}")
    if stage.node_seconds:
        parts.append(f"on simulated nodes {least}{spoken(stage.node_seconds)}")
    return [f"{stage.stage}: {'; '.join(parts)}", *_indented([*stage.tasks, *stage.unknown])]


def _total(plan: Plan) -> str:
    unknown = [stage.stage for stage in plan.stages if stage.seconds is None]
    seconds = sum((stage.seconds or 0.0) + stage.node_seconds for stage in plan.stages)
    least = "" if all(stage.timed for stage in plan.stages) and not unknown else "at least "
    without = f", without {', '.join(unknown)}" if unknown else ""
    why = (
        "; work that was not timed here is counted at the machine's best" if least else
        "; all by work that was timed here"
    )  # fmt: skip
    return f"together: {least}{spoken(seconds)} on this machine{without}{why}"


def _memory(plan: Plan) -> str:
    named = ", ".join(f"models.{name} {_bytes(size)}" for name, size in plan.memory.items())
    return f"memory without batches: {named or 'unknown'}; {_bytes(plan.machine.memory)} are here"


def _disk(plan: Plan) -> str:
    named = ", ".join(f"{name.replace('_', ' ')} {_bytes(n)}" for name, n in plan.disk.items())
    return f"disk: {named}; {_bytes(plan.free)} are free"


def _findings(plan: Plan) -> list[str]:
    if not plan.findings:
        return ["ready to run"]
    return [
        ("refused here: " if finding.fatal else "warning: ") + finding.text
        for finding in plan.findings
    ]


def _bytes(size: float | None) -> str:
    if size is None:
        return "unknown"
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:,.3g} {unit}" if size < 1e12 else f"{size / 1e9:,.0f} GB"
    return f"{size:.0f} bytes"
