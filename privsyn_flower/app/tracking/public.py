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
ROUND = {  # of a round
    "epsilon_so_far": "charged for all releases so far; the guarantee is the run's epsilon",
    "noise_std": "standard deviation of the noise in the released sum",
    "guaranteed_noise_std": "the part of it that the guarantee rests on",
    "excess": "of the release's norm over that of noise alone",
    "excess_degrees": "coordinates that `excess` was measured by",
    "attempt": "of the round, 1 when the first one was released",
    "nodes_asked": "in this attempt",
    "nodes_answered": "in this attempt",
    "surviving_weight": "declared users whose nodes answered",
    "bytes_down_per_node": "of the question",
    "bytes_up_per_node": "of the largest answer",
    "exchange_seconds": "from the question to the sum",
    "seconds": "of the whole round",
    "candidates": "numbers in the released sum",
    "candidates_alive": "with more noisy votes than the threshold",
    "survivors": "distinct candidates kept",
    "seeds": "survivors of all rounds",
    "released_votes": "sum of all noisy votes",
    "threshold_votes": "H in votes",
    "prompts_asked": "POPri: with responses",
    "responses_asked": "POPri: sent to the nodes",
    "pairs": "POPri: preference pairs",
    "pairs_identical": "POPri: left out",
    "pairs_unusable": "POPri: left out",
    "pairs_shortened": "POPri: cut to the model's length",
    "score_std": "POPri: of the noisy scores",
    "signal_to_noise": "POPri: variance of the scores beyond the noise's, over it",
    "signal_to_noise_within": "POPri: the same within prompts, where the ranking happens",
    "preference_margin": "POPri: chosen against rejected, in standard deviations of the noise",
    "frechet_public": "POPri: distance of the responses to public text",
    "prompts_taught": "DP-RFT: with completions of different reward",
    "training_loss": "POPri: of the fine-tuning",
    "training_loss_first": "POPri: of the fine-tuning, at its first step",
    "training_loss_last": "POPri: of the fine-tuning, at its last step",
    "training_reward_accuracy": "POPri: pairs won by the chosen response",
    "training_reward_accuracy_first": "POPri: pairs won by the chosen response, at its first step",
    "training_reward_accuracy_last": "POPri: pairs won by the chosen response, at its last step",
    "training_reward_margin": "POPri: between their rewards",
    "training_reward_margin_first": "POPri: between their rewards, at its first step",
    "training_reward_margin_last": "POPri: between their rewards, at its last step",
    "training_kl": "POPri: of the trained model from its start",
    "training_kl_first": "POPri: of the trained model from its start, at its first step",
    "training_kl_last": "POPri: of the trained model from its start, at its last step",
    "training_clipped": "DP-RFT: tokens whose ratio did not count",
    "training_clipped_first": "DP-RFT: tokens whose ratio did not count, at its first step",
    "training_clipped_last": "DP-RFT: tokens whose ratio did not count, at its last step",
    "update_norm": "of the noisy mean update",
    "noise_norm_expected": "of a mean update of noise alone",
    "clip_norm": "bound of one user's update",
    "step_norm": "of the server's step",
    "fraction_within": "users within the bound, noisy",
}
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
