"""What a run promised when it began: its noise is made for that, and its statement says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from privsyn_flower.privacy.sentence import PrivacyStatement
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import Mechanism

PROMISED = "promised"  # name of the value in the run folder


def promise_of(
    statement: PrivacyStatement, plan: RoundPlan, mechanism: Mechanism, population_name: str
) -> dict[str, Any]:
    """What must not change while a run of any method lasts, as JSON has it."""
    promised = asdict(statement)
    del promised["simulated"]  # known when the nodes have answered
    del promised["data"]  # a word of the sentence
    promised |= {"users": plan.users, "cohort_nodes": plan.cohort_nodes}
    return promised | {"population_name": population_name, "noise": mechanism.promise}


def check_promise(run: RunFolder, promised: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the values, unless the run was begun with the same ones."""
    stored = run.load_value(PROMISED) or promised
    changed = [
        f"{key} = {promised.get(key)!r} was {stored.get(key)!r}"
        for key in sorted({*promised, *stored})
        if promised.get(key) != stored.get(key)
    ]
    if changed:
        raise ValueError(
            f"{run.path} was begun with other values: {', '.join(changed)}; its noise is made for "
            "those: restore them, or choose another folder"
        )
