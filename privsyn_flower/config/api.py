"""What a configuration key is called in somebody's own ServerApp.

Errors name the key to change, as the users of `privsyn run` know it. Whoever writes a ServerApp has
no such key, but the argument of a class or function: `api_words` puts that in its place.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Keys that are no field of a section's class there.
OWN = {
    "models.infiller": "MaskFill(model)",
    "models.embedder": "load_embedder(name)",
    "models.generator": "HuggingFaceGenerator(model)",
    "models.conditional": "CTCL(generator)",
    "models.downstream": "the model's folder",
    "models.device": "device",
    "data.users": "users",
    "data.public-pool": "the public texts",
    "data.public-path": "the public texts",
    "data.public-validation": "validation",
    "data.samples-per-user": "samples_cap",
    "data.label-column": "texts by class",
    "expand.samples": "samples",
    "run-folder": "folder",
}
_CONFIGURED: ContextVar[bool] = ContextVar("configured", default=False)


@contextmanager
def configured() -> Iterator[None]:
    """Inside, errors keep their keys: a configuration made the objects."""
    token = _CONFIGURED.set(True)
    try:
        yield
    finally:
        _CONFIGURED.reset(token)


@contextmanager
def api_words(owner: str = "", arguments: Collection[str] = ()) -> Iterator[None]:
    """An error inside names arguments in place of keys, unless there is a configuration.

    owner: the class or function that is called, and the names of its own arguments.
    """
    try:
        yield
    except Exception as error:
        if not _CONFIGURED.get() and error.args and isinstance(error.args[0], str):
            error.args = (in_api_words(error.args[0], owner, arguments), *error.args[1:])
        raise


def named_as_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """A constructor or function of the library, under `api_words`."""
    owner = function.__qualname__.removesuffix(".__init__")
    arguments = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def named(*positional: P.args, **keywords: P.kwargs) -> T:
        with api_words(owner, arguments):
            return function(*positional, **keywords)

    return named


def in_api_words(text: str, owner: str = "", arguments: Collection[str] = ()) -> str:
    """The text with every key as the argument it is: `popri.rejected-rank` as
    `PopriConfig(rejected_rank)`, `min-surviving-weight` as `min_surviving_weight`; as
    `MaskFill(mask_fraction)` where that is called and has such an argument."""

    def word(match: re.Match[str]) -> str:
        field = match[0].rpartition(".")[2].replace("-", "_")
        return f"{owner}({field})" if field in arguments else _words()[match[0]]

    return _pattern().sub(word, text)


@functools.cache
def _words() -> dict[str, str]:
    from privsyn_flower.config import AveragingConfig, RunConfig, Section  # a device has no need

    words: dict[str, str] = {}
    for name in RunConfig.model_fields:
        section, key = getattr(RunConfig(), name), name.replace("_", "-")
        if not isinstance(section, Section):
            words |= {key: name} if "-" in key else {}  # the others are words of English
            continue
        for field in type(section).model_fields:
            averaging = name == "training" and field in AveragingConfig.model_fields
            table = "AveragingConfig" if averaging else type(section).__name__
            words[f"{key}.{field.replace('_', '-')}"] = f"{table}({field})"
            words |= {field.replace("_", "-"): field} if "_" in field else {}
    for table, own in RunConfig().tables.items():
        words |= {
            f"{table.replace('_', '-')}.{field}": word for field, word in own.arguments.items()
        }
    return words | OWN


@functools.cache
def _pattern() -> re.Pattern[str]:
    longest_first = sorted(map(re.escape, _words()), key=len, reverse=True)
    return re.compile(rf"(?<![\w./-])(?:{'|'.join(longest_first)})(?![\w/-]|\.\w)")
