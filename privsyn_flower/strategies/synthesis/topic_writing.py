"""A run's generator, topics and noisy shares -> text: in the run, for its controls, and any time
later from the run folder alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privsyn_flower.common.arrays import F64
from privsyn_flower.common.files import build_folder
from privsyn_flower.common.progress import Progress
from privsyn_flower.common.randomness import seeded
from privsyn_flower.config import ConfigError, ExpandConfig
from privsyn_flower.runs import write_json
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.synthesis.topic_counts import largest_remainder
from privsyn_flower.strategies.synthesis.topic_texts import (
    Order,
    Written,
    mixed_order,
    usable,
    write_texts,
)
from privsyn_flower.text.conditions import condition
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.readiness import try_texts
from privsyn_flower.text.topics import TopicModel, load_topics, save_topics

if TYPE_CHECKING:
    from privsyn_flower.text.conditional import ConditionalLM

MODEL, TOPICS = "model", "topics"  # folders of a run
SHARES = "shares.json"  # beside the topics: how much text each is to have, as it was released


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
