"""The demo's synthetic chats at both epsilons as one data set (`make dataset`).

    python -m scripts.dataset [build/dataset] [--set KEY=VALUE ...] [--license NAME]

For each epsilon a run of configs/chats-demo.toml without its benchmark, then `privsyn publish`; a
card on top says what the folders are, and what both claims come to for a reader of both. Runs lie
in runs/dataset, outside of what is published, and go on where they were stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import file_digest, write_atomic
from privsyn_flower.privacy.accounting.composition import gaussian_epsilon
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.wording import at_most
from privsyn_flower.runs import complete

ROOT = Path(__file__).resolve().parent.parent
CONFIG, CARD = ROOT / "configs" / "chats-demo.toml", Path(__file__).with_name("dataset_card.md")
EPSILONS = (7.58, 1.29)  # PrE-Text, Tables 2 and 3
WITH_RESULT = (0, 3, 5)  # of `privsyn run`: finished, ended early, of no use; the card says which
OF_THE_CARD = ("method", "epsilon", "data.source", "run-folder")
NO_LICENCE = "None is named: the publisher chose none for the texts, which is no permission."

Summary = Mapping[str, Any]


def privsyn(*words: str) -> int:
    """The exit status of a command of the package, in this interpreter's environment."""
    return subprocess.run([str(Path(sys.executable).with_name("privsyn")), *words]).returncode


def finished_run(epsilon: float, runs: Path, settings: Sequence[str]) -> Path:
    """The folder of a finished run at this epsilon: new, continued, or as it is.

    Raises SystemExit where the run fails, or was begun with other settings than these.
    """
    run = runs / f"epsilon-{epsilon:g}"
    noted = run.with_suffix(f"{run.suffix}.json")
    known = json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else None
    asked = [file_digest(CONFIG), *settings]
    if run.exists() and known != asked:
        raise SystemExit(f"{run} has other settings ({noted}): delete both, or name other --runs")
    if complete(run):
        return run
    write_atomic(noted, json.dumps(asked).encode())
    wanted = [f"epsilon={epsilon}", "benchmark=false", f"run-folder={run}", *settings]
    begin = [str(CONFIG), *(part for one in wanted for part in ("--set", one))]
    code = privsyn("run", *(["--resume", str(run)] if (run / "config.toml").exists() else begin))
    if code not in WITH_RESULT:
        raise SystemExit(f"the run in {run} ended with {code}: `make dataset` goes on with it")
    return run


def together(summaries: Sequence[Summary]) -> tuple[float, float]:
    """(epsilon, delta) of all these runs on the same users, for whoever reads all of them.

    Without sampling they are Gaussian releases together, whose squares of mu add up, at the largest
    of their deltas, of which each run's integers take their part. Raises ValueError for a run
    without mu (one with sampling, or without noise).
    """
    if missing := [one["method"] for one in summaries if not one.get("mu_gdp")]:
        raise ValueError(f"no mu_gdp in a summary of {missing}: the runs' sum is not known")
    delta = max(float(one["delta"]) for one in summaries)
    integers = math.fsum(one["delta"] - gaussian_delta(one["delta"]) for one in summaries)
    mu = math.sqrt(math.fsum(one["mu_gdp"] ** 2 for one in summaries))
    return gaussian_epsilon(1 / mu, delta - integers), delta


def card(summaries: Mapping[str, Summary], licence: str) -> str:
    """README.md over the folders, by their names. Raises ValueError as `together`, and for runs of
    different numbers of users."""
    runs = list(summaries.values())
    if len(users := {int(one["users"]) for one in runs}) > 1:
        raise ValueError(f"the runs have {sorted(users)} users: not the same people")
    epsilon, delta = together(runs)
    table = [["folder", "epsilon", "delta", "rho (zCDP)", "rounds", "texts", "seeds", "its votes"]]
    table.append(["---"] * len(table[0]))
    for name, one in summaries.items():
        counts = (one[key] for key in ("rounds", "synthetic_samples", "seeds"))
        words = "; ".join(one["verdict"]["sentences"])
        early = f" (ended early: {one['ended_early']})" if one["ended_early"] else ""
        claim = [at_most(one["epsilon"]), f"{one['delta']:g}", at_most(one["rho_zcdp"])]
        table.append([f"[{name}]({name}/README.md)", *claim, *map(str, counts), words + early])
    split = "- config_name: {0}\n  data_files: {0}/data/train.parquet\n"
    return CARD.read_text(encoding="utf-8").format(
        licence=licence or "unknown",
        configs="".join(map(split.format, summaries)),
        users=f"{users.pop():,}",
        rows="\n".join(f"| {' | '.join(row)} |" for row in table),
        claims="\n".join(f"- {name}: {one['privacy_short']}" for name, one in summaries.items()),
        total=at_most(epsilon),
        delta=f"{delta:g}",
        simple=at_most(math.fsum(one["epsilon"] for one in runs)),
        simple_delta=f"{math.fsum(one['delta'] for one in runs):g}",
        licence_words=f"The publisher put the texts under `{licence}`." if licence else NO_LICENCE,
        first=next(iter(summaries)),
        version=runs[0]["version"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The demo's synthetic chats at both epsilons.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "dataset")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "dataset")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--license", default="", help="the hub's name of the publisher's choice")
    given = parser.parse_args()
    if other := [one for one in given.set if one.partition("=")[0].strip() in OF_THE_CARD]:
        raise SystemExit(f"--set {other[0]}: the card's words are about {CONFIG.name} without it")
    runs, folder = given.runs.absolute(), given.folder.absolute()
    finished = [finished_run(epsilon, runs, given.set) for epsilon in EPSILONS]
    licence = ["--license", given.license] if given.license else []
    summaries = {}
    for run in finished:
        if privsyn("publish", str(run), str(folder / run.name), *licence):
            raise SystemExit(f"{run} was not published: {folder} is not whole")
        summaries[run.name] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    write_atomic(folder / "README.md", card(summaries, given.license).encode())
    print(folder)


if __name__ == "__main__":
    main()
