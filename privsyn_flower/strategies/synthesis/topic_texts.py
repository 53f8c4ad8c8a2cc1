"""A run's generator, topics and noisy shares -> as much text as wanted, in blocks that a killed
run keeps (CTCL, section 3.4): in the run, for its controls, and any time later from its folder.

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
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.common.arrays import F64, Ints
from privsyn_flower.common.files import build_folder, write_atomic
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.units import units
from privsyn_flower.config import ConfigError, ExpandConfig
from privsyn_flower.runs import write_json
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_counts import largest_remainder
from privsyn_flower.text.conditions import condition
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.protocols import Generator
from privsyn_flower.text.readiness import try_texts
from privsyn_flower.text.topics import TopicModel, load_topics, save_topics
from privsyn_flower.text.words import degenerate

if TYPE_CHECKING:
    from privsyn_flower.text.conditional import ConditionalLM

MODEL, TOPICS = "model", "topics"  # folders of a run
SHARES = "shares.json"  # beside the topics: how much text each is to have, as it was released
BLOCK = 512  # texts that are lost at most when a run is killed
DRAWS = 4  # of one text, until it is usable


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
    same text. A text that `postprocess` makes "" is drawn again from its topic, DRAWS times in all.
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


@dataclass(frozen=True)
class GenerationInputs:
    """What a run keeps to write text with. model: folder of the generator. topics: None for a
    generator without conditions. shares (m,): of the topics, public, or (classes m,), class by
    class; (1,) without topics."""

    model: Path
    topics: TopicModel | None
    shares: F64


def keep_topics(run: Path, topics: TopicModel) -> TopicModel:
    """The run's copy of its topics, which is theirs when it goes on; made unless it is there."""
    folder = run / TOPICS
    if not folder.is_dir():
        build_folder(folder, lambda scratch: save_topics(topics, scratch), result=True)
    return load_topics(folder, topics.embedder)


def keep_shares(run: Path, shares: F64) -> None:
    """Beside the topics."""
    write_json(run / TOPICS / SHARES, {"shares": [float(one) for one in shares]})


def load_generation_inputs(run: Path, own: CtclConfig) -> GenerationInputs:
    """Inputs of a finished run. Raises ConfigError for one that is not."""
    model = run / MODEL
    if not (model / "config.json").is_file():
        raise ConfigError(f"{run} has no {MODEL}/ yet: finish it with `privsyn run --resume {run}`")
    if own.condition == "none":
        return GenerationInputs(model, None, np.ones(1))
    path = run / TOPICS / SHARES
    if not path.is_file():
        raise ConfigError(f"{path} is missing: restore it, or run again in another folder")
    topics = load_topics(run / TOPICS)
    shares = np.asarray(json.loads(path.read_text("utf-8"))["shares"], dtype=np.float64)
    wanted = len(topics) * max(1, len(own.classes))
    if shares.shape != (wanted,):
        raise ConfigError(f"{path} has {len(shares)} shares and not {wanted}, as the topics have")
    return GenerationInputs(model, topics, shares)


def write(
    own: CtclConfig,
    expand: ExpandConfig,
    device: str,
    inputs: GenerationInputs,
    target: Path,
    *,
    samples: int,
    seed: int,
    purpose: str,
    progress: Progress,
    stage: str = "expansion",
) -> Written:
    """So many texts to `target`; goes on where it was killed (`write_texts`). device: of the
    generator, as `models.device`."""
    counts = largest_remainder(inputs.shares, samples)
    order = Order(
        mixed_order(counts, seeded(seed, purpose, "order")),
        _conditions(own, inputs.topics),
        _rows(own, inputs.topics),
        seed,
        purpose,
        json.dumps([folder_fingerprint(inputs.model), expand.model_dump(), own.repetition_penalty]),
    )
    return write_texts(
        order,
        lambda: opened(own, expand, device, inputs.model),
        target,
        postprocess=usable(expand.min_words, own.filter),
        progress=progress,
        stage=stage,
    )


def try_writing(
    own: CtclConfig,
    expand: ExpandConfig,
    device: str,
    model: Path,
    topics: TopicModel | None,
    seed: int,
) -> None:
    """A few texts by the generator as it is, before it is trained. Raises as
    `text.readiness.try_texts`; texts that are empty or degenerate it may learn to write."""
    conditions, rng = _conditions(own, topics), seeded(seed, "readiness")
    generator = opened(own, expand, device, model)
    try:
        try_texts(
            lambda count: [conditions[i] for i in rng.integers(len(conditions), size=count)],
            lambda text, least: usable(least, own.filter)(text),
            generator,
            rng,
            min_words=expand.min_words,
            key="models.conditional",
            learns=True,
        )
    finally:
        generator.close()


def opened(own: CtclConfig, expand: ExpandConfig, device: str, model: Path) -> ConditionalLM:
    """The conditional generator in a folder, as the tables say that it is sampled from."""
    from privsyn_flower.text.conditional import open_conditional

    return open_conditional(
        model,
        temperature=expand.temperature,
        top_p=expand.top_p,
        top_k=expand.top_k,
        repetition_penalty=own.repetition_penalty,
        max_tokens=expand.max_tokens,
        batch_size=expand.batch_size,
        max_source=own.max_source,
        device=device,
        progress=False,
    )


def _conditions(own: CtclConfig, topics: TopicModel | None) -> list[str]:
    """What the generator is told of each topic, class by class; "" where nothing is said."""
    keywords = [()] if topics is None else topics.keywords
    return [
        condition(words, own.document_type, label)
        for label in own.classes or [""]
        for words in keywords
    ]


def _rows(own: CtclConfig, topics: TopicModel | None) -> Sequence[dict[str, Any]]:
    """What a line of the result says of its topic and class: public, as both lists are."""
    about = [{}] if topics is None else [
        {"topic": i, "keywords": list(words)} for i, words in enumerate(topics.keywords)
    ]  # fmt: skip
    if not own.classes:
        return about
    return [{**one, "label": label} for label in own.classes for one in about]
