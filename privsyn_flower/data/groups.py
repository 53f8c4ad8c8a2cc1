"""Groups of samples, and what the loader of a source is given and makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
