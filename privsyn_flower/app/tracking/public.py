"""What a tracker may be told of a run: public numbers under listed names, checked by type.

Everything here may leave the machine for a service of somebody else's. So only finite numbers under
the names below pass, the privacy plan in brief, and nothing else: no text, no array, no list by
node or user, and no figure of a benchmark, which epsilon does not cover.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

Number = bool | int | float
Value = Number | str

LONGEST = 2000  # characters of a statement; the short sentence about the privacy plan has the most

WORDS = {  # of a run that begins, the only ones that are text
    "version": "of privsyn-flower",
    "method": "the method, or the strategy's class",
    "unit": "whom epsilon protects",
    "adjacency": "what two neighbouring inputs differ in",
    "accountant": "how epsilon was computed",
    "threat_model": "against whom it holds",
    "privacy_short": "the guarantee as a sentence",
}
FACTS = {  # of a run that begins, numbers
    "users": "declared",
    "nodes": "waited for",
    "rounds_planned": "of the method",
    "epsilon": "that the run may spend",
    "delta": "of the same guarantee",
    "noise_multiplier": "standard deviation of the noise / bound",
    "rho_zcdp": "the guarantee in zCDP, where it has one",
}
TRAINING = ("loss", "reward_accuracy", "reward_margin", "kl", "clipped")
ROUND = (  # of a round; what each means: docs/run-folder.md#metrics
    "epsilon_so_far", "noise_std", "guaranteed_noise_std", "excess", "excess_degrees", "attempt",
    "nodes_asked", "nodes_answered", "surviving_weight", "bytes_down_per_node",
    "bytes_up_per_node", "exchange_seconds", "seconds", "candidates",
    # PrE-Text, PE
    "candidates_alive", "survivors", "seeds", "released_votes", "threshold_votes",
    # POPri, DP-RFT
    "prompts_asked", "responses_asked", "pairs", "pairs_identical", "pairs_unusable",
    "pairs_shortened", "score_std", "signal_to_noise", "signal_to_noise_within",
    "preference_margin", "frechet_public", "prompts_taught",
    *(f"training_{name}{step}" for name in TRAINING for step in ("", "_first", "_last")),
    # training
    "update_norm", "noise_norm_expected", "clip_norm", "step_norm", "fraction_within",
)  # fmt: skip
ENDED = {  # of a result
    "rounds": "released and learned from",
    "epsilon_ledger": "charged on the run's ledger",
    "epsilon_ledger_total": "that the ledger may give out",
    "spent": "charged for this run",
    "synthetic_samples": "texts written",
    "parameters": "trained",
    "bytes_up_all_nodes": "of all answers",
    "bytes_down_all_nodes": "of all questions",
    "wall_seconds": "of all stages",
}
# Figures of a paid evaluation on the nodes, and of an app's own on public data: by metric's name.
EVALUATIONS = re.compile(r"evaluat(?:ion|e)\.[A-Za-z0-9_.\- ]{1,80}")
KEY = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")  # of the configuration
CHOICE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")  # a value that is one of a few words
STAGE = re.compile(r"[a-z0-9][a-z0-9_ -]{0,59}")


def public_facts(facts: Mapping[str, Any]) -> dict[str, Value]:
    """The listed numbers and words of a run that begins."""
    words = {key: facts[key] for key in WORDS if is_line(facts.get(key))}
    return numbers(facts, FACTS) | words


def public_settings(settings: Mapping[str, Any]) -> dict[str, Value]:
    """Keys of the configuration whose value is a number, a switch or one of a few words."""
    return {
        key: value
        for key, value in settings.items()
        if KEY.fullmatch(key)
        and (is_number(value) or (isinstance(value, str) and CHOICE.fullmatch(value)))
    }


def public_row(row: Mapping[str, Any]) -> dict[str, Number]:
    """The listed numbers of a row of metrics.jsonl, and figures of evaluations."""
    return numbers(row, ROUND) | {
        key: value for key, value in row.items() if EVALUATIONS.fullmatch(key) and is_number(value)
    }


def public_stage(name: str, seconds: float) -> dict[str, Number]:
    """A stage that is over, and its seconds over all starts."""
    return {name: seconds} if STAGE.fullmatch(name) and is_number(seconds) else {}


def public_result(summary: Mapping[str, Any]) -> dict[str, Number]:
    """The listed numbers of a summary."""
    return numbers(summary, ENDED)


def numbers(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Number]:
    """Those of `values` with these names that are finite numbers of Python's own types."""
    listed = {key: values[key] for key in names if key in values and is_number(values[key])}
    return {k: float(v) if isinstance(v, float) else v for k, v in listed.items()}


def is_number(value: object) -> bool:
    """A number or a switch, NumPy's float64 among them, and finite."""
    return isinstance(value, bool | int | float) and math.isfinite(value)


def is_line(value: object) -> bool:
    """One line of text that is not too long."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST
