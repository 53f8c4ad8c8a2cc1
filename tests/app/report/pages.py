"""Run folders for the page's tests: of every kind of method, of earlier versions, and hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from privsyn_flower.config import RunConfig, to_toml
from privsyn_flower.privacy.ledger import Ledger
from privsyn_flower.privacy.ledger.journal import Row
from privsyn_flower.privacy.ledger.usage import exclusive, export
from privsyn_flower.runs import RunFolder, write_json, write_jsonl
from tests.rigs.tables import SECURE, summary

TERMS: dict[str, Any] = {"total_epsilon": 7.58, "total_delta": 3e-6}

# What a hostile generator, model name or log line may hold; each would show as an alert, a request,
# a changed title or a text in another's place.
HOSTILE = (
    "</script><script>window.taken = 1</script>",
    "<img src=x onerror='window.taken = 2'>",
    '"><svg onload=window.taken=3>',
    "<!--<script>",
    "]]><iframe src='https://example.org/'></iframe>",
    "javascript:window.taken=4",
    "{{constructor.constructor('window.taken=5')()}}",
    "<link rel=stylesheet href=https://example.org/a.css><base href=https://example.org/>",
    "</textarea></title></style><style>body{display:none}</style>",
    "user \u202etxt.exe\u202c and \u2066isolated\u2069 \u200f",
    "\ud800 half a pair, \x00 nothing, \x1b[2J escape",
    "W" * 5000,
    "e\u0301\u0302\u0303" * 400,
    "&lt;b&gt; stays as it is written",
)


QUALITY: dict[str, Any] = {  # as `evaluation.quality` has it, with who wrote the texts
    "texts": 1500, "public_texts": 8704, "compared": 1500, "copies": 0.25,
    "word_list": "English (MiniLM's vocabulary)",
    "synthetic": {"unknown_words": 0.031, "repetitive": 0.042, "words": [8, 13, 24],
                  "distinct": [0.061, 0.39, 0.73], "shared_runs": 0.14},
    "public": {"unknown_words": 0.011, "repetitive": 0.002, "words": [8, 14, 40],
               "distinct": [0.08, 0.4, 0.75], "shared_runs": 0.13},
    "writer": {"model": "smollm2", "parameters": 134_515_008}, "sentences": [],
}  # fmt: skip
VOTED: dict[str, Any] = {
    "best": [{"round": 4, "text": f"see you <b>{n}", "votes": 9.5 - n} for n in range(5)],
    "shares": [
        {"round": n, "shares": {"messages": 0.05 + 0.2 * n, "docstrings": 0.95 - 0.2 * n}}
        for n in range(5)
    ],
}


def metrics(rounds: int = 4) -> list[Row]:
    """Rows as a strategy logs them; in round 2 a node is missing."""
    return [
        {
            "round": number, "charge": str(number), "attempt": 1, "nodes_asked": 8,
            "nodes_answered": 7 if number == 2 else 8, "surviving_weight": 1000.0,
            "bytes_down_per_node": 1200, "bytes_up_per_node": 700, "noise_std": 4.3,
            "excess": 0.25 * number, "excess_degrees": 100, "exchange_seconds": 1.5,
            "epsilon_so_far": 1.5 * number, "seconds": 2.0,
        }
        for number in range(1, rounds + 1)
    ]  # fmt: skip


def benchmark(result: str = "synthetic", task: str = "next-token") -> dict[str, Any]:
    """As `benchmark` of a summary: a result between its controls."""
    names = ("random_public", "noise_votes", result, "private")
    values = dict(zip(names, (0.2, 0.19, 0.25, 0.3), strict=True))
    second = "macro_f1" if task == "classification" else "loss"
    difference = {
        f"{result}-random_public": [0.05, 0.04, 0.06],
        f"{result}-noise_votes": [0.06, 0.05, 0.07],
    }
    return {
        "note": "measured with private and held-out text; not covered by epsilon",
        "held_out": "test", "held_out_users": 150, "held_out_tokens": 9000, "task": task,
        "methods": {name: f"({name[0]}) text of {name}" for name in names},
        "training_texts": dict.fromkeys(names, 1500),
        "accuracy": values, second: values,
        "accuracy_interval": {name: [v - 0.01, v + 0.01] for name, v in values.items()},
        "accuracy_difference": difference, f"{second}_difference": difference,
        "frechet": {result: {name: 1 - v for name, v in values.items()}},
        "closeness": {
            "synthetic": {"frechet": [0.61, 0.58, 0.64], "mauve": [0.42, 0.36, 0.48],
                          "precision": [0.71, 0.66, 0.76], "recall": [0.33, 0.3, 0.36]},
            "random_public": {"frechet": [0.9, 0.88, 0.92], "mauve": [0.1, 0.07, 0.13],
                              "precision": [0.4, 0.35, 0.45], "recall": [0.12, 0.1, 0.14]},
        },
        "responses": {"frechet_held_out": [0.4, 0.3], "frechet_private": [0.5, 0.4]},
        "true_votes": {"survivors": [0.4, 0.5], "random": [0.2, 0.2], "mean_ratio": 2.2,
                       "seeds_against_random": 0.7},
        "near_duplicates": {"private": {"share": 0.01, "similar_share": 0.0, "copies": 0.0,
                                        "reference_texts": 100, "longest_shared_words": 9}},
        "verdict": ["against random public text: accuracy +0.0500, better"],
        "costs": {"client_cpu_seconds_per_user_round": 0.04, "client_cpu_seconds_per_user": 0.3,
                  "server_wall_seconds": 81.0, "releases": 4},
    }  # fmt: skip


def run_folder(
    folder: Path,
    *,
    method: str = "pretext",
    texts: list[dict[str, Any]] | None = None,
    rounds: int = 4,
    config: dict[str, Any] | None = None,
    **values: Any,
) -> Path:
    """A finished run, its ledger beside it. values: of the summary, over what it has anyway."""
    run = RunFolder(folder)
    flat = {"method": method, "seed": 3, "run-folder": str(folder), **(config or {})}
    (folder / "config.toml").write_text(to_toml(RunConfig.from_flat(flat)), encoding="utf-8")
    run.save_value("run", "abc")
    if rounds:
        charged(run, rounds)
    write_jsonl(folder / "metrics.jsonl", metrics(rounds))
    if texts is not None:
        write_escaped(folder / "synthetic.jsonl", texts)
    found = summary(method, SECURE, version="0.1.0", privacy="Epsilon = 7.58, the long form.",
                    privacy_short="Epsilon = 7.58 at delta = 3e-06.", rounds_planned=rounds,
                    noise_multiplier=0.9, stage_seconds={"data": 1.0, "rounds": 61.5},
                    wall_seconds=62.5, verdict={"sentences": ["the votes can be told from noise"],
                    "excess": 0.5, "signal": "below the noise"}, synthetic_samples=0)  # fmt: skip
    write_json(folder / "summary.json", {**found, "rounds": rounds, **values})
    return folder


def write_escaped(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON lines, also with what only an escape can write (half of a pair)."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def released(path: Path, run: str, releases: int, population: str) -> Ledger:
    """A ledger with so many releases of a run, after those that it has."""
    ledger = Ledger.open(path, population=population, **TERMS)
    for number in range(1, releases + 1):
        charge = ledger.reserve(
            run=run, query="votes", round=number, attempt=1, noise_multiplier=6.0
        )
        ledger.mark_sent(charge)
        ledger.commit(charge)
    return ledger


def charged(run: RunFolder, rounds: int, population: str = "run abc") -> None:
    """The run's ledger, with a release for each round and an attempt that came to nothing."""
    path = run.path.parent / f"{run.path.name}-ledger.jsonl"
    ledger = released(path, "abc", rounds, population)
    run.save_value("ledger", {"id": ledger.header.id, "path": str(path)})
    with exclusive(ledger):
        ledger.reserve(run="abc", query="votes", round=1, attempt=2, noise_multiplier=6.0)
        export(ledger, "abc", run.path / "ledger.jsonl")


def topical(count: int) -> list[dict[str, Any]]:
    """Synthetic rows of three topics."""
    words = (["river", "stone"], ["matrix", "vector"], ["lemma", "proof"])
    return [
        {"text": f"text {n} of {' '.join(words[n % 3])} {'more ' * (n % 9)}", "topic": n % 3,
         "keywords": words[n % 3]}
        for n in range(count)
    ]  # fmt: skip


def hostile_folder(folder: Path) -> Path:
    """A run in which every text of others is hostile."""
    bad = benchmark()
    bad |= dict.fromkeys(("accuracy", "loss", "training_texts"), dict.fromkeys(HOSTILE, 0.2))
    bad |= {
        "methods": {"a": HOSTILE[0]}, "frechet": {text: {text: 0.5} for text in HOSTILE},
        "accuracy_difference": {f"synthetic-{text}": [0.1, 0.0, 0.2] for text in HOSTILE},
        "closeness": {text: {"frechet": [0.5, 0.4, 0.6], "mauve": text} for text in HOSTILE},
        "verdict": list(HOSTILE),
    }  # fmt: skip
    clean = [text for text in HOSTILE if "\ud800" not in text]
    found = run_folder(
        folder,
        texts=[{"text": text, "topic": n, "keywords": [text, text]}
               for n, text in enumerate(HOSTILE)],
        config={"models.generator": clean[0], "population-name": "x"},
    )  # fmt: skip
    plain = json.loads((found / "summary.json").read_text())
    plain |= {
        "dataset": f"files:{HOSTILE[1]}", "privacy": " ".join(HOSTILE), "benchmark": bad,
        "privacy_short": HOSTILE[0], "version": HOSTILE[1], "ended_early": HOSTILE[2],
        "stage_seconds": dict.fromkeys(HOSTILE, 1.0), "unit": HOSTILE[3],
        "verdict": {"sentences": list(HOSTILE), "excess": 1.0, "signal": HOSTILE[5]},
        "quality": QUALITY | {
            "sentences": list(HOSTILE), "word_list": HOSTILE[1],
            "writer": {"model": HOSTILE[0], "parameters": HOSTILE[0]},
            "synthetic": QUALITY["synthetic"] | {"repetitive": HOSTILE[4], "words": list(HOSTILE)},
        },
        "voted": {
            "best": [{"text": text, "votes": text, "round": text} for text in HOSTILE],
            "shares": [{"round": n, "shares": dict.fromkeys(HOSTILE, 0.1)} for n in range(3)],
        },
        "side_by_side": {name: list(HOSTILE) for name in ("public", "seeds", "synthetic")},
        "topics": {"largest": [{"keywords": [HOSTILE[0]], "share": 0.5}]},
    }  # fmt: skip
    (found / "summary.json").write_text(json.dumps(plain), encoding="utf-8")
    log = "".join(f"a b WARNING {text}\n" for text in clean)
    (found / "run.log").write_text(log, encoding="utf-8")
    (found / "error.txt").write_text(HOSTILE[0], encoding="utf-8")
    events = [{"t": 1.0, "stage": text, "done": 1, "total": 2, "note": text} for text in HOSTILE]
    write_escaped(found / "progress.jsonl", events)
    return found
