"""A generator tried on public text, before anything is paid for that it is to write from.

A few prompts as the run will send them, read as the run will read them; and where the run trains
adapters, one that changes nothing, put on and taken off as a trained one will be. The randomness
has a purpose of its own: what is tried changes no text of the run.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from privsyn_flower.text.prompts import PromptSource, read_text
from privsyn_flower.text.protocols import AdaptableGenerator, Generator

logger = logging.getLogger("privsyn_flower")

FEW, MORE = 8, 24  # texts that are tried, and how many more where half of them are of no use
SHARE = 4  # of so many completions one must be usable: the expansion asks for no more
TRIAL = "trial"  # folder of the adapter that changes nothing


class UnusableTextsError(RuntimeError):
    """A generator wrote nothing that the run could use; the text names the keys to change."""


@runtime_checkable
class Untrained(Protocol):
    """A trainer that can say, before there is anything to train on, whether it could."""

    def untrained(self, target: Path) -> None:
        """Write the adapter of a training run of no steps to the folder `target`. Raises what a
        run would raise for its model, its device or its libraries."""


def try_prompts(
    source: PromptSource,
    generator: Generator,
    rng: np.random.Generator,
    *,
    min_words: int,
    max_words: int = 0,
    distinct: bool = True,
) -> None:
    """Completions of a source's prompts, read as `text.prompts.generate` reads them.

    distinct: one text for all prompts is of no use. Raises UnusableTextsError when none can be
    used, and what the generator raises.
    """
    try_texts(
        lambda count: [prompt.text for prompt in source.draw(count, rng)],
        lambda text, least: read_text(source, text, least, max_words) or "",
        generator,
        rng,
        min_words=min_words,
        distinct=distinct,
    )


def try_texts(
    prompts: Callable[[int], Sequence[str]],
    read: Callable[[str, int], str],
    generator: Generator,
    rng: np.random.Generator,
    *,
    min_words: int,
    key: str = "models.generator",
    learns: bool = False,
    distinct: bool = True,
) -> None:
    """FEW completions, and MORE where half of them are of no use.

    prompts: so many of them. read: completion, least words -> its text, "" where it is of no use.
    key: of the generator's name, for errors. learns: the run trains it before it writes, so that
    nothing but empty texts is a warning. Raises as `try_prompts`; a share that is too small for
    the expansion is a warning.
    """
    found, empty = list[str](), 0
    for count in (FEW, MORE):
        for (completion,) in generator.complete(list(prompts(count)), 1, rng):
            found.append(read(completion, min_words))
            empty += not read(completion, 1)
        if 2 * sum(map(bool, found)) >= len(found):
            break
    usable = [text for text in found if text]
    if not usable and not (learns and empty == len(found)):
        raise UnusableTextsError(
            f"none of {len(found)} texts that {key} wrote after public ones can be used: {empty} "
            f"are empty or degenerate, {len(found) - empty} have fewer than expand.min-words = "
            f"{min_words} words: lower expand.min-words, raise expand.max-tokens, or use another "
            f"{key}"
        )
    most, times = max(Counter(usable).items(), key=lambda one: one[1], default=("", 0))
    if distinct and times == len(usable) >= FEW:
        raise UnusableTextsError(
            f"{key} wrote the same text {times} times ({most[:60]!r}): does it sample? Raise "
            "expand.temperature, or see docs/generators.md of a server that takes the likeliest "
            "token"
        )
    if SHARE * len(usable) < len(found):
        logger.warning(
            "only %d of %d texts that %s wrote after public ones can be used (expand.min-words = "
            "%d): there may be fewer than expand.samples in the end", len(usable), len(found), key,
            min_words,
        )  # fmt: skip


def try_adapters(trainer: object, generator: AdaptableGenerator, folder: Path, prompt: str) -> None:
    """Put an adapter that changes nothing on the generator, let it write, and take it off.

    trainer: asked for the adapter if it is Untrained; another is not tried. folder: where the
    run's own adapters will be, which a server must be able to read. Raises what any of it raises.
    """
    if not isinstance(trainer, Untrained):
        return
    target = folder / TRIAL
    try:
        trainer.untrained(target)
        generator.use_adapter(target)
        generator.complete([prompt], 1, np.random.default_rng(0))
        generator.use_adapter(None)
    finally:
        shutil.rmtree(target, ignore_errors=True)
