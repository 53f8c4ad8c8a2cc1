"""The stages' texts as one file of examples, for any method's `data.public-path`; and the report of
what a corpus holds and what it cost, made of the stages' states.

Gboard paper (Wu et al. 2024), sections 3.4 and C.1: filtered texts and chats are put together as
they are; each turn of a chat and each sentence of a filtered text is an example. Coverage is the
share of a vocabulary that occurs in a text (section 3.3, Table 2): a word that occurs in no text of
the pre-training has an embedding that nothing was learned for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.app.public.chats import turns
from privsyn_flower.app.public.corpus import corpus_folder
from privsyn_flower.app.public.journal import Journal, lines_of, read_state, state_path
from privsyn_flower.app.public.source import Source
from privsyn_flower.common.files import DataError, write_atomic
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.units import spaced
from privsyn_flower.config.public import STAGES, PublicTextConfig
from privsyn_flower.data.reading import CORPUS_FILE
from privsyn_flower.text.words import Vocabulary, read_vocabulary, sentences

MIX, UNDER_WAY = "mix", "mixing"  # names of the files: whole, and until it is


def examples_of(line: Mapping[str, Any], kind: str = "turns") -> list[str]:
    """A line of a stage -> its examples (`mix.examples`)."""
    if kind == "texts":
        return [line["text"]]
    if line["stage"] == "filter":
        return sentences(line["text"])
    return turns(line["text"], cut=line.get("cut", False))


def mix(config: PublicTextConfig, progress: Progress = silent) -> None:
    """Write mix.jsonl: {"text", "stage"} of each example of `mix.stages`.

    The stages are read side by side, always on where the least of a file was read: any beginning of
    the mix has all of them in proportion. mix.jsonl appears when it is whole, and one that is there
    of the same texts and settings stays. Raises DataError for a stage without text, and for a
    mix.jsonl of somebody else.
    """
    folder, settings = corpus_folder(config), _settings(config)
    if _whole(folder, settings):
        return
    with Journal(folder, UNDER_WAY, settings, anew=True) as journal:
        with _seen(journal, config.mix.repeats == "remove") as seen:
            _write(config, journal, seen, progress)
        journal.until = config.mix.limit
    state_path(folder, UNDER_WAY).replace(state_path(folder, MIX))
    _whole(folder, settings)


def _settings(config: PublicTextConfig) -> dict[str, Any]:
    """What the mix is made of, and how."""
    folder, made_of, begun = corpus_folder(config), dict[str, int](), dict[str, str | None]()
    for stage in config.mix.chosen:
        state = read_state(folder, stage)
        if state is None or not state["bytes"]:
            raise DataError(
                f"mix.stages names {stage!r}, and {folder} has no text of it: run `privsyn public "
                f"{stage}`, or leave it out"
            )
        made_of[stage], begun[stage] = state["bytes"], state.get("begun")
    own = config.mix
    how = {"examples": own.examples, "repeats": own.repeats, "limit": own.limit}
    return {
        "made of": made_of,
        "begun as": begun,
        **{f"mix.{key}": value for key, value in how.items()},
    }


def _whole(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether mix.jsonl is there, of these settings; a kill may have left it without its name.

    Raises DataError for a mix.jsonl that `mix` did not write.
    """
    state, target = read_state(folder, MIX), folder / CORPUS_FILE
    if state is None:
        if target.exists():
            raise DataError(
                f"{target} is there, and nothing tells that `privsyn public mix` wrote it: move "
                "it away, or name another folder"
            )
        return False
    written = folder / f"{UNDER_WAY}.jsonl"
    if read_state(folder, UNDER_WAY) is None and _has(written, state["bytes"]):
        written.replace(target)
        for end in ("", "-wal", "-shm"):
            (folder / f"{UNDER_WAY}.sqlite{end}").unlink(missing_ok=True)
    settled: bool = state["settings"] == settings
    return settled and _has(target, state["bytes"])


def _has(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _write(
    config: PublicTextConfig, journal: Journal, seen: sqlite3.Connection | None, progress: Progress
) -> None:
    own, made_of = config.mix, journal.settings["made of"]
    total = sum(made_of.values())
    for stage, number, ends, line in _side_by_side(journal.folder, made_of, journal.last):
        if own.limit and journal.lines >= own.limit:
            break
        start = journal.last[number] if journal.last else 0
        if seen is not None and _repeated(seen, line["text"], (number, start)):
            journal.counts[f"{stage}_repeats"] += 1
        else:
            found = examples_of(line, own.examples)
            found = found[: own.limit - journal.lines] if own.limit else found
            before = journal.bytes
            for text in found:
                journal.add({"text": text, "stage": stage})
            journal.counts[f"{stage}_texts"] += 1
            journal.counts[f"{stage}_examples"] += len(found)
            journal.counts[f"{stage}_bytes"] += journal.bytes - before
        journal.last = ends
        if journal.due:
            if seen is not None:
                seen.commit()  # before the state, which must know of no text that it does not
            journal.save()
            progress(MIX, sum(ends), total, f"{journal.lines:,} examples")
    progress(MIX, total, total, f"{journal.lines:,} examples")


def _side_by_side(
    folder: Path, sizes: Mapping[str, int], start: Sequence[int] | None
) -> Iterator[tuple[str, int, tuple[int, ...], dict[str, Any]]]:
    """(stage, its number, the bytes read of each, line), of all stages to their ends."""
    stages = list(sizes)
    done = list(start or [0] * len(stages))
    files = [lines_of(folder, stage, at) for stage, at in zip(stages, done, strict=True)]
    following = [next(file, None) for file in files]
    while True:
        left = [n for n, stage in enumerate(stages) if done[n] < sizes[stage]]
        if not left:
            return
        n = min(left, key=lambda n: done[n] / sizes[stages[n]])
        here, after = following[n], next(files[n], None)
        if here is None:
            raise DataError(f"{folder / stages[n]}.jsonl is shorter than it was: mix it again")
        following[n], done[n] = after, after[0] if after else sizes[stages[n]]
        yield stages[n], n, tuple(done), here[1]


@contextlib.contextmanager
def _seen(journal: Journal, wanted: bool) -> Iterator[sqlite3.Connection | None]:
    """Digests of the texts that were read, on disk, each with the place of its first; None: not
    wanted."""
    if not wanted:
        yield None
        return
    database = sqlite3.connect(journal.folder / f"{UNDER_WAY}.sqlite")
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS seen (digest BLOB PRIMARY KEY, stage INTEGER, "
            "start INTEGER) WITHOUT ROWID"
        )
        if journal.last is None:
            database.execute("DELETE FROM seen")  # of a mix that was begun with other texts
        yield database
    finally:
        database.commit()
        database.close()


def _repeated(seen: sqlite3.Connection, text: str, place: tuple[int, int]) -> bool:
    """Whether a text was read at another place before; where it is the first, that is kept.

    After a kill a text may be met again at its own place.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
    if seen.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (digest, *place)).rowcount:
        return False
    first = seen.execute("SELECT stage, start FROM seen WHERE digest = ?", (digest,)).fetchone()
    return tuple(first) != place


MOST_KNOWN = 2**20  # pieces of text that are known by heart, to read each once


def find_occurrences(texts: Iterable[str], vocabulary: Vocabulary) -> set[int]:
    """The places of the vocabulary's words that occur.

    When all that can have done so, no more is read.
    """
    found = set[int]()
    most = len(vocabulary) - len(vocabulary.unreachable())
    for ids in vocabulary.ids(_news(texts)):
        found.update(ids)
        found.discard(-1)
        if len(found) == most:
            break
    return found


def _news(texts: Iterable[str]) -> Iterator[str]:
    """What is between the spaces of each text and was not met lately: no word has a space."""
    known = set[str]()
    for text in texts:
        fresh = set(spaced(text).split(" ")) - known
        if len(known) > MOST_KNOWN:
            known.clear()
        known |= fresh
        if fresh:
            yield " ".join(fresh)


REPORT, COVERAGE = "report.json", "coverage.json"
SOURCE, CHATS = "source", "chat and convert"  # rows of Table 2 that are no stage


def write_report(folder: Path) -> dict[str, Any]:
    """Write FOLDER/report.json, and return it.

    stages: of each that was begun, texts (lines), bytes of its file, seconds, whether all of its
    source was taken (`complete`), what the stage counts, and the tokens of the answers that it is
    made of. coverage: as it was measured last (`measure_coverage`), if it was. Raises DataError for
    a damaged file of the folder.
    """
    stages = {}
    for stage in (*STAGES, MIX):
        state = read_state(folder, stage)
        if state is not None:
            figures = {key: state[key] for key in ("taken", "bytes", "seconds", "counts")}
            complete = state["until"] is not None and not state["open"]
            stages[stage] = {"complete": complete, "texts": state["lines"], **figures}
    report: dict[str, Any] = {"stages": stages}
    if (folder / COVERAGE).is_file():
        report["coverage"] = _read_coverage(folder / COVERAGE)
    write_atomic(folder / REPORT, f"{json.dumps(report, indent=1)}\n".encode())
    return report


def _read_coverage(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        shares = {str(name): float(share) for name, share in found["shares"].items()}
        return {**{key: int(found[key]) for key in ("words", "unreachable")}, "shares": shares}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path} is damaged: remove it, and measure again with `privsyn public coverage`"
        ) from None


def measure_coverage(
    config: PublicTextConfig, *, source: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Write FOLDER/coverage.json, and return it (Gboard paper, Table 2).

    words: of `vocabulary`; unreachable: those that no text can give. shares: of the words that
    occur in each stage's examples, in both kinds of chats together, in the mix, and, if `source`,
    in all of `filter.source`, which is read to its end or to the last word. Raises DataError
    without a vocabulary or any text.
    """
    folder = corpus_folder(config)
    if not config.vocabulary:
        raise DataError(
            "vocabulary is empty: name a file with a word on each line, or the folder of an lstm"
        )
    vocabulary = read_vocabulary(Path(config.vocabulary).expanduser())
    there = [stage for stage in (*STAGES, MIX) if (read_state(folder, stage) or {}).get("lines")]
    if not there and not source:
        raise DataError(f"{folder} holds no text: run `privsyn public filter` or `chat` first")
    found = dict[str, set[int]]()
    for done, stage in enumerate(there):
        progress("coverage", done, len(there) + source, stage)
        found[stage] = find_occurrences(_texts(folder, stage), vocabulary)
    if source:
        progress("coverage", len(there), len(there) + 1, SOURCE)
        own = config.filter
        web = Source(own.source, own.text_column, public_users=own.public_users)
        found[SOURCE] = find_occurrences((text for _, text in web.texts()), vocabulary)
    if {"chat", "convert"} <= found.keys():
        found[CHATS] = found["chat"] | found["convert"]
    progress("coverage", 1, 1)
    shares = {name: len(places) / len(vocabulary) for name, places in found.items()}
    unreachable = len(vocabulary.unreachable())
    measured = {"words": len(vocabulary), "unreachable": unreachable, "shares": shares}
    write_atomic(folder / COVERAGE, f"{json.dumps(measured, indent=1)}\n".encode())
    return measured


def _texts(folder: Path, stage: str) -> Iterator[str]:
    """What a model is trained on, of a stage or of the mix."""
    for _, line in lines_of(folder, stage):
        yield from [line["text"]] if stage == MIX else examples_of(line)
