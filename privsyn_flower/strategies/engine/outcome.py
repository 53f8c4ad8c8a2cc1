"""A run as its callbacks and its summary.json have it: for `privsyn run` and for every `start`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from privsyn_flower.evaluation.verdict import verdict
from privsyn_flower.privacy.plan import ROUNDS, PrivacyPlan
from privsyn_flower.runs import RunFolder, write_json
from privsyn_flower.strategies.engine.callbacks import RunStart
from privsyn_flower.strategies.engine.record import write_form
from privsyn_flower.strategies.engine.rounds import Rounds
from privsyn_flower.strategies.engine.run_ledger import run_id
from privsyn_flower.strategies.engine.session import Session

SUMMARY = "summary.json"
logger = logging.getLogger("flwr")  # the log that Flower shows in every app

OWN_DATA = "data of the app"  # in the place of a data set, which only the app knows


def run_start(
    folder: RunFolder, facts: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> RunStart:
    """A start of the run in `folder`, with the rounds that ended in earlier ones."""
    rows = {
        path.name: found
        for path in sorted((folder.path / "evaluations").glob("*/"))
        if (found := RunFolder(path).metrics())
    }
    rows |= {ROUNDS: found} if (found := folder.metrics()) else {}
    return RunStart(run_id(folder), folder.path.absolute(), facts, settings or {}, rows)


def observed(session: Session, method: str) -> AbstractContextManager[dict[str, Any]]:
    """`Callbacks.run` of a `start`; in the folder's lock. method: name of its strategy."""
    facts = {
        **session.known(),
        "method": method,
        "nodes": session.spec.nodes,
        "rounds_planned": session.privacy_plan.main.rounds,
    }
    return session.callbacks.run(run_start(session.folder, facts))


def of_rounds(folder: RunFolder, done: int, planned: int, ended_early: str) -> dict[str, Any]:
    """The figures that follow from the rounds. done: released; planned: 0 without rounds."""
    metrics = folder.exchanges()
    down = max((row["bytes_down_per_node"] for row in metrics), default=0)
    up = max((row["bytes_up_per_node"] for row in metrics), default=0)
    nodes = sum(row["nodes_answered"] for row in metrics)
    return {
        "rounds": done,
        "rounds_planned": planned,
        "ended_early": ended_early or None,
        "bytes_up_per_user_round": up,
        "bytes_down_per_user_round": down,
        "bytes_up_all_nodes": up * nodes,
        "bytes_down_all_nodes": down * nodes,
    }


def judged(
    folder: RunFolder,
    privacy_plan: PrivacyPlan,
    rows: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Any],
    what: str,
) -> dict[str, Any]:
    """The verdict of all that was released. rows: of the rounds. figures, what: as of `verdict`."""
    noise = privacy_plan.main.factorization
    independent = noise is None or noise.name == "independent"
    found = verdict(rows, figures, what=what, independent=independent)
    for phase in privacy_plan.phases:
        if phase.name != ROUNDS and not phase.evaluates:
            beside = RunFolder(folder.path / "evaluations" / phase.name).metrics()
            told = verdict(beside, {}, what=phase.name, independent=True)
            found["sentences"] += told["sentences"]
    return found


def write_summary(
    session: Session, engine: Rounds, method: str, done: int, *, samples: int = 0
) -> dict[str, Any]:
    """summary.json of a `start`, and the form that is made of it; inside `Session.begun`.

    Its verdict is in Flower's log, too. method: as `privsyn run` names it. samples: synthetic
    texts. The seconds are those of rounds: what the app does beside them is not known here.
    """
    folder, statement, ledger = session.folder, session.statement, session.ledger
    seconds = round(sum(float(row.get("seconds", 0.0)) for row in folder.metrics()), 1)
    total = ledger.header.total_epsilon
    what = next((charge.query for charge in ledger.charges(run=run_id(folder))), "answers")
    found = judged(folder, session.privacy_plan, folder.metrics(), {}, what)
    for sentence in found["sentences"]:
        logger.info("verdict: %s", sentence)
    summary = {
        **session.known(),
        "method": method,
        "dataset": OWN_DATA,
        **of_rounds(folder, done, session.privacy_plan.main.rounds, engine.ended_early),
        "participations_per_user": min(done, statement.most_participations),
        "privacy_curve": session.privacy_plan.curve,
        "epsilon_ledger": ledger.spent_epsilon(delta=None if total else statement.delta),
        "epsilon_ledger_total": total,
        "synthetic_samples": samples,
        "verdict": found,
        "wall_seconds": seconds,
        "stage_seconds": {"rounds": seconds},
    }
    write_form(folder.path, summary)
    write_json(folder.path / SUMMARY, summary)
    return summary


def note_samples(folder: RunFolder, samples: int) -> None:
    """How many texts were written of what `write_summary` has told."""
    path = folder.path / SUMMARY
    summary = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**summary, "synthetic_samples": samples})
