"""What several tests share about popri."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privsyn_flower.client_apps.answers import guarded, reply
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.config import PopriConfig
from privsyn_flower.evaluation.metrics import frechet_distance
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.strategies import POPri
from privsyn_flower.text import load_embedder
from privsyn_flower.text.protocols import Trained
from tests.conftest import WORDS, node_context, sentences

PUBLIC = sentences(60, 0)


PRIVATE_WORDS = WORDS[8:16]  # what users write about: a part of what the generator knows


EMBEDDER = "ngram-64"


class ToyGenerator:
    """Eight words from a softmax over WORDS; an adapter is a file of logits."""

    def __init__(self) -> None:
        self.logits = np.zeros(len(WORDS))
        self.adapter: Path | None = None
        self.calls: list[tuple[Path | None, int]] = []
        self.rests = 0

    def use_adapter(self, folder: Path | None) -> None:
        self.adapter = folder
        self.logits = np.zeros(len(WORDS))
        if folder is not None:
            self.logits = np.array(json.loads((folder / "logits.json").read_text()))

    def rest(self) -> None:
        self.rests += 1

    def close(self) -> None: ...

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        self.calls.append((self.adapter, len(prompts) * n))
        weights = np.exp(self.logits - self.logits.max())
        drawn = rng.choice(len(WORDS), size=(len(prompts), n, 8), p=weights / weights.sum())
        return [[" ".join(WORDS[i] for i in words) for words in row] for row in drawn]


class ToyTrainer:
    """Logits go up by the share of a word in chosen texts and down by that in rejected ones."""

    def __init__(self, rate: float = 0.2) -> None:
        self.rate = rate
        self.starts: list[Path | None] = []
        self.pairs: list[list[Mapping[str, str]]] = []
        self.seeds: list[int] = []
        self.killed = False

    def train(
        self, pairs: Sequence[Mapping[str, str]], *, start: Path | None, work: Path, seed: int
    ) -> list[Trained]:
        self.starts.append(start)
        self.pairs.append(list(pairs))
        self.seeds.append(seed)
        logits = np.zeros(len(WORDS))
        if start is not None:
            logits = np.array(json.loads((start / "logits.json").read_text()))
        done = []
        for epoch in (1, 2):
            for sign, side in ((1, "chosen"), (-1, "rejected")):
                words = Counter(word for pair in pairs for word in pair[side].split())
                counts = np.array([words[word] for word in WORDS])
                logits = logits + sign * self.rate * len(WORDS) * counts / max(counts.sum(), 1)
            folder = work / f"epoch-{epoch}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "logits.json").write_text(json.dumps(logits.tolist()))
            done.append(Trained(folder, {"loss": 1.0 / epoch}))
            if self.killed:
                raise Killed
        return done


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


def config(**options: Any) -> PopriConfig:
    small = {"prompts": 30, "responses": 8, "rejected_rank": 5, "select_samples": 100}
    return PopriConfig(**{**small, **options})


def make(rounds: int = 3, *, prompts: Any = PUBLIC, **options: Any) -> POPri:
    settings = {"config": config(), "generator": ToyGenerator(), "trainer": ToyTrainer()}
    embedder = load_embedder(EMBEDDER, "cpu")
    return POPri(prompts, embedder=embedder, rounds=rounds, **{**settings, **options})


def federation(
    tmp_path: Path,
    loopback: Any,
    users: int = 40,
    each: int = 3,
    nodes: int = 3,
    weight: int | None = None,
    texts: Callable[[int], list[str]] | None = None,
) -> Any:
    """A grid of nodes whose users write about PRIVATE_WORDS, with the real handlers."""

    def node(number: int) -> Any:
        context = node_context({}, node_id=number)
        lines = sentences(users * each, 100 + number, PRIVATE_WORDS)
        own = {
            f"{number}-{user}": texts(number * users + user)
            if texts
            else lines[user * each : (user + 1) * each]
            for user in range(users)
        }
        facts = Hello(weight or users, number, deployed=False)
        cache = tmp_path / f"node-{number}"
        itself = Node(facts, cache, EMBEDDER, "cpu", None, None, lambda: own)

        def handle(message: Any) -> Any:
            if message.metadata.message_type == HELLO:
                return answer_hello(message, facts)
            kind = {"query.scores": SCORES, "query.votes": VOTES}[message.metadata.message_type]
            return guarded(message, lambda: reply(message, context, itself, kind))

        return handle

    return loopback({number: node(number) for number in range(1, nodes + 1)})


def start(method: POPri, grid: Any, folder: Path, **options: Any) -> Any:
    settings = {"users": 120, "nodes": 3, "epsilon": 10.0, "delta": 1e-5, "samples": 200}
    return method.start(grid, folder=folder, **{**settings, **options})


def distance_to_users(texts: Sequence[str]) -> float:
    embedder = load_embedder(EMBEDDER, "cpu")
    held_out = embedder.embed(sentences(400, 7, PRIVATE_WORDS))
    return frechet_distance(embedder.embed(list(texts)), held_out)
