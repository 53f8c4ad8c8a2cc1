"""What a run can publish: its text, as one Parquet file, or its model."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.app.report.guarantee import claim_of
from privsyn_flower.app.report.summaries import (
    NO_QUERIES,
    NONE,
    ReportError,
    Summary,
    read_summary,
    trust_of,
)
from privsyn_flower.config import RunConfig, load_config
from privsyn_flower.runs import UNFINISHED

Kind = Literal["text", "model"]

TEXT, MODEL, SUMMARY = "synthetic.jsonl", "model", "summary.json"  # of a run folder
SPLIT = "the split was chosen by private text"  # in a threat model, after what it holds against
ANYWAY = "--no-privacy-claimed"


class PublishError(ReportError):
    """A run cannot be published so; the text says why, and what to do."""


@dataclass(frozen=True)
class Product:
    """One result of a finished run, which becomes one folder and one repository.

    run: its folder. source: the file of text, or the folder of the model. unclaimed: why nothing
    private is claimed for what was made of the users' answers; "" where the claim holds. left_out:
    rows of the text, by number from 0, that are not published. without_seeds: nor are the seeds.
    """

    run: Path
    config: RunConfig
    summary: Summary
    kind: Kind
    source: Path
    unclaimed: str
    left_out: Collection[int] = frozenset()
    without_seeds: bool = False

    @property
    def private(self) -> bool:
        """Whether differential privacy is claimed for something private."""
        return not self.unclaimed and trust_of(self.summary) != NO_QUERIES


def read_product(run: Path, *, model: bool = False, anyway: bool = False) -> Product:
    """A run's text, or with `model`, and where there is no text, its model.

    anyway: also where no privacy is claimed. Raises PublishError for a run that is not finished or
    has no such result, and for one without a claim; ReportError for what is no run folder, and
    ConfigError for one of an earlier version.
    """
    folder = run.expanduser().absolute()
    if not is_own_file(folder / "config.toml"):
        raise PublishError(f"{folder} is no run folder of this app: it has no config.toml")
    is_own_file(folder / SUMMARY)  # a link is refused; one that is missing, below
    summary = read_summary(folder)
    if UNFINISHED in summary:
        raise PublishError(
            f"{folder} is not finished (to come: {summary[UNFINISHED]}): "
            f"`privsyn run --resume {folder}`"
        )
    kind, source = _result(folder, summary, model)
    _check_claim(folder, summary)
    unclaimed = why_unclaimed(summary)
    if unclaimed and not anyway:
        raise PublishError(
            f"{folder}: no privacy is claimed for what this run made ({unclaimed}), and it must "
            f"not be released as private. To publish it all the same, say {ANYWAY}: its card "
            "then begins with that"
        )
    config = load_config(folder / "config.toml")
    return Product(folder, config, summary, kind, source, unclaimed)


def why_unclaimed(summary: Summary) -> str:
    """Why a run's result may not be released as private; "" where it may."""
    threat = str(summary["threat_model"])
    if trust_of(summary) == NONE:
        return threat
    return SPLIT if SPLIT in threat else ""


def is_own_file(path: Path) -> bool:
    """Whether a run's file is there. Raises PublishError for what is no plain file: a run writes
    no links, and what one names is not the run's."""
    try:
        plain = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
    if not plain:
        raise PublishError(f"{path} is a link, or no plain file: its run did not write it so")
    return True


def _check_claim(folder: Path, summary: Summary) -> None:
    """Raises PublishError where the numbers that a card tells are not those of the run's claim."""
    claim = claim_of(summary) if summary.get("claim") is not None else None
    if claim is None:
        return
    told = {name: summary.get(name) for name in ("epsilon", "delta", "unit", "adjacency")}
    own = {name: getattr(claim, name) for name in told}
    own["epsilon"] = claim.epsilon if math.isfinite(claim.epsilon) else None
    # The wording is a version's; what it comes to is not.
    told["threat_model"], own["threat_model"] = (
        (trust_of(one), SPLIT in str(one["threat_model"]))
        for one in (summary, {"threat_model": claim.threat_model})
    )
    if wrong := [name for name in own if told[name] != own[name]]:
        raise PublishError(
            f"{folder / SUMMARY} was changed since its run wrote it: {', '.join(wrong)} in it "
            "differ from its `claim`: put the run's own back"
        )


def _result(folder: Path, summary: Summary, model: bool) -> tuple[Kind, Path]:
    """What is to be published. Raises PublishError when it is not there."""
    text, trained = folder / TEXT, folder / MODEL
    if not model and is_own_file(text):
        return "text", text
    if not trained.is_symlink() and is_own_file(trained / "config.json"):
        return "model", trained
    what = f"no {MODEL}/" if model else f"neither {TEXT} nor {MODEL}/"
    raise PublishError(
        f"{folder}: its method = {summary['method']!r} left {what}, so there is nothing to publish"
    )


ROWS = 10_000  # of one row group
# What the methods write beside a text; a reader knows each by its card.
COLUMNS = {
    "text": "the text",
    "label": "its class, of a public list",
    "topic": "number of the public topic that it was written about",
    "keywords": "public keywords of that topic",
    "round": "the round whose votes picked it first",
    "votes": "noisy votes for it, of all rounds together",
}


def columns_of(source: Path, left_out: Collection[int] = ()) -> tuple[int, list[str]]:
    """Rows of a file of text but those `left_out`, and their columns, in the order of COLUMNS.

    Raises PublishError for a file without rows, and for one that no method writes.
    """
    count, found = 0, set[str]()
    for number, row in enumerate(_read(source), 1):
        if number - 1 in left_out:
            continue
        strange = set(row) - COLUMNS.keys()
        if strange or not isinstance(row.get("text"), str):
            what = f"has {', '.join(sorted(strange))}" if strange else "has no text"
            raise PublishError(f"{source}, row {number} {what}: it is not as its run wrote it")
        found |= row.keys()
        count += 1
    if not count:
        what = "no text but what is left out" if left_out else "no text"
        raise PublishError(f"{source} holds {what}: there is nothing to publish")
    return count, [name for name in COLUMNS if name in found]


def write_parquet(
    source: Path, target: Path, columns: list[str], left_out: Collection[int] = ()
) -> None:
    """Write the rows of `source` but those `left_out` to `target` with these columns; the same
    rows, the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"topic": pa.int64(), "keywords": pa.list_(pa.string())}
    types |= {"round": pa.int64(), "votes": pa.float64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        rows = (row for number, row in enumerate(_read(source)) if number not in left_out)
        while block := list(islice(rows, ROWS)):
            writer.write_table(pa.Table.from_pylist(block, schema=schema))


def size_category(rows: int) -> str:
    """The hub's name for a number of rows."""
    if rows < 1_000:
        return "n<1K"
    bounds = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
    at = min((len(str(rows)) - 4), len(bounds) - 1)
    return f"n>{bounds[-1]}" if at == len(bounds) - 1 else f"{bounds[at]}<n<{bounds[at + 1]}"


def _read(source: Path) -> Iterator[Mapping[str, Any]]:
    """Rows, one after another: a file may hold millions. Raises PublishError for a damaged one."""
    # newline: a text may hold U+2028 and its like, which end no row.
    with source.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise PublishError(f"{source}, line {number} is damaged: {error}") from None
            if not isinstance(row, dict):
                raise PublishError(f"{source}, line {number} is no object")
            yield row
