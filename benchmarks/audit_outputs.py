"""Do the audits of `privsyn inspect` raise an alarm where they should, and only there?

Miniatures of every method with canaries, each at an honest epsilon, with a tenth of the noise that
its claim needs, and with next to none. Over the runs of one setting the guesses are pooled, and the
lower bound on epsilon stands beside the claim: docs/results/measured.md has the table.

    python benchmarks/audit_outputs.py OUT            # all that is missing, then the table
    python benchmarks/audit_outputs.py OUT --only dp-fedavg --seeds 1
    python benchmarks/audit_outputs.py OUT --kept --page docs/results/measured.md  # on a page,
        where rows of settings that OUT does not have stay

A minute or so for each run on two cores; OUT keeps what is done.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.app.inspect.membership import CONFIDENCE, Guesses, best_bound, pooled
from privsyn_flower.config import RunConfig, load_config, to_toml
from privsyn_flower.server_apps.privacy_plan import privacy_plan

CONFIGS = Path(__file__).parents[1] / "configs"
CANARIES, DELTA = 100, 3e-6
MARK = "<!-- audit-outputs"
COMMON: dict[str, Any] = {
    "delta": DELTA,
    "benchmark": True,
    "data.canaries": CANARIES,
    "data.users": CANARIES + 10,  # a few people beside them: the strongest test
    "data.private-packages": "scipy",
    "data.held-out-users": 30,
    "models.train-steps": 6,
    "evaluation.controls": "",
    "evaluation.steps": 4,
    "evaluation.learning-rates": "1e-3",
    "evaluation.sequence-length": 64,
}
TRAINING = {
    "rounds": 4,
    "training.parameters": "full",
    "training.max-steps": 16,
    "training.learning-rate": 0.5,
    "training.clip-norm": 1.0,
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "pretext": ("test.toml", {"pretext.population": 400, "rounds": 1}),
    "pe": ("test.toml", {"method": "pe", "pe.population": 400, "pe.variation": "retrieval"}),
    "popri": ("popri-test.toml", {"popri.prompts": 100, "popri.batch-size": 50}),
    "ctcl": ("ctcl-test.toml", {**TRAINING, "evaluation.sequence-length": 96}),
    "dp-fedavg": ("dp-fedavg-test.toml", {**TRAINING, "training.evaluate": False}),
    "dp-ftrl": ("dp-ftrl-test.toml", {**TRAINING, "training.layers": ""}),
}
# What the run claims, and by how much its noise is less than that needs.
LEVELS = ((1.29, 1), (7.58, 1), (1.29, 10), (7.58, 10), (1000.0, 1))


@dataclass(frozen=True)
class Setting:
    """A method at a claim, with its noise divided by `less`."""

    method: str
    claim: float
    less: int

    def config(self, seed: int, epsilon: float = 0.0) -> RunConfig:
        file, own = METHODS[self.method]
        given = {"epsilon": epsilon or self.claim, "seed": seed, "data.seed": seed}
        return load_config(CONFIGS / file, {**COMMON, **own, **given})

    def epsilon(self) -> float:
        """At which a run has so little noise: its honest epsilon, far above the claim."""
        if self.less == 1:
            return self.claim
        wanted = noise(self.config(0)) / self.less
        low, high = self.claim, 1e5
        while high > 1.001 * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if noise(self.config(0, middle)) > wanted else (low, middle)
        return high


def noise(config: RunConfig) -> float:
    return privacy_plan(config).main.multiplier


def measured(setting: Setting, seed: int, out: Path, *, kept: bool) -> dict[str, Any] | None:
    """The membership figures of one run, from `out` if they are there. kept: None if they are
    not."""
    name = f"{setting.method}-{setting.claim:g}-{setting.less}-{seed}"
    file = out / f"{name}.json"
    if not file.exists():
        if kept:
            return None
        folder = out / "runs" / name
        config = setting.config(seed, setting.epsilon())
        placed = config.model_copy(update={"run_folder": str(folder)})
        given = out / f"{name}.toml"
        given.write_text(to_toml(placed), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("privsyn"))]
        where = ["--resume", str(folder)] if (folder / "config.toml").exists() else [str(given)]
        ended = subprocess.run([*command, "run", *where], stdout=subprocess.DEVNULL)
        if ended.returncode not in (0, 3, 5):  # 3: fewer rounds; 5: text of no use
            raise SystemExit(f"{name}: privsyn run ended with {ended.returncode}")
        told = subprocess.run([*command, "inspect", str(folder), "--json"], stdout=subprocess.PIPE)
        if told.returncode not in (0, 1):  # 1: the run's own claim is contradicted
            raise SystemExit(f"{name}: privsyn inspect ended with {told.returncode}")
        file.write_text(json.dumps(json.loads(told.stdout)["membership"]), encoding="utf-8")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def row(setting: Setting, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The pooled bound of all attacks, and the attack with the highest mean AUC."""
    sets = [{n for n, own in run["attacks"].items() if "canaries" in own} for run in runs]
    names = sorted(set.intersection(*sets))
    own = {name: [run["attacks"][name]["canaries"] for run in runs] for name in names}
    level = (1 - CONFIDENCE) / max(map(len, sets))  # one that told nothing in some run counts, too
    bound = max(
        best_bound(
            pooled([[Guesses(**one) for one in run["guesses"]] for run in own[name]]), DELTA, level
        )
        for name in names
    )
    means = {name: sum(run["auc"] for run in own[name]) / len(runs) for name in names}
    best = max(names, key=means.__getitem__)
    return {
        "method": setting.method,
        "claim": setting.claim,
        "less": setting.less,
        "epsilon": round(setting.epsilon(), 2),
        "runs": len(runs),
        "attack": best,
        "auc": round(means[best], 3),
        "bound": round(bound, 2),
        "caught": bound > setting.claim,
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| method | claim | noise | runs | best attack | AUC | epsilon at least | |"
    yield "|---|---:|---|---:|---|---:|---:|---|"
    for one in rows:
        less = (
            "as claimed" if one["less"] == 1 else f"a {one['less']}th: {one['epsilon']:g} in truth"
        )
        caught = "**caught**" if one["caught"] else ""
        yield (
            f"| {one['method']} | {one['claim']:g} | {less} | {one['runs']} | {one['attack']} | "
            f"{one['auc']:.3f} | {one['bound']:.2f} | {caught} |"
        )


def placed(page: str, lines: Sequence[str]) -> str:
    """The page with these rows in its table, in place of those of the same settings."""
    before, _, rest = page.partition(f"{MARK}:start -->\n")
    old, _, after = rest.partition(f"{MARK}:end -->")
    body = {tuple(line.split("|")[1:4]): line for line in [*old.splitlines()[2:], *lines[2:]]}
    whole = [f"{before}{MARK}:start -->", *lines[:2], *body.values(), f"{MARK}:end -->{after}"]
    return "\n".join(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="run nothing")
    parser.add_argument("--page", type=Path, help="a page with the table between its markers")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for method in given.only:
        for claim, less in LEVELS:
            setting = Setting(method, claim, less)
            tried = [
                measured(setting, seed, given.out, kept=given.kept) for seed in range(given.seeds)
            ]
            if runs := [run for run in tried if run is not None]:
                rows.append(row(setting, runs))
                print(json.dumps(rows[-1]), flush=True)
    lines = list(table(rows))
    print("\n".join(lines))
    if given.page:
        page = given.page.read_text(encoding="utf-8")
        given.page.write_text(placed(page, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
