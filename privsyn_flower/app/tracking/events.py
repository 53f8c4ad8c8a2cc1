"""What a tracker is told of a run: public numbers, checked by type at this border.

Everything here may leave the machine for a service of somebody else's. So an event takes numbers
under the names listed below, a few words about the promise, and nothing else: no text, no array, no
list by node or user, and no figure of a benchmark, which epsilon does not cover.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Number = bool | int | float
Value = Number | str

LONGEST = 2000  # characters of a statement; the short sentence about the promise has the most

WORDS = {  # of `RunStarted.facts`, the only ones that are text
    "version": "of privsyn-flower",
    "method": "the method, or the strategy's class",
    "unit": "whom epsilon protects",
    "adjacency": "what two neighbouring inputs differ in",
    "accountant": "how epsilon was computed",
    "threat_model": "against whom it holds",
    "privacy_short": "the guarantee as a sentence",
}
FACTS = {  # of `RunStarted.facts`, numbers
    "users": "declared",
    "nodes": "waited for",
    "rounds_planned": "of the method",
    "epsilon": "that the run may spend",
    "delta": "of the same guarantee",
    "noise_multiplier": "standard deviation of the noise / bound",
    "rho_zcdp": "the guarantee in zCDP, where it has one",
}
ROUND = {  # of `RoundReleased.values`
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
    "update_norm": "of the noisy mean update",
    "noise_norm_expected": "of a mean update of noise alone",
    "clip_norm": "bound of one user's update",
    "step_norm": "of the server's step",
    "fraction_within": "users within the bound, noisy",
}
ENDED = {  # of `Ended.figures`
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
RUN = re.compile(r"[0-9a-f]{8,64}")

Status = Literal["finished", "ended early", "failed", "stopped"]


class NotPublic(TypeError):
    """Something else than a listed number was to be told to a tracker."""


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or goes on after `released` rounds.

    run: drawn once for a run and kept by its folder, so that a tracker goes on with what it has.
    name: the folder's. facts: of FACTS and WORDS. settings: of the configuration, those that are
    numbers, booleans or one of a few words; no path, prompt or name of a model.
    """

    run: str
    name: str
    facts: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    released: int = 0

    def __post_init__(self) -> None:
        """Raises NotPublic."""
        _word("run", self.run, RUN)
        _line("name", self.name)
        _count("released", self.released)
        for key, value in _mapping("facts", self.facts).items():
            if key in WORDS:
                _line(key, value)
            else:
                _listed(key, FACTS)
                _number(key, value)
        for key, value in _mapping("settings", self.settings).items():
            _word("a setting's key", key, KEY)
            if isinstance(value, str):
                _word(key, value, CHOICE)
            else:
                _number(key, value)


@dataclass(frozen=True)
class RoundReleased:
    """A noisy sum was released, and learned from.

    phase: "rounds", or the question beside them. round: of it, from 1. values: of ROUND, and
    figures of evaluations ("evaluation.NAME", "evaluate.NAME").
    """

    phase: str
    round: int
    values: Mapping[str, Number]

    def __post_init__(self) -> None:
        """Raises NotPublic."""
        _word("phase", self.phase, STAGE)
        _count("round", self.round)
        for key, value in _mapping("values", self.values).items():
            if not EVALUATIONS.fullmatch(key):
                _listed(key, ROUND)
            _number(key, value)

    @classmethod
    def of(cls, phase: str, row: Mapping[str, Any]) -> RoundReleased:
        """What may be told of a row of metrics.jsonl."""
        found = {
            key: value
            for key, value in row.items()
            if (key in ROUND or EVALUATIONS.fullmatch(key)) and _is_number(value)
        }
        return cls(phase, int(row["round"]), found)


@dataclass(frozen=True)
class Stage:
    """A stage is over. round: released so far. seconds: of it, over all starts of the run."""

    name: str
    seconds: float
    round: int = 0

    def __post_init__(self) -> None:
        """Raises NotPublic."""
        _word("name", self.name, STAGE)
        _number("seconds", self.seconds)
        _count("round", self.round)


@dataclass(frozen=True)
class Ended:
    """A start of the run is over. figures: of ENDED; of a run without a result, none.

    privacy_short: the guarantee as it reads with the result, where it is known that nodes were
    simulated; "" without one.
    """

    status: Status
    round: int = 0
    figures: Mapping[str, Number] = field(default_factory=dict)
    privacy_short: str = ""

    def __post_init__(self) -> None:
        """Raises NotPublic."""
        if self.status not in get_args(Status):
            raise NotPublic(f"status = {self.status!r}: one of {', '.join(get_args(Status))}")
        _count("round", self.round)
        if self.privacy_short != "":
            _line("privacy_short", self.privacy_short)
        for key, value in _mapping("figures", self.figures).items():
            _listed(key, ENDED)
            _number(key, value)

    @classmethod
    def of(cls, status: Status, done: int, found: Mapping[str, Any]) -> Ended:
        """What may be told of a summary."""
        return cls(status, done, picked(found, ENDED), found.get("privacy_short", ""))


Event = RunStarted | RoundReleased | Stage | Ended


def picked(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Number]:
    """The numbers of these names that `values` has."""
    return {key: values[key] for key in names if key in values and _is_number(values[key])}


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)


def _number(name: str, value: object) -> None:
    if not _is_number(value):
        raise NotPublic(f"{name} is {_kind(value)}: a tracker is told finite numbers")


def _count(name: str, value: object) -> None:
    if type(value) is not int or value < 0:
        raise NotPublic(f"{name} is {_kind(value)}: it must be a count")


def _listed(name: object, names: Mapping[str, str]) -> None:
    if name not in names:
        raise NotPublic(f"{name!r} is not among the public numbers: {', '.join(names)}")


def _line(name: str, value: object) -> None:
    if not (isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST):
        raise NotPublic(f"{name} is {_kind(value)}: it must be one line of text")


def _word(name: str, value: object, form: re.Pattern[str]) -> None:
    if not (isinstance(value, str) and form.fullmatch(value)):
        raise NotPublic(f"{name} is {_kind(value)}: it must be of the form {form.pattern}")


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise NotPublic(f"{name} is {_kind(value)}: it must be names and numbers")
    return value


def _kind(value: object) -> str:
    """Its type alone: the value may be what must not be told."""
    return f"a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")
