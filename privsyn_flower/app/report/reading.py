"""A run folder as it can be shown: finished, going on, or left behind by a kill; and the ledger of
a run and of others on the same users.

Everything read here is public by the design of a run folder, but for what stands under `benchmark`
in the summary. A file that is not there yet, or is cut off in the middle of a line, is no error;
one that is damaged is named in `problems`, and the rest is shown. Memory is bounded by the number
of rounds and stages, not by how many events or texts there are. A ledger is read without a lock and
nothing is written: rows are only ever appended, and a last one without its newline was never
acknowledged to anyone.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from privsyn_flower.app.report.summaries import ReportError, Summary, mapping, read_summary
from privsyn_flower.common.progress import PROGRESS
from privsyn_flower.config import ConfigError, RunConfig, flatten
from privsyn_flower.privacy.ledger import LedgerError
from privsyn_flower.privacy.ledger.filters import Header, charged_epsilon, parse_header
from privsyn_flower.privacy.ledger.journal import Charge, parsed, replay
from privsyn_flower.privacy.sentence import FILE
from privsyn_flower.runs import RUN_LOG, SYNTHETIC, UNFINISHED, lock_holder, read_warnings

ERROR = "error.txt"
CONFIG = "config.toml"
SUMMARY = "summary.json"
# A folder with one of these was a run's.
SIGNS = (CONFIG, SUMMARY, "checkpoints/run.json", "checkpoints/promised.json", PROGRESS)
LONGEST_LINE = 1 << 20  # bytes of one row that is still shown
MOST_BYTES = 16 << 20  # of a file that is read whole

State = Literal["running", "finished", "failed", "stopped"]
Json = dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """What a run folder says, read once.

    config: the run's, None in a folder of somebody's ServerApp or of a version with other keys.
    stored: config.toml as it is. summary: of a run with a result, else {}. invariants: what may
    not change while the run lasts, with the fields of its claim; {} before the first question.
    statement: privacy.md. metrics: a row for each finished round. evaluations: those of the
    questions beside the rounds, by name. progress: events {"t", "stage", "done", "total", "note"},
    of each stage the first, the last, and those with a note of their own. ledger: None before the
    first charge. seconds: of the stages that are over. error: why a run failed, "" if it did not.
    warnings: of run.log. locked: a process holds the folder, so the run goes on. problems: files
    that are there and cannot be read, with the reason.
    """

    folder: Path
    config: RunConfig | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)
    summary: Summary = field(default_factory=dict)
    invariants: Mapping[str, Any] = field(default_factory=dict)
    statement: str = ""
    metrics: list[Json] = field(default_factory=list)
    evaluations: Mapping[str, list[Json]] = field(default_factory=dict)
    progress: list[Json] = field(default_factory=list)
    ledger: LedgerView | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    locked: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.absolute().name

    @property
    def seed(self) -> int | None:
        """Of the server's choices, None where no configuration says it."""
        return None if self.config is None else self.config.seed

    @property
    def claimed(self) -> Mapping[str, Any]:
        """What the run claims: of its summary, else of its privacy plan."""
        return self.summary or self.invariants

    @property
    def benchmark(self) -> Mapping[str, Any]:
        """What was measured outside of epsilon; {} without a benchmark."""
        return mapping(self.summary.get("benchmark"))

    @property
    def state(self) -> State:
        """Where the run is; a result without the benchmark that is still due has not finished."""
        if self.locked:
            return "running"
        if self.summary and UNFINISHED not in self.summary:
            return "finished"
        return "failed" if self.error else "stopped"

    def texts(self, limit: int, *, first: int = 0) -> list[Json]:
        """At most `limit` rows of the synthetic text, {"text": ...} with what stands beside it,
        spread evenly over the file, in its order. first: where to begin, as `seeds_in_front` of
        the summary says. Raises ValueError for a number below 0."""
        if limit < 0 or first < 0:
            raise ValueError(f"limit = {limit} and first = {first} must be at least 0")
        total = max(0, self.text_count() - first)
        shown = min(limit, total)
        wanted = {first + number * total // shown for number in range(shown)}
        lines = enumerate(_lines(self.folder / SYNTHETIC))
        rows = (_parsed(line) for number, line in lines if number in wanted)
        return [row for row in rows if row is not None and isinstance(row.get("text"), str)]

    def text_count(self) -> int:
        """Complete rows of the synthetic text that are there so far."""
        return sum(1 for _ in _lines(self.folder / SYNTHETIC))


def first_texts(folder: Path, count: int, name: str = SYNTHETIC) -> list[Json]:
    """The first rows of a run's texts, {"text": ...}; fewer where there are fewer. name: of the
    file, its synthetic text's or SEEDS."""
    rows = (row for line in _lines(folder / name) if (row := _parsed(line)) is not None)
    return list(islice((row for row in rows if isinstance(row.get("text"), str)), count))


def read_run(folder: Path) -> RunFolder:
    """What a run folder says now. Raises ReportError for one that is no run's."""
    if not folder.is_dir():
        raise ReportError(f"{folder} is no folder: name the folder of a run")
    if not any((folder / sign).exists() for sign in SIGNS):
        raise ReportError(f"{folder} holds no run: none of {', '.join(SIGNS)} is there")
    problems: list[str] = []
    stored, config = _config(folder / CONFIG, problems)
    own = folder / "checkpoints"
    return RunFolder(
        folder=folder,
        config=config,
        stored=stored,
        summary=_summary(folder, problems),
        invariants=_value(own / "promised.json", problems),
        statement=_text(folder / FILE),
        metrics=_rows(folder / "metrics.jsonl"),
        evaluations={
            path.name: _rows(path / "metrics.jsonl")
            for path in sorted((folder / "evaluations").glob("*/"))
        },
        progress=_thinned(_events(folder / PROGRESS)),
        ledger=_ledger(folder, problems),
        seconds=_value(own / "seconds.json", problems),
        error=_text(folder / ERROR).strip(),
        warnings=_warnings(folder / RUN_LOG),
        locked=_locked(folder),
        problems=problems,
    )


def _config(path: Path, problems: list[str]) -> tuple[Json, RunConfig | None]:
    text = _text(path)
    try:
        stored = tomllib.loads(text)
        return stored, RunConfig.from_flat(flatten(stored)) if stored else None
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path.name}: {error}")
        return {}, None
    except ConfigError as error:
        problems.append(f"{path.name}: {error}")
        return stored, None


def _summary(folder: Path, problems: list[str]) -> Summary:
    if not (folder / SUMMARY).exists():
        return {}
    try:
        return read_summary(folder)
    except ReportError as error:
        problems.append(str(error))
        return {}


def _ledger(folder: Path, problems: list[str]) -> LedgerView | None:
    run, began = (_json(folder / "checkpoints" / f"{name}.json") for name in ("run", "ledger"))
    if not isinstance(run, str):
        return None
    try:
        return read_ledger(folder, run, began if isinstance(began, dict) else {})
    except (LedgerError, KeyError, TypeError, ValueError) as error:
        problems.append(f"ledger: {error}")
        return None


def _locked(folder: Path) -> bool:
    try:
        return lock_holder(folder) is not None
    except OSError:  # another account's, or on a medium that cannot be written
        return False


def _warnings(path: Path) -> list[str]:
    """Those in the last part of the log."""
    try:
        start = max(0, path.stat().st_size - MOST_BYTES)
        return read_warnings(path.parent, start)[0]
    except OSError:
        return []


def _text(path: Path) -> str:
    """A small file of the run, "" without one; at most its first part."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _json(path: Path) -> Any:
    """A JSON value; None where it is not there, or damaged."""
    try:
        return json.loads(_text(path))
    except ValueError:
        return None


def _value(path: Path, problems: list[str]) -> Json:
    """A JSON object under checkpoints/, {} without one."""
    found = _json(path)
    if found is None and path.exists():
        problems.append(f"{path.parent.name}/{path.name} is damaged")
    return found if isinstance(found, dict) else {}


def _rows(path: Path) -> list[Json]:
    return [row for line in _lines(path) if (row := _parsed(line)) is not None]


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, one at a time; one that is still being written, or longer than anybody
    reads, is left out."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        whole = True
        while line := file.readline(LONGEST_LINE):
            ended = line.endswith(b"\n")
            if whole and (ended or _parsed(line) is not None):
                yield line
            whole = ended


def _parsed(line: bytes) -> Json | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _events(path: Path) -> Iterator[Json]:
    """The progress events that have all their parts."""
    for line in _lines(path):
        row = _parsed(line)
        if row is None or not isinstance(row.get("stage"), str):
            continue
        if all(isinstance(row.get(key), int | float) for key in ("t", "done", "total")):
            yield {"note": "", **row}


def _thinned(events: Iterable[Json]) -> list[Json]:
    """Of each stage the first event and the last, also before it began again, and those with
    another note, in their order."""
    kept: dict[int, Json] = {}  # by number, so that none is there twice
    last: dict[str, tuple[int, Json]] = {}
    for number, event in enumerate(events):
        at, before = last.get(event["stage"], (number, None))
        if before is not None and event["done"] < before["done"]:
            kept[at], kept[number] = before, event
        elif before is None or event["note"] not in ("", before["note"]):
            kept[number] = event
        last[event["stage"]] = (number, event)
    kept |= dict(last.values())
    return [kept[number] for number in sorted(kept)]


COPY = "ledger.jsonl"  # in a run folder: the run's own rows, when it last held the ledger


@dataclass(frozen=True)
class LedgerView:
    """A ledger's charges, in their order, as they stood when it was read.

    run: the id of the run whose folder led here; its charges are of that name, or RUN-NAME for a
    question beside its rounds. whole: the ledger itself was read, with the charges of all runs;
    else the copy in the run folder, of this run's alone. times: charge id -> Unix time when it was
    reserved.
    """

    header: Header
    charges: list[Charge]
    run: str
    whole: bool
    times: Mapping[str, float]

    @property
    def shared(self) -> bool:
        """Whether runs share it: it was made for a declared population, not for one run."""
        return self.header.population != f"run {self.run}"

    @property
    def own(self) -> list[Charge]:
        """The charges of this run."""
        return [c for c in self.charges if c.run == self.run or c.run.startswith(f"{self.run}-")]

    def epsilon(self, charges: list[Charge], delta: float | None = None) -> float:
        """Of these charges together, at the ledger's total delta or another one; inf where their
        noise was too coarse. A plan with sampling takes a second. Raises ValueError without a
        delta."""
        used = self.header.total_delta if delta is None else delta
        if used is None:
            raise ValueError("delta = None: the ledger has no total delta, so name one")
        return charged_epsilon(charges, used)


def read_ledger(folder: Path, run: str, began: Mapping[str, Any]) -> LedgerView | None:
    """The ledger that a run began with, else the copy in its folder; None where neither is.

    run: the run's id. began: the folder's note of the ledger ({"id", "path"}), {} without one.
    Raises LedgerError for rows that no writer makes, and for a copy of earlier versions.
    """
    path = Path(str(began.get("path", "")))
    rows = _ledger_rows(path) if began else []
    if rows and rows[0].get("id") == began.get("id"):
        return _view(rows, path, run, whole=True)
    rows = _ledger_rows(folder / COPY)
    return _view(rows, folder / COPY, run, whole=False) if rows else None


def open_ledger(path: Path) -> LedgerView:
    """A ledger's own file. Raises LedgerError for a file that is none."""
    rows = parsed(path.read_bytes(), path)
    if not rows:
        raise LedgerError(f"{path} is no ledger: it has no rows")
    return _view(rows, path, "", whole=rows[0].get("kind") != "copy")


def _view(rows: list[dict[str, Any]], path: Path, run: str, *, whole: bool) -> LedgerView:
    header = parse_header(rows[0] | {"kind": "ledger"}, path)
    times = {str(row["id"]): float(row["time"]) for row in rows[1:] if row.get("kind") == "reserve"}
    return LedgerView(header, replay(rows, path), run, whole, times)


def _ledger_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a file, none where it cannot be read: it may be on another machine, or
    another account's. Raises LedgerError for a complete one that is no JSON object."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    return parsed(content, path)
