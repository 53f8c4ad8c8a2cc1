"""Groups of samples, what the loader of a source is given and makes, and texts of any length as
samples: long ones are cut, short ones joined, and what is lost counted.

Every function here looks at one user's texts, or at one public group's, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from privsyn_flower.common.units import pieces, units
from privsyn_flower.config import DataConfig

from .findings import LeftOut
from .users import Sample, Tell

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Group:
    """Samples that belong together: a user's, or a public module's or author's."""

    name: str
    samples: tuple[Sample, ...]
    minority: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """private: candidates for users (PRIVATE), those of a file read from the disk one by one;
    public: candidates for the public text. left_out, public_left_out: what became neither."""

    private: Sequence[Group]
    public: list[Group]
    origin: dict[str, str] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    public_left_out: LeftOut = field(default_factory=LeftOut)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source is read with. progress: gets public notes, which a run folder keeps. tell: what
    was skipped or joined of private text, for who reads it anyway. scratch: an empty private folder
    for the users' text, which is read from there while the source is in use."""

    cache: Path
    progress: Progress
    tell: Tell | None
    scratch: Path


LONGEST_WORD = 16  # characters of a sample's words, on average; longer ones are data, not text
REST = "the rest of a text, below a quarter of data.sample-words"
DATA = f"a sample whose words have more than {LONGEST_WORD} characters on average"


def cut(samples: Sequence[Sample], config: DataConfig, left_out: LeftOut) -> tuple[Sample, ...]:
    """The samples as they are, or cut into consecutive ones of `data.sample-words` words.

    POPri, section 4: samples are successive spans of a speech or an abstract, which is a user.
    """
    if not config.chunk:
        return tuple(samples)
    return tuple(
        replace(sample, text=piece)
        for sample in samples
        for piece in chunk(sample.text, config.sample_words, left_out, short=True)
    )


def chunk(
    text: str, size: int, left_out: LeftOut | None = None, *, short: bool = False
) -> list[str]:
    """Cut a text into samples of `size` units (`privsyn_flower.common.units`).

    Not taken, and counted in left_out: a rest below a quarter of that, which a whole text is not
    where short ones are wanted, and a sample that is data by the length of its words.
    """
    found: list[str] = []
    every = pieces(text, size)
    for piece in every:
        count = len(units(piece)) if piece is every[-1] else size
        if len(piece) - piece.count(" ") > LONGEST_WORD * count:
            cause = DATA
        elif 4 * count < size and not (short and len(every) == 1):
            cause = REST
        else:
            found.append(piece)
            continue
        if left_out is not None:
            left_out[cause] += 1
    return found


def join_short(texts: Iterable[str], least: int) -> list[str]:
    """One person's consecutive texts, a short one joined with those after it until they have
    `least` units; a short rest at the end goes to the text before it, and is nothing without one.
    """
    found, waiting, count = list[str](), list[str](), 0
    for text in texts:
        waiting.append(text)
        count += len(units(text))
        if count >= least:
            found.append(" ".join(waiting))
            waiting, count = [], 0
    if count and found:
        found[-1] = " ".join([found[-1], *waiting])
    return found
