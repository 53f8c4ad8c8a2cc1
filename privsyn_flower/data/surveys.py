"""What is in a file of users, for the person who owns it: counts, sizes, oddities, a start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privsyn_flower.config import DataConfig, toml_value
from privsyn_flower.units import units

from .dedup import keep_own
from .findings import Kind, LeftOut, Tally
from .partition import BEYOND, NEAR
from .reading import column_names
from .users import Columns, examine

SECURE_NODES = 3  # fewest nodes of secure aggregation
SIZES = ("texts_per_user", "words", "characters")


@dataclass(frozen=True, slots=True)
class Survey:
    """Of a file, all of it PRIVATE. texts_per_user, words and characters (per text): smallest,
    median, largest; empty without any text. left_out: texts that a
    run with the default keys of `[data]` takes for no sample."""

    path: Path
    columns: Columns
    present: list[str]
    rows: int
    users: int
    without_text: int
    texts: int
    texts_per_user: list[int]
    words: list[int]
    characters: list[int]
    kinds: list[Kind]
    left_out: LeftOut

    @property
    def findings(self) -> int:
        """How many there are, of all kinds."""
        return sum(kind.count for kind in self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("present", "rows", "users", "without_text", "texts")
        found: dict[str, Any] = {"file": str(self.path)} | {n: getattr(self, n) for n in names}
        for name in SIZES:
            found[name] = dict(zip(("least", "median", "most"), getattr(self, name), strict=False))
        kinds = [
            {"problem": k.problem, "advice": k.advice, "count": k.count, "first_lines": k.lines}
            for k in self.kinds
        ]
        return found | {"findings": self.findings, "kinds": kinds, "left_out": self.left_out}

    def described(self) -> str:
        """Lines for a terminal."""
        lines = [f"{self.path}:{k.lines[0]}: {k}; {k.advice}" for k in self.kinds]
        lines += [f"{self.findings:,} findings", f"columns: {', '.join(self.present) or 'none'}"]
        lines.append(f"users: {self.users:,}, {self.without_text:,} of them without text")
        lines.append(f"rows: {self.rows:,}, texts: {self.texts:,}")
        for name in SIZES if self.texts else ():
            least, median, most = getattr(self, name)
            label = name.replace("_", " ") if name == "texts_per_user" else f"{name} of a text"
            lines.append(f"{label}: {least:,} to {most:,}, half of them up to {median:,}")
        if self.left_out.total():
            lines.append(self.left_out.told("a run with the default keys"))
        return "\n".join(lines)

    def starter(self) -> str:
        """A configuration to begin with, TOML; empty where there are too few users."""
        if self.users < SECURE_NODES or not self.texts:
            return ""
        columns, usual = self.columns, DataConfig()
        named = {
            f"{name}-column": getattr(columns, name)
            for name in ("user", "text", "label", "date")
            if getattr(columns, name) != getattr(usual, f"{name}_column")
        }
        lines = [
            'method = "pretext"',
            "epsilon = 7.58",
            f"delta = {10.0 ** -(len(str(self.users)) + 1):g}  # below 1 / users",
            f"nodes = {min(8, self.users)}",
            "",
            "[data]",
            'source = "files"',
            f"path = {toml_value(str(self.path.absolute()))}",
            'public-path = "public.jsonl"  # name it: text of the same kind that is public',
            *(f"{key} = {toml_value(column)}" for key, column in named.items()),
            f"users = {self.users}",
            f"samples-per-user = {usual.samples_per_user}  # chosen by these users' sizes it would",
            f"sample-words = {usual.sample_words}  # be tuned on private text; so would this",
            "held-out-users = 0",
            "development-users = 0",
            "public-pool = 4000  # texts that the public file must hold, 512 more besides",
            "",
            "[pretext]",
            'variation = "retrieval"',
        ]
        return "\n".join(lines)


def survey(path: str | Path, columns: Columns) -> Survey:
    """Read the whole file. Raises OSError where that fails, DataError for an unknown format."""
    where, tally = Path(path), Tally()
    present = column_names(where)
    users, rows = examine(where, columns, tally.report)
    kinds = tally.kinds
    whole = [kind for kind in kinds if 0 in kind.lines]
    if whole:  # a column that is missing is one finding, not one for each row
        kinds = whole
    texts = [sample.text for own in users.values() for sample in own]
    left_out, most = LeftOut(), DataConfig().samples_per_user
    for own in users.values():
        kept = len(keep_own([sample.text for sample in own]))
        left_out[NEAR] += len(own) - kept
        left_out[f"{BEYOND} = {most}"] += max(0, kept - most)
    return Survey(
        path=where,
        columns=columns,
        present=present,
        rows=rows,
        users=len(users),
        without_text=sum(not own for own in users.values()),
        texts=len(texts),
        texts_per_user=_range([len(own) for own in users.values()]),
        words=_range([len(units(text)) for text in texts]),
        characters=_range([len(text) for text in texts]),
        kinds=kinds,
        left_out=left_out,
    )


def _range(values: Sequence[int]) -> list[int]:
    """Least, median and most."""
    ordered = sorted(values)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else []
