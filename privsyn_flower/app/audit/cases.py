"""Questions under audit: about texts (votes, scores, topics), by a canary of the longest vector;
about a model (updates, evaluations), by a base of four numbers a token.

What a gradient is enters no bound, so that base is the shipped model, cut to its first layer and to
4 of its coordinates: a user's vector is then short enough for many trials, and the nodes train and
evaluate it with the code that they use for any other.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.app.audit.path import EMBEDDER, Case
from privsyn_flower.client_apps.evaluation import EVALUATION
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.client_apps.updates import UPDATE
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.common.arrays import F32
from privsyn_flower.config import RunConfig, split_list
from privsyn_flower.data import LabelledText
from privsyn_flower.protocol.question import Query
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.server_apps.methods.training import training_strategy
from privsyn_flower.server_apps.privacy_plan import privacy_plan
from privsyn_flower.server_apps.selection import evaluation_caps
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.ctcl.strategy import BOUND
from privsyn_flower.strategies.evaluation.strategy import evaluation_query
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.strategies.synthesis.topic_counts import topic_question
from privsyn_flower.text import load_embedder
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.tiny.assets import PACKAGE_ASSETS
from privsyn_flower.text.topics import TopicModel
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.low_rank import initial_parameters


def votes_case(config: RunConfig) -> Case:
    """All of the canary's samples vote for the same candidates: the longest vector there is.

    Its node's other user has one sample, so that a clip of the node's sum would let the canary
    push that user's vote aside. With classes each has the same candidates, and the canary has
    samples of as many as it can, so that a clip of every class by itself would be too long; of one
    alone where the bound is the number of samples (worst-case), which no other vector reaches.
    """
    if config.own.groups(config):  # of weak nodes, within topics
        case = topics_case(config)
        rows = case.query.question()
        return replace(case, query=case.query.within_topics(rows, range(len(rows))))
    _, options = recipe_of(config).question(config)
    cap, names = config.data.samples_per_user, range(3 * options.get("neighbors", 1) + 2)
    texts = [f"candidate {at} {'abcdefghijklmnopqrstuvwxyz'[at % 26] * 8} {at}" for at in names]
    labels = config.classes[: 1 if options.get("clip") == "worst-case" else cap]
    embedder = load_embedder(EMBEDDER)
    query = Query.votes(
        embedder.embed(texts * max(1, len(labels))),
        model=embedder.fingerprint,
        samples_cap=cap,
        classes=[label for label in labels for _ in texts] or None,
        labels=labels,
        **options,
    )
    canary, other, crowd = (
        [LabelledText(text, (labels or [""])[at % max(1, len(labels))]) for at in range(cap)]
        for text in texts[:3]
    )
    return Case(query, VOTES, canary, other[:1], crowd)


def topics_case(config: RunConfig) -> Case:
    """CTCL's histogram, asked as its run asks it: all of the canary's texts are of one topic.

    With classes it has texts of each, so that a clip of every class by itself would be too long;
    its node's other user has one text.
    """
    cap, classes = config.data.samples_per_user, config[CtclConfig].classes
    words = ("alpha beta", "gamma delta", "one two", "three four", "five six")
    embedder = load_embedder(EMBEDDER)
    topics = TopicModel(
        embedder.embed(words), tuple((name,) for name in words), embedder.fingerprint
    )
    query = topic_question(topics, BOUND, samples_cap=cap)
    if classes:
        query = query.by_class(classes)
    canary, other, crowd = (
        [LabelledText(words[topic], (classes or ("",))[at % max(1, len(classes))])
         for at in range(cap)]
        for topic in range(3)
    )  # fmt: skip
    return Case(query, VOTES, canary, other[:1], crowd)


def scores_case(config: RunConfig) -> Case:
    """The canary's samples are one half of the candidates, its node's other user has the other.

    Their scores point away from each other, so a clip of the node's sum would let the canary turn
    that user's vector round. Half of the candidates at similarity 1 reach the bound, or as much of
    it as a round's candidates can. With labels the canary has samples of each, so that a clip of
    every class by itself would be too long; one sample a class where the cap leaves no more.
    """
    options, cap = config[PopriConfig], config.data.samples_per_user
    labels = split_list(options.labels)[:cap]
    most = options.prompts * options.responses // 4
    prompts = max(len(labels), 3, min(most, math.ceil(options.score_bound**2 / 2)))
    sides = ["alpha beta gamma delta", "one two three four five"]
    embedder = load_embedder(EMBEDDER)
    query = Query.scores(
        np.tile(embedder.embed(sides), (2 * prompts, 1)),
        bound=options.score_bound,
        model=embedder.fingerprint,
        score=options.score,
        samples_cap=cap,
        groups=[4] * prompts,
        classes=[labels[at % len(labels)] for at in range(prompts)] if labels else None,
        labels=labels,
        dimension=min(options.dimension, embedder.dimension - 1),
    )
    canary, other = (
        [LabelledText(side, (labels or [""])[at % max(1, len(labels))]) for at in range(cap)]
        for side in sides
    )
    return Case(query, SCORES, canary, other[: max(1, len(labels))], other)


WIDTH = 4
LAYERS = "model.layers.0.post_attention_layernorm.weight,model.norm.weight"
LONGEST = 2048  # tokens of a sequence
LARGE_STEP = 1e4  # the canary's change is this many clip norms times its gradient
SIDES = ["alpha beta gamma delta", "one two three four five"]


def update_case(config: RunConfig, users: int, folder: Path) -> Case:
    """The configured method's first question, about two layers of the small base in `folder`.

    One local step, so large that every user's change is clipped; over two layers, so that a clip
    of each layer by itself would be too long.
    """
    base = small_base(folder)
    training, strategy = config.training, training_strategy(config)
    step = min(max(1.0, LARGE_STEP * training.clip_norm), 9e5)
    local = LocalTraining(
        optimizer=training.optimizer,
        learning_rate=step,
        momentum=0.0,
        weight_decay=0.0,
        epochs=1,
        batch_size=8,
        max_steps=1,
        sequence_length=16,
        trained=LAYERS,
    )
    strategy.begin(
        initial_parameters(base, "layers", patterns=LAYERS),
        model=folder_fingerprint(base),
        rounds=config.rounds,
        users=users,
        options=dict(local.to_options()),
        noise_multiplier=privacy_plan(config).main.multiplier,
        nodes=config.nodes,
    )
    cap = config.data.samples_per_user
    canary, other = ([side] * cap for side in SIDES)
    return Case(strategy.ask(1), UPDATE, canary, other[:1], other, base)


def evaluation_case(config: RunConfig, folder: Path) -> Case:
    """Two models, one of them upside down, on as much text as counts.

    The joint clip of a run never shortens an answer, because no answer reaches its bound. Here the
    bound is 1, which the share of counted tokens reaches alone, so that the clip is looked at.
    """
    base, caps = small_base(folder), evaluation_caps(config)
    other = {
        name: -array for name, array in initial_parameters(base, "layers", patterns=LAYERS).items()
    }
    query = evaluation_query(
        {"start": {}, "final": other},
        fingerprint=folder_fingerprint(base),
        caps=replace(caps, bound=1.0),
    )
    cap = config.data.samples_per_user
    canary, crowd = ([" ".join([side] * caps.sequence_length)] * cap for side in SIDES)
    return Case(query, EVALUATION, canary, crowd[:1], crowd, base)


def small_base(folder: Path) -> Path:
    """The shipped causal model, cut, in `folder`/base; its tokenizer as it is."""
    from safetensors.numpy import load_file, save_file

    shipped, base = PACKAGE_ASSETS / "downstream", folder / "base"
    base.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(shipped / name, base / name)
    config: dict[str, Any] = json.loads((shipped / "config.json").read_text("utf-8"))
    sizes = ("hidden_size", "intermediate_size", "head_dim")
    counts = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config |= dict.fromkeys(sizes, WIDTH) | dict.fromkeys(counts, 1)
    config |= {"dtype": "float32", "max_position_embeddings": LONGEST}
    (base / "config.json").write_text(json.dumps(config), "utf-8")
    weights = load_file(shipped / "model.safetensors")
    cut = {name: _cut(name, array) for name, array in weights.items() if _in_first_layer(name)}
    save_file(cut, base / "model.safetensors", metadata={"format": "pt"})
    return base


def _in_first_layer(name: str) -> bool:
    return ".layers." not in name or ".layers.0." in name


def _cut(name: str, array: np.ndarray[Any, Any]) -> F32:
    """The first WIDTH numbers along every axis but the vocabulary's."""
    cut = [slice(WIDTH)] * array.ndim
    if "embed_tokens" in name:
        cut[0] = slice(None)
    return np.ascontiguousarray(array[tuple(cut)], dtype=np.float32)
