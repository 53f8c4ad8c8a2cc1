"""How a user's texts are trained on: numbers that travel with the question, checked by the node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

Optimizer = Literal["sgd", "adamw"]
Value = str | int | float

_PREFIX = "training."
_WHOLE = {  # lowest and highest value
    "epochs": (1, 1000),
    "batch_size": (1, 1 << 16),
    "max_steps": (1, 1 << 20),
    "sequence_length": (2, 2048),
    "seed": (0, (1 << 63) - 1),
}


@dataclass(frozen=True)
class LocalTraining:
    """One user's local training; PUBLIC. Raises ValueError for a value out of bounds.

    What the configuration's `[training]` has a default for has none here.

    momentum: of SGD; AdamW has its usual (0.9, 0.999) and 1e-8. weight_decay: decoupled under
    adamw, added to the gradient under sgd. epochs: passes over a user's texts, each in an order
    of its own. batch_size: texts of one step. max_steps: no more steps than this; without a limit
    a node's time would tell how much a user wrote. sequence_length: tokens of a text, the rest is
    cut. seed: of the order. trained: glob patterns with commas between, of the names of the arrays
    that are trained; the others that travel are laid over the base and stay as they are.
    """

    optimizer: Optimizer
    learning_rate: float
    momentum: float
    weight_decay: float
    epochs: int
    batch_size: int
    max_steps: int
    sequence_length: int
    seed: int = 0
    trained: str = "*"

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer):
            raise ValueError(
                f"training.optimizer = {self.optimizer!r} must be one of {get_args(Optimizer)}"
            )
        for name, (low, high) in _WHOLE.items():
            value = getattr(self, name)
            # A boolean is an int to Python, and no number to us.
            if type(value) is not int or not low <= value <= high:
                raise ValueError(
                    f"{_key(name)} = {value!r} must be a whole number from {low} to {high}"
                )
        for name, most in (("learning_rate", 1e6), ("weight_decay", 1e6), ("momentum", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{_key(name)} = {value!r} is not a number")
            if not 0 <= value < most or not math.isfinite(value):
                raise ValueError(f"{_key(name)} = {value} must be at least 0 and below {most:g}")
        if self.learning_rate == 0:
            raise ValueError("training.learning-rate = 0 must be above 0")
        if self.optimizer == "adamw" and self.momentum:
            raise ValueError(
                f"training.momentum = {self.momentum} has no use under training.optimizer = "
                '"adamw": set it to 0'
            )
        if not isinstance(self.trained, str) or not self.trained.strip(" ,"):
            raise ValueError(f"training.trained = {self.trained!r} must name the trained arrays")

    def to_options(self) -> dict[str, Value]:
        """The fields as a query's options, `training.learning-rate` and so on."""
        return {_key(field.name): getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_options(cls, options: Mapping[str, Value]) -> LocalTraining:
        """The fields among a query's options. Raises ValueError: missing, unknown, out of bounds.

        Every field must be there, so that no two sides differ in a default.
        """
        known = {_key(field.name): field.name for field in fields(cls)}
        given = {key: value for key, value in options.items() if key.startswith(_PREFIX)}
        odd = sorted(set(known) ^ set(given))
        if odd:
            raise ValueError(f"options {odd} are missing or not known; known: {sorted(known)}")
        return cls(**{known[key]: value for key, value in given.items()})  # type: ignore[arg-type]


def _key(name: str) -> str:
    return _PREFIX + name.replace("_", "-")
