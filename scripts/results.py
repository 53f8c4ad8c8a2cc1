"""The README's table: the demo repeated over seeds at both epsilons (`make results`).

    python scripts/results.py [--seeds 3] [--epsilons 7.58,1.29] [--table-only]

Each run is a `privsyn run` of configs/demo.toml with another seed (choices and noise differ; the
split, the public text and the models are the same). Finished runs in results/raw are kept, so
the script goes on where it was stopped. The table and the pictures of the first run go into
README.md and docs/images; every figure in them comes from the runs' summary.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT / "results" / "raw"
START, END = "<!-- results:start -->", "<!-- results:end -->"
ROWS = (
    ("pretrained", "the small LM before fine-tuning"),
    ("random_public", "(a) random public text"),
    ("noise_votes", "(a2) same pipeline, votes replaced by pure noise around their mean"),
    ("synthetic", "**(b) PrE-Text synthetic text**"),
    ("private", "(c) the private text itself (no privacy)"),
)


def run(epsilon: float, seed: int) -> dict[str, Any]:
    """The summary of one run; made now unless it is there."""
    folder = RAW / f"eps{epsilon:g}-seed{seed}"
    if not (folder / "summary.json").exists():
        command = [str(Path(sys.executable).parent / "privsyn"), "run"]
        if (folder / "config.toml").exists():
            command += ["--resume", str(folder)]
        else:
            command += [str(ROOT / "configs" / "demo.toml")]
            for setting in (f"epsilon={epsilon}", f"seed={seed}", f"run-folder={folder}"):
                command += ["--set", setting]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def spread(values: list[float], digits: int) -> str:
    """Mean, and the range over seeds."""
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def accuracy_table(by_epsilon: dict[float, list[dict[str, Any]]]) -> list[str]:
    """Next-token accuracy and cross-entropy by training text."""
    head = "| fine-tuned on |"
    rule = "|---|"
    for epsilon in by_epsilon:
        head += f" accuracy, eps {epsilon:g} | loss, eps {epsilon:g} |"
        rule += "---:|---:|"
    lines = [head, rule]
    for key, name in ROWS:
        line = f"| {name} |"
        for runs in by_epsilon.values():
            line += f" {spread([r['benchmark']['accuracy'][key] for r in runs], 4)} |"
            line += f" {spread([r['benchmark']['loss'][key] for r in runs], 3)} |"
        lines.append(line)
    return lines


def difference_table(by_epsilon: dict[float, list[dict[str, Any]]]) -> list[str]:
    """(b) minus (a) and (a2), with the 95 % interval of every seed (bootstrap over users)."""
    lines = ["| accuracy difference, each seed with its 95 % interval over held-out users |"]
    lines[0] += "".join(f" eps {epsilon:g} |" for epsilon in by_epsilon)
    lines.append("|---|" + "---|" * len(by_epsilon))
    for other, name in (("random_public", "(b) - (a)"), ("noise_votes", "(b) - (a2)")):
        line = f"| {name} |"
        for runs in by_epsilon.values():
            cells = []
            for run_ in runs:
                key = f"synthetic-{other}"
                value, low, high = run_["benchmark"]["accuracy_difference"][key]
                cells.append(f"{value:+.4f} [{low:+.4f}, {high:+.4f}]")
            line += " " + "<br>".join(cells) + " |"
        lines.append(line)
    return lines


def distance_table(by_epsilon: dict[float, list[dict[str, Any]]]) -> list[str]:
    """What the votes found: shares of true votes and Frechet distances to held-out text."""
    lines = ["| |" + "".join(f" eps {epsilon:g} |" for epsilon in by_epsilon)]
    lines.append("|---|" + "---:|" * len(by_epsilon))

    def row(name: str, pick: Any, digits: int) -> None:
        cells = [
            spread([pick(r["benchmark"]) for r in runs], digits) for runs in by_epsilon.values()
        ]
        lines.append(f"| {name} |" + "".join(f" {cell} |" for cell in cells))

    row("true votes of the survivors / of as many random candidates (mean over rounds)",
        lambda b: b["true_votes"]["mean_ratio"], 2)  # fmt: skip
    row("share of the true votes: seeds against as many random public texts",
        lambda b: b["true_votes"]["seeds_against_random"], 3)  # fmt: skip
    for group, name in (("seeds", "seeds"), ("synthetic", "synthetic text")):
        own = group
        for key, label in (
            (own, name),
            ("noise_votes", f"{name} of the pure-noise pipeline"),
            ("random_public", "random public text, same number"),
            ("private", "private users' text, same number (the floor)"),
        ):
            row(f"Frechet distance to held-out text, {name}: {label}",
                lambda b, g=group, k=key: b["frechet"][g][k], 4)  # fmt: skip
    return lines


def block(by_epsilon: dict[float, list[dict[str, Any]]]) -> str:
    """The README's text between the markers."""
    first = next(iter(by_epsilon.values()))[0]
    benchmark = first["benchmark"]
    seeds = ", ".join(
        f"{len(runs)} seed{'s' if len(runs) > 1 else ''} at epsilon {epsilon:g}"
        for epsilon, runs in by_epsilon.items()
    )
    intro = (
        f"Measured by `make results` ({seeds}; delta = {first['delta']:g}; "
        f"mean and [smallest, largest] over seeds): {first['users']:,} users, "
        f"{first['rounds']} rounds, {benchmark['held_out_users']} held-out test users with "
        f"{benchmark['held_out_tokens']:,} tokens. These figures are measured with private and "
        "held-out text and are not covered by epsilon."
    )
    parts = [[intro], accuracy_table(by_epsilon), difference_table(by_epsilon)]
    parts.append(distance_table(by_epsilon))
    parts.append(["![Next-token accuracy by training text](docs/images/accuracy.png)"])
    parts.append(
        ["![Candidates and held-out text in two principal directions](docs/images/candidates.png)"]
    )
    return "\n\n".join("\n".join(part) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="7.58,1.29")
    parser.add_argument("--table-only", action="store_true", help="only from finished runs")
    options = parser.parse_args()
    by_epsilon: dict[float, list[dict[str, Any]]] = {}
    for epsilon in (float(part) for part in options.epsilons.split(",")):
        for seed in range(options.seeds):
            folder = RAW / f"eps{epsilon:g}-seed{seed}"
            if options.table_only and not (folder / "summary.json").exists():
                continue
            print(f"epsilon {epsilon:g}, seed {seed}", flush=True)
            by_epsilon.setdefault(epsilon, []).append(run(epsilon, seed))
    images = ROOT / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    first = next(iter(by_epsilon))
    for name in ("accuracy.png", "candidates.png"):
        shutil.copyfile(RAW / f"eps{first:g}-seed0" / name, images / name)
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{START}\n{block(by_epsilon)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
