"""Questions about texts under audit: votes, scores and topics, by a canary of the longest
vector."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privsyn_flower.app.audit.path import EMBEDDER, Case
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.config import RunConfig, split_list
from privsyn_flower.data import LabelledText
from privsyn_flower.protocol.question import Query
from privsyn_flower.server_apps.methods import recipe_of
from privsyn_flower.strategies.ctcl.config import CtclConfig
from privsyn_flower.strategies.ctcl.strategy import BOUND
from privsyn_flower.strategies.popri.config import PopriConfig
from privsyn_flower.strategies.synthesis.topic_counts import topic_question
from privsyn_flower.text import load_embedder
from privsyn_flower.text.topics import TopicModel


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
