"""The tables of docs/results.md: the demos repeated over seeds and epsilons (`make results`).

    python scripts/results.py [--seeds 3] [--epsilons 7.58,1.29] [--demo popri-demo] [--table-only]

Each run is a `privsyn run` of one of the demos in configs/ with another seed (choices and noise
differ; the split, the public text and the models are the same). Finished runs in results/raw are
kept, so the script goes on where it was stopped. Their summaries go into docs/results, the tables
and the pictures of the first run into docs/results.md and docs/images, PrE-Text's main table into
README.md, and the first run of every demo beside the others (`privsyn report`) into
docs/results.md; every figure comes from those summaries. A run whose summary is there is not
repeated: remove the summary to measure anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.cli.report import report
from privsyn_flower.runs import complete

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT / "results" / "raw"
KEPT = ROOT / "docs" / "results"  # summaries, in version control
PAGE = ROOT / "docs" / "results.md"
FRONT = ROOT / "README.md"


Runs = dict[float, list[dict[str, Any]]]


@dataclass(frozen=True)
class Demo:
    """One demo: its configuration, the rows of its tables, its pictures, its place on the page.

    rows: benchmark name -> text. differences: what (b) is compared with -> text. prefix: of its
    folders in results/raw and of its pictures. result: (b)'s name in the benchmark. epsilons:
    those that its settings are for.
    """

    config: str
    rows: dict[str, str]
    differences: dict[str, str]
    pictures: dict[str, str]
    marker: str
    prefix: str = ""
    result: str = "synthetic"
    epsilons: tuple[float, ...] = (7.58, 1.29)


PRETEXT = Demo(
    "demo",
    {
        "pretrained": "the small LM before fine-tuning",
        "random_public": "(a) random public text",
        "noise_votes": "(a2) same pipeline, votes replaced by pure noise around their mean",
        "synthetic": "**(b) PrE-Text synthetic text**",
        "private": "(c) the private text itself (no privacy)",
    },
    {"random_public": "(b) - (a)", "noise_votes": "(b) - (a2)"},
    {
        "accuracy.png": "Next-token accuracy by training text",
        "candidates.png": "Candidates and held-out text in two principal directions",
    },
    "results",
)
POPRI = Demo(
    "popri-demo",
    {
        "pretrained": "the small LM before fine-tuning",
        "random_public": "(a) random public text",
        "unaligned": "(a1) the generator's text before alignment",
        "noise_scores": "(a2) same pipeline, scores replaced by pure noise",
        "pretext": "(a3) PrE-Text's synthetic text, same noise and rounds, without its seeds",
        "synthetic": "**(b) POPri synthetic text**",
        "private": "(c) the private text itself (no privacy)",
    },
    {"unaligned": "(b) - (a1)", "noise_scores": "(b) - (a2)", "pretext": "(b) - (a3)"},
    {
        "accuracy.png": "Next-token accuracy by training text",
        "candidates.png": "Responses and held-out text in two principal directions",
        "distances.png": "Frechet distance of the responses by round",
    },
    "popri-results",
    "popri-",
)
TRAINED = {
    "pretrained": "the small LM before fine-tuning",
    "random_public": "(a) random public text: where the private training starts",
    "noise_updates": "(a2) the same training, every sum replaced by noise of its size",
    "trained": "**(b) trained on the users' devices**",
    "private": "(c) the private text itself (no privacy)",
}
TRAINED_DIFFERENCES = {"random_public": "(b) - (a)", "noise_updates": "(b) - (a2)"}
FEDAVG, FTRL = (
    Demo(
        f"{name}-demo", TRAINED, TRAINED_DIFFERENCES, {}, f"{name}-results", f"{name}-", "trained",
        (7.58,),
    )
    for name in ("dp-fedavg", "dp-ftrl")
)  # fmt: skip
DEMOS = (PRETEXT, POPRI, FEDAVG, FTRL)
COMPARED = "compare"  # marker of the runs side by side
SHOWN = "result"  # marker of README.md's one table


def folder_of(demo: Demo, epsilon: float, seed: int) -> Path:
    """Where a run of a demo is kept."""
    return RAW / f"{demo.prefix}eps{epsilon:g}-seed{seed}"


def kept(demo: Demo, epsilon: float, seed: int) -> dict[str, Any] | None:
    """The summary of a finished run, from results/raw or docs/results; None: not run yet."""
    folder = folder_of(demo, epsilon, seed)
    place = KEPT / f"{folder.name}.json"
    if complete(folder):
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "summary.json", place)
    if not place.exists():
        return None
    summary: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return summary


def run(demo: Demo, epsilon: float, seed: int) -> dict[str, Any]:
    """The summary of one run; made now unless it is there."""
    folder, found = folder_of(demo, epsilon, seed), kept(demo, epsilon, seed)
    if found is None:
        command = [str(Path(sys.executable).parent / "privsyn"), "run"]
        if (folder / "config.toml").exists():
            command += ["--resume", str(folder)]
        else:
            command += [str(ROOT / "configs" / f"{demo.config}.toml")]
            for setting in (f"epsilon={epsilon}", f"seed={seed}", f"run-folder={folder}"):
                command += ["--set", setting]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = kept(demo, epsilon, seed)
    if found is None:
        raise SystemExit(f"{folder} has no summary.json: the run did not finish")
    return found


def spread(values: list[float], digits: int) -> str:
    """Mean, and the range over seeds."""
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def accuracy_table(demo: Demo, by_epsilon: Runs) -> list[str]:
    """Next-token accuracy and cross-entropy by training text."""
    head = "| fine-tuned on |"
    rule = "|---|"
    for epsilon in by_epsilon:
        head += f" accuracy, eps {epsilon:g} | loss, eps {epsilon:g} |"
        rule += "---:|---:|"
    lines = [head, rule]
    for key, name in demo.rows.items():
        line = f"| {name} |"
        for runs in by_epsilon.values():
            line += f" {spread([r['benchmark']['accuracy'][key] for r in runs], 4)} |"
            line += f" {spread([r['benchmark']['loss'][key] for r in runs], 3)} |"
        lines.append(line)
    return lines


def difference_table(demo: Demo, by_epsilon: Runs, measure: str) -> list[str]:
    """(b) minus the others, with the 95 % interval of every seed (bootstrap over users)."""
    lines = [f"| {measure} difference, each seed with its 95 % interval over held-out users |"]
    lines[0] += "".join(f" eps {epsilon:g} |" for epsilon in by_epsilon)
    lines.append("|---|" + "---|" * len(by_epsilon))
    for other, name in demo.differences.items():
        line = f"| {name} |"
        for runs in by_epsilon.values():
            cells = []
            for run_ in runs:
                key = f"{demo.result}-{other}"
                value, low, high = run_["benchmark"][f"{measure}_difference"][key]
                cells.append(f"{value:+.4f} [{low:+.4f}, {high:+.4f}]")
            line += " " + "<br>".join(cells) + " |"
        lines.append(line)
    return lines


def distance_table(demo: Demo, by_epsilon: Runs) -> list[str]:
    """What the answers found, and Frechet distances to held-out text at equal numbers of texts."""
    if demo.result != "synthetic":
        return []
    lines = ["| |" + "".join(f" eps {epsilon:g} |" for epsilon in by_epsilon)]
    lines.append("|---|" + "---:|" * len(by_epsilon))

    def row(name: str, pick: Any, digits: int) -> None:
        cells = [
            spread([pick(r["benchmark"]) for r in runs], digits) for runs in by_epsilon.values()
        ]
        lines.append(f"| {name} |" + "".join(f" {cell} |" for cell in cells))

    if demo is PRETEXT:
        row("true votes of the survivors / of as many random candidates (mean over rounds)",
            lambda b: b["true_votes"]["mean_ratio"], 2)  # fmt: skip
        row("share of the true votes: seeds against as many random public texts",
            lambda b: b["true_votes"]["seeds_against_random"], 3)  # fmt: skip
    else:
        row("recovery rate of the preferences (mean over rounds)",
            lambda b: statistics.mean(b["responses"]["recovery_rate"]), 3)  # fmt: skip
        for other in ("private", "held_out", "public"):
            row(f"synthetic texts with 8 words in a row from {other.replace('_', '-')} text",
                lambda b, o=other: b["near_duplicates"][o]["share"], 4)  # fmt: skip
    first = next(iter(by_epsilon.values()))[0]["benchmark"]["frechet"]
    for group, distances in first.items():
        for key in distances:
            name = demo.rows.get(key, key).replace("**", "")
            row(f"Frechet distance to held-out text ({group}): {name}",
                lambda b, g=group, k=key: b["frechet"][g][k], 4)  # fmt: skip
    return lines


def introduction(by_epsilon: Runs) -> str:
    """What was measured, how often, on whom."""
    first = next(iter(by_epsilon.values()))[0]
    benchmark = first["benchmark"]
    seeds = ", ".join(
        f"{len(runs)} seed{'s' if len(runs) > 1 else ''} at epsilon {epsilon:g}"
        for epsilon, runs in by_epsilon.items()
    )
    return (
        f"Measured by `make results` ({seeds}; delta = {first['delta']:g}; "
        f"mean and [smallest, largest] over seeds): {first['users']:,} users, "
        f"{first['rounds']} rounds, {benchmark['held_out_users']} held-out test users with "
        f"{benchmark['held_out_tokens']:,} tokens. These figures are measured with private and "
        "held-out text and are not covered by epsilon."
    )


def block(demo: Demo, by_epsilon: Runs) -> str:
    """The text between a demo's markers."""
    parts = [[introduction(by_epsilon)], accuracy_table(demo, by_epsilon)]
    measures = ["accuracy"] if demo is PRETEXT else ["accuracy", "loss"]
    parts += [difference_table(demo, by_epsilon, measure) for measure in measures]
    parts.append(distance_table(demo, by_epsilon))
    parts += [[f"![{text}](images/{image(demo, name)})"] for name, text in demo.pictures.items()]
    return "\n\n".join("\n".join(part) for part in parts if part)


def image(demo: Demo, name: str) -> str:
    """A picture's name in docs/images."""
    return f"{demo.prefix}{name}"


def publish(demo: Demo, by_epsilon: Runs) -> None:
    """The block into docs/results.md, the pictures of the first run into docs/images."""
    images = ROOT / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    first = folder_of(demo, next(iter(by_epsilon)), 0)
    for name in demo.pictures:
        if (first / name).exists():  # else those of the same run are there already
            shutil.copyfile(first / name, images / image(demo, name))
    fill(PAGE, demo.marker, block(demo, by_epsilon))
    shown = {epsilon: runs for epsilon, runs in by_epsilon.items() if epsilon == demo.epsilons[0]}
    if demo is PRETEXT and shown:  # the epsilon that README.md speaks of
        lines = [introduction(shown), "", *accuracy_table(demo, shown)]
        fill(FRONT, SHOWN, "\n".join(lines))


def fill(page: Path, marker: str, text: str) -> None:
    """Put a text between its markers. Raises ValueError for a page without them."""
    start, end = f"<!-- {marker}:start -->", f"<!-- {marker}:end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{page} must hold {start} and {end}")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def compare(epsilon: float) -> None:
    """The first run of every demo at this epsilon, side by side."""
    found = [summary for demo in DEMOS if (summary := kept(demo, epsilon, 0)) is not None]
    if len(found) > 1:
        fill(PAGE, COMPARED, report(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="7.58,1.29")
    parser.add_argument("--demo", choices=[d.config for d in DEMOS], action="append")
    parser.add_argument(
        "--table-only", action="store_true", help="run nothing; tables whose runs are all finished"
    )
    options = parser.parse_args()
    wanted = [float(part) for part in options.epsilons.split(",")]
    for demo in DEMOS:
        if options.demo and demo.config not in options.demo:
            continue
        asked = [(e, seed) for e in wanted if e in demo.epsilons for seed in range(options.seeds)]
        missing = [one for one in asked if options.table_only and kept(demo, *one) is None]
        if missing:  # a table of fewer runs must not take the place of one of all
            print(f"{demo.config}: its table stays, {missing} (epsilon, seed) are not here")
            continue
        by_epsilon: Runs = {}
        for epsilon, seed in asked:
            print(f"{demo.config}: epsilon {epsilon:g}, seed {seed}", flush=True)
            by_epsilon.setdefault(epsilon, []).append(run(demo, epsilon, seed))
        if by_epsilon:
            publish(demo, by_epsilon)
    compare(wanted[0])


if __name__ == "__main__":
    main()
