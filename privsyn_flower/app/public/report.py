"""What a corpus holds and what it cost: report.json, made of the stages' states; its vocabulary.

Coverage is the share of a vocabulary that occurs in a text (Gboard paper, section 3.3, Table 2): a
word that occurs in no text of the pre-training has an embedding that nothing was learned for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from privsyn_flower.app.public.corpus import corpus_folder
from privsyn_flower.app.public.journal import lines_of, read_state
from privsyn_flower.app.public.mixing import MIX, examples_of
from privsyn_flower.app.public.source import Source
from privsyn_flower.common.files import DataError, write_atomic
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.units import spaced
from privsyn_flower.config.public import STAGES, PublicTextConfig
from privsyn_flower.text.words import Vocabulary, read_vocabulary

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
