"""What is in a file of users, for the person who owns it: counts, sizes, oddities, a start.

All figures are exact, so they are as PRIVATE as the text that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.units import units
from privsyn_flower.config import DataConfig, toml_value

from .dedup import keep_own
from .findings import Kind, LeftOut, Tally
from .partition import BEYOND, NEAR
from .reading import column_names, form_of, read_rows
from .text_files import read_place
from .users import RowCollector, Sample, SampleStore, examine
from .values import Columns

SECURE_NODES = 3  # fewest nodes of secure aggregation
SIZES = ("texts_per_user", "words", "characters")


@dataclass(frozen=True, slots=True)
class Survey:
    """Of a file, all of it PRIVATE.

    texts_per_user, words and characters (per text): smallest, median, largest; empty without any
    text. refused: why no run takes the file, empty if one does. form: what is unusual about how
    it is written. longer: texts with more tokens than the embedder reads, and that bound; None:
    not known here. dates: the first and the last, as they are read. left_out: texts that a run
    with the default keys of `[data]` takes for no sample.
    """

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
    refused: str
    form: str
    longer: tuple[int, int] | None
    dates: list[str]
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
        found |= {
            "findings": self.findings,
            "kinds": kinds,
            "refused": self.refused,
            "form": self.form,
            "left_out": self.left_out,
            "dates": self.dates,
        }
        if self.longer is not None:
            found |= dict(zip(("longer_than_read", "tokens_read"), self.longer, strict=True))
        return found

    def described(self) -> str:
        """Lines for a terminal."""
        lines = [
            f"{self.path}:{k.lines[0]}: {k}; {k.advice}"
            if k.lines[0]
            else f"{self.path}: {k.problem}; {k.advice}"
            for k in self.kinds
        ]
        lines += [f"{self.findings:,} finding{'s' * (self.findings != 1)}"]
        lines += [f"columns: {', '.join(self.present) or 'none'}"]
        lines.append(f"users: {self.users:,}, {self.without_text:,} of them without text")
        lines += [f"read so: {self.form}"] * bool(self.form)
        lines.append(f"rows: {self.rows:,}, texts: {self.texts:,}")
        for name in SIZES if self.texts else ():
            least, median, most = getattr(self, name)
            label = name.replace("_", " ") if name == "texts_per_user" else f"{name} of a text"
            lines.append(f"{label}: {least:,} to {most:,}, half of them up to {median:,}")
        if self.dates:
            lines.append("dates: {} to {}".format(*self.dates))
        if self.left_out.total():
            lines.append(self.left_out.summary("a run with the default keys"))
        if self.longer is not None and self.longer[0]:
            lines.append("texts that the embedder reads the beginning of only: {:,}, of more than "
                         "{:,} tokens".format(*self.longer))  # fmt: skip
        return "\n".join(lines)

    def starter(self) -> str:
        """A configuration to begin with, TOML; empty where there are too few users."""
        if self.users < SECURE_NODES or self.refused:
            return ""
        columns, usual = self.columns, DataConfig()
        about = {
            "user": "holds whose text it is" if columns.user else "every row is a user of its own",
            "text": "holds the text",
            "label": "holds the class of a text",
            "date": "holds the date of a text",
        }
        named = [
            f"{name}-column = {toml_value(getattr(columns, name))}  # {meaning}"
            for name, meaning in about.items()
            if getattr(columns, name) != getattr(usual, f"{name}_column")
        ]
        lines = [
            'method = "pretext"  # users vote on public text, round by round',
            "epsilon = 7.58  # what all rounds together may tell about one user",
            f"delta = {10.0 ** -(len(str(self.users)) + 1):g}  # must be below 1 / users",
            f"nodes = {min(8, self.users)}  # simulated devices, which the users are dealt to",
            "",
            "[data]",
            'source = "files"  # the text is in files',
            f"path = {toml_value(str(self.path.absolute()))}  # the users' text",
            'public-path = "public.jsonl"  # name it: text of the same kind that is public',
            *named,
            f"users = {self.users}  # all users of the file; their number is public",
            f"samples-per-user = {usual.samples_per_user}  # texts of one user that count; not to "
            "be chosen by looking at the texts, or it would tell of them",
            f"sample-words = {usual.sample_words}  # words of a generated text; not to be "
            "chosen by looking at the texts either",
            "held-out-users = 0  # nobody is kept apart for a test",
            "development-users = 0  # nobody is kept apart for tuning",
            "public-pool = 4000  # public texts to vote on, which the public file must have",
            f"public-validation = {usual.public_validation}  # public texts that it must have "
            "besides",
            "",
            "[pretext]",
            'variation = "retrieval"  # what was voted for is replaced by public text like it',
        ]
        return "\n".join(lines)


def survey(
    path: str | Path,
    columns: Columns,
    longer: Callable[[list[str]], tuple[int, int] | None] = lambda _: None,
) -> Survey:
    """Read the whole file. longer: how many of its texts an embedder reads in part, and its bound.

    Raises OSError where reading fails, DataError for a file of no known format.
    """
    where, tally = Path(path), Tally()
    present = column_names(where)
    held, read = examine(where, columns, tally.report)
    users, kinds = held.users, tally.kinds
    whole = [kind for kind in kinds if 0 in kind.lines]
    if whole and present:  # a column that is missing is one finding, not one for each row
        kinds = whole
    dates = sorted(sample.date for own in users.values() for sample in own if sample.date)
    texts = [sample.text for own in users.values() for sample in own]
    left_out, most = LeftOut(), DataConfig().samples_per_user
    for own in users.values():
        kept = len(keep_own([sample.text for sample in own]))
        left_out[NEAR] += len(own) - kept
        left_out[f"{BEYOND} = {most}"] += max(0, kept - most)
    refused = read.error or (read.shared and read.shared_id_message(where.name)) or read.all_outside
    return Survey(
        path=where,
        columns=columns,
        present=present,
        rows=read.rows,
        users=len(users),
        without_text=sum(not own for own in users.values()),
        texts=len(texts),
        texts_per_user=_range([len(own) for own in users.values()]),
        words=_range(words_of(texts)),
        characters=_range([len(text) for text in texts]),
        kinds=kinds,
        refused=refused or ("" if texts else "no user has a text that can be read"),
        form=form_of(where),
        longer=longer(texts),
        dates=[*dates[:1], *dates[-1:]],
        left_out=left_out,
    )


def _range(values: Sequence[int]) -> list[int]:
    """Least, median and most."""
    ordered = sorted(values)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else []


WHOLE = 4 * 2**20  # bytes: a file up to this is read to its end
ROWS, CHARACTERS = 1_000, 2**22  # what is looked at of a longer one


@dataclass
class Preview:
    """What a file's first rows hold. PRIVATE where the file is.

    whole: the file ended within the look. rows: readable ones; records: the others, too. columns:
    of all of them. samples: of each user, without exact repetitions. read: what else was found.
    """

    columns: set[str]
    rows: int
    records: int
    whole: bool
    samples: dict[str, list[Sample]]
    read: RowCollector

    def users(self, least: int = 0) -> int:
        """Users with at least this many different texts."""
        return sum(len(own) >= least for own in self.samples.values())

    @property
    def texts(self) -> list[str]:
        """Different texts of each user, one user after the other."""
        return [sample.text for own in self.samples.values() for sample in own]


def preview(path: Path, columns: Columns) -> Preview:
    """Look at a file, all of it if it is small. Raises DataError, OSError as reading does."""
    whole, complete = True, path.stat().st_size <= WHOLE
    present = set(column_names(path)) if path.suffix.lower() == ".parquet" else set[str]()
    wanted = [name for name in columns.named().values() if name in present]  # decode no others
    tally, rows, characters = Tally(), 0, 0
    held = SampleStore(tally.report)
    read = RowCollector(columns, tally.report, held)
    for line, row in read_rows(path, tally.report, wanted):
        if not complete and (rows == ROWS or characters > CHARACTERS):
            whole = False
            break
        rows += bool(row)
        text = row.get(columns.text)
        characters += len(text) if isinstance(text, str) else 0
        read.add(line, row)
    read.finish()
    return Preview(read.present | present, rows, read.rows, whole, held.users, read)


# Sizes as quantiles: POPri's Figure 9 and Table 4, LargeFedBench's tables.
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)

Counter = Callable[[Sequence[str]], list[int]]  # texts -> the size of each


def words_of(texts: Sequence[str]) -> list[int]:
    """Words of each text, as everything here counts them."""
    return [len(units(text)) for text in texts]


def statistics(place: str, columns: Columns, tokens: Counter | None = None) -> dict[str, Any]:
    """Users, texts and labels of a file or a `hub:` data set, and quantiles of their sizes.

    tokens: counts them, where they are wanted. Raises DataError for what cannot be read.
    """
    users = read_place(place, columns)
    texts = [[sample.text for sample in own] for own in users.values()]
    sizes = {"texts_per_user": quantiles(map(len, texts))}
    for name, count in (("words", words_of), ("tokens", tokens)):
        if count is not None:
            each = [count(own) if own else [] for own in texts]
            sizes[f"{name}_per_text"] = quantiles(chain.from_iterable(each))
            sizes[f"{name}_per_user"] = quantiles(map(sum, each))
    labels = sorted({sample.label for own in users.values() for sample in own} - {""})
    return {"users": len(users), "texts": sum(map(len, texts)), "labels": len(labels), **sizes}


def quantiles(counts: Iterable[int]) -> dict[str, float]:
    """Mean, standard deviation and QUANTILES of some counts; {} of none."""
    found = np.fromiter(counts, dtype=np.float64)
    if not len(found):
        return {}
    each = zip(QUANTILES, np.quantile(found, QUANTILES).tolist(), strict=True)
    told = {"mean": float(found.mean()), "std": float(found.std())}
    return told | {f"{100 * share:g}%": value for share, value in each}
