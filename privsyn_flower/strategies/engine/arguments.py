"""The arguments of a strategy's constructor and of `start`, as one wrote them: what a second start
in the same folder differs in, and what an error names in place of a configuration key.

Those that are keys of the configuration have its types and bounds here, too. The error of a `start`
is the last line, below Flower's exit code and help page.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from flwr.app import ArrayRecord
from pydantic import BaseModel, TypeAdapter, ValidationError

from privsyn_flower.config.api import api_words
from privsyn_flower.config.common import CommonConfig
from privsyn_flower.config.data import DataConfig
from privsyn_flower.config.section import Section
from privsyn_flower.privacy.accounting.sampling import Sampler

# Another grid, folder or listener makes no other run.
_ASIDE = {"self", "grid", "folder", "progress", "callbacks", "evaluate_fn"}

# Arguments that have the type and the bounds of a key, and that key where it has another name.
_KEYS = {
    name: name
    for name in (
        "epsilon", "delta", "users", "nodes", "rounds", "spare_rounds", "min_surviving_weight",
        "colluding_weight", "node_keys", "population_name", "ledger_epsilon", "round_timeout",
        "stage_timeout", "node_timeout",
    )
} | {"num_rounds": "rounds", "timeout": "round_timeout"}  # fmt: skip
# Others: their type, and the words for it.
_TYPES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("folder", "ledger", "noise_keys"), (str | PathLike, "a path")),
    **dict.fromkeys(("train_config", "evaluate_config"), (Mapping | None, "a ConfigRecord")),
    "initial_arrays": (ArrayRecord, "an ArrayRecord"),
    "evaluate_fn": (Callable | None, "a function"),
    "sampler": (Sampler, "a Sampler, as in Sampler('poisson', 0.1)"),
    "metrics": (Mapping, "names with bounds, as in {'accuracy': (0, 1)}"),
    "confidence": (float, "a number between 0 and 1"),
}


def check_arguments(**values: Any) -> None:
    """Raises ValueError naming each argument that may not have its value, the value and its bound.
    Names that are in neither table are left alone."""
    wrong = []
    for name, value in values.items():
        kind, words = _TYPES.get(name, (object, ""))
        if not isinstance(value, kind):
            wrong.append(f"{name} = {reprlib.repr(value)} must be {words}")
        if name in _KEYS:
            try:
                _bounded(_KEYS[name]).validate_python(value)
            except ValidationError as error:
                wrong.append(f"{name} = {reprlib.repr(value)}: {error.errors()[0]['msg']}")
    if wrong:
        raise ValueError("; ".join(wrong))


@functools.cache
def _bounded(key: str) -> TypeAdapter[Any]:
    fields = DataConfig.model_fields if key == "users" else CommonConfig.model_fields
    return TypeAdapter(fields[key].rebuild_annotation(), config=Section.model_config)


class Arguments:
    """A base class that notes the arguments of its subclasses' `__init__` and `start`.

    arguments: name, with the part of an object behind a dot -> value in words; texts as a digest.
    """

    arguments: dict[str, str]

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name in {"__init__", "start"} & cls.__dict__.keys():
            setattr(cls, name, _noting(cls.__dict__[name]))


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    first = function.__name__ == "__init__"
    # A constructor that hands the rest of its arguments on: its base's names them.
    adds = first and any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    @functools.wraps(function)
    def noting(self: Any, *positional: Any, **named: Any) -> Any:
        known: dict[str, str] = getattr(self, "arguments", {})
        given = _bound(signature, (self, *positional), named)
        if (
            given and not adds and not (first and known)
        ):  # a subclass' arguments say what it gives its base
            self.arguments = known | given
        with api_words():
            result = function(self, *positional, **named)
        if adds:
            self.arguments = getattr(self, "arguments", {}) | given
        return result

    return noting


def _bound(signature: inspect.Signature, given: Sequence[Any], named: Any) -> dict[str, str]:
    try:
        bound = signature.bind(*given, **named)
    except TypeError:  # the call itself says it better
        return {}
    bound.apply_defaults()
    kinds = {parameter.name: parameter.kind for parameter in signature.parameters.values()}
    found: dict[str, str] = {}
    for name, value in bound.arguments.items():
        if name not in _ASIDE and kinds[name] is not inspect.Parameter.VAR_KEYWORD:
            found |= described(name, value)
    return found


def described(name: str, value: Any) -> dict[str, str]:
    """A value, or the parts of an object, in words; a function has none."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if value is None or isinstance(value, bool | int | float | str | Path):
        return {name: repr(str(value) if isinstance(value, Path) else value)}
    if isinstance(value, Mapping):
        parts = [described(f"{name}.{key}", part) for key, part in value.items()]
        return {key: word for part in parts for key, word in part.items()}
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        digest = hashlib.sha256("\0".join(value).encode("utf-8", "replace")).hexdigest()
        return {name: f"{len(value)} texts ({digest[:12]})"}
    if inspect.isroutine(value):
        return {}
    inside = {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}
    simple = {
        f"{name}.{key}": repr(part)
        for key, part in inside.items()
        if part is None or isinstance(part, bool | int | float | str)
    }
    return {name: type(value).__name__, **simple}


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The arguments that both starts have and that differ, in words."""
    return [
        f"{name} = {now[name]} was {before[name]}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name]
    ]


def log_settings(strategy: object, settings: Mapping[str, Any]) -> None:
    """A strategy's settings in Flower's log, as Flower's strategies have theirs."""
    _FLOWER.info("\t├──> %s settings:", type(strategy).__name__)
    for name, value in settings.items():
        _FLOWER.info("\t│\t├── %s: %s", name, value)
    _FLOWER.info("\t└──> Aggregation: sums over nodes")


P = ParamSpec("P")
T = TypeVar("T")

PREFIX = "privsyn: "  # what such a line begins with
_FLOWER = logging.getLogger("flwr")


class _AfterExitCode(logging.Handler):
    """Prints the reason behind Flower's "Exit Code: ...", once."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def emit(self, record: logging.LogRecord) -> None:
        """Nothing for any other line of Flower's."""
        if record.getMessage().startswith("Exit Code"):
            _FLOWER.removeHandler(self)
            print(f"{PREFIX}{self.reason}", file=sys.stderr, flush=True)


def print_last(reason: str) -> None:
    """Print this behind what Flower prints when a ServerApp fails. A later one takes its place."""
    for handler in list(_FLOWER.handlers):
        if isinstance(handler, _AfterExitCode):
            _FLOWER.removeHandler(handler)
    _FLOWER.addHandler(_AfterExitCode(" | ".join(reason.splitlines())))


def log_failure_reason(start: Callable[P, T]) -> Callable[P, T]:
    """A strategy's `start`, whose error is printed last. Raises TypeError naming all arguments
    that are missing."""
    required = [
        name
        for name, parameter in inspect.signature(start).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]

    @functools.wraps(start)
    def started(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            missing = [name for name in required if name not in named]
            if missing:
                raise TypeError(
                    f"start lacks {', '.join(missing)}: a private run needs more than Flower's "
                    "own start (docs/dropin.md)"
                )
            with api_words():
                return start(*arguments, **named)
        except Exception as error:
            print_last(f"{type(error).__name__}: {error}")
            raise

    return started
