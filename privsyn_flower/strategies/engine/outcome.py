"""What a run came to, as summary.json has it: for `privsyn run` and for every `start`."""

from __future__ import annotations

import json
from typing import Any

from privsyn_flower.report.claims import claimed
from privsyn_flower.report.registry import write_record
from privsyn_flower.report.source import code
from privsyn_flower.runs import RunFolder, write_json
from privsyn_flower.strategies.engine.rounds import Rounds
from privsyn_flower.strategies.engine.session import Session

SUMMARY = "summary.json"
OWN_DATA = "data of the app"  # in the place of a data set, which only the app knows


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


def write_summary(
    session: Session, engine: Rounds, method: str, done: int, *, samples: int = 0
) -> None:
    """summary.json of a `start`, and the record that is made of it; inside `Session.begun`.

    method: as `privsyn run` names it. samples: synthetic texts. The seconds are those of rounds:
    what the app does beside them is not known here.
    """
    folder, statement, ledger = session.folder, session.statement, session.ledger
    seconds = round(sum(float(row.get("seconds", 0.0)) for row in folder.metrics()), 1)
    total = ledger.header.total_epsilon
    summary = {
        **code(),
        "method": method,
        "dataset": OWN_DATA,
        "users": session.terms.users,
        **claimed(statement),
        **of_rounds(folder, done, session.promise.main.rounds, engine.ended_early),
        "participations_per_user": min(done, statement.most_participations),
        "privacy_curve": session.promise.curve,
        "epsilon_ledger": ledger.spent_epsilon(delta=None if total else statement.delta),
        "epsilon_ledger_total": total,
        "synthetic_samples": samples,
        "wall_seconds": seconds,
        "stage_seconds": {"rounds": seconds},
    }
    write_record(folder.path, summary)
    write_json(folder.path / SUMMARY, summary)


def note_samples(folder: RunFolder, samples: int) -> None:
    """How many texts were written of what `write_summary` has told."""
    path = folder.path / SUMMARY
    summary = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**summary, "synthetic_samples": samples})
