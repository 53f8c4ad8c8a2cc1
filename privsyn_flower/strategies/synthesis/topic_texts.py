"""As much text as wanted by topics, in blocks that a killed run keeps (CTCL, section 3.4).

Everything here is post-processing of what was released: it costs no privacy, however often it is
done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.common.arrays import Ints
from privsyn_flower.common.files import write_atomic
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.units import units
from privsyn_flower.runs import write_json
from privsyn_flower.text.protocols import Generator
from privsyn_flower.text.words import degenerate

BLOCK = 512  # texts that are lost at most when a run is killed
DRAWS = 4  # of one text, until it is usable

Row = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """Which texts are to be written.

    topics (n,): of each text, in the order in which they are written. conditions (m,): what the
    generator is told of a topic. rows (m,): what a row of the file says of its topic beside the
    text. seed, purpose: of the randomness. source: digest of the generator.
    """

    topics: Ints
    conditions: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    seed: int
    purpose: str
    source: str

    def digest(self) -> str:
        """What a block belongs to: other orders have other blocks."""
        facts = [list(self.conditions), list(map(dict, self.rows)), self.seed, self.purpose]
        state = hashlib.sha256(json.dumps([*facts, self.source, BLOCK, DRAWS]).encode())
        state.update(np.asarray(self.topics, dtype=np.int64).tobytes())
        return state.hexdigest()[:16]


@dataclass(frozen=True)
class Written:
    """texts: in the file. drawn: of the generator. dropped: of the order, without a usable text
    after DRAWS draws."""

    texts: int
    drawn: int
    dropped: int


def mixed_order(counts: Ints, rng: np.random.Generator) -> Ints:
    """counts (m,) -> (n,) topics in random order: the beginning of a file is like all of it."""
    topics: Ints = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return topics


def usable(min_words: int, filtered: bool) -> Callable[[str], str]:
    """A completion -> the text that is kept of it, "" for none: too short or degenerate."""

    def postprocess(completion: str) -> str:
        text = completion.strip()
        if len(units(text)) < min_words or (filtered and degenerate(text)):
            return ""
        return text

    return postprocess


def write_texts(
    order: Order,
    generator: Callable[[], Generator],
    target: Path,
    *,
    postprocess: Callable[[str], str],
    progress: Progress = silent,
    stage: str = "expansion",
) -> Written:
    """Write the ordered texts to `target`, JSON lines, whole when it appears.

    generator: opened when there is something to write. Blocks are kept beside `target` until it is
    there; called again with the same order, it goes on after the last whole block and writes the
    same text. A text that `kept` refuses is drawn again from its topic, DRAWS times in all.
    """
    folder = target.with_name(f".{target.name}.{order.digest()}")
    starts = range(0, len(order.topics), BLOCK)
    blocks = [folder / f"{start // BLOCK:06d}.json" for start in starts]
    made: Generator | None = None
    progress(stage, 0, len(order.topics))
    for number, (start, path) in enumerate(zip(starts, blocks, strict=True)):
        if not path.exists():
            made = made or generator()
            write_json(path, _block(order, number, made, postprocess))
        progress(stage, min(start + BLOCK, len(order.topics)), len(order.topics))
    found = [_facts(path) for path in blocks]
    write_atomic(target, _lines(blocks))
    shutil.rmtree(folder, ignore_errors=True)
    texts = sum(one.texts for one in found)
    return Written(texts, sum(one.drawn for one in found), len(order.topics) - texts)


def _block(
    order: Order, number: int, generator: Generator, postprocess: Callable[[str], str]
) -> dict[str, Any]:
    """The rows of one block; its randomness is its own, whatever was written before."""
    topics = order.topics[number * BLOCK : (number + 1) * BLOCK]
    texts, open_places, drawn = [""] * len(topics), list(range(len(topics))), 0
    for draw in range(DRAWS):
        if not open_places:
            break
        conditions = [order.conditions[topics[place]] for place in open_places]
        rng = seeded(order.seed, order.purpose, number, draw)
        answers = generator.complete(conditions, 1, rng)
        drawn += len(answers)
        for place, (completion,) in zip(open_places, answers, strict=True):
            texts[place] = postprocess(completion)
        open_places = [place for place in open_places if not texts[place]]
    rows = [
        {"text": text, **order.rows[topic]}
        for text, topic in zip(texts, topics, strict=True)
        if text
    ]
    return {"rows": rows, "drawn": drawn}


def _facts(path: Path) -> Written:
    block = json.loads(path.read_text(encoding="utf-8"))
    return Written(len(block["rows"]), int(block["drawn"]), 0)


def _lines(blocks: Sequence[Path]) -> Iterator[bytes]:
    for path in blocks:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            yield f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n".encode()
