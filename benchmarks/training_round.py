"""A training round under secure aggregation: how much of its time is not local training.

    python benchmarks/training_round.py [--users 96] [--nodes 8] [--texts 8] [--model FOLDER]
                                       [--width 192] [--topics 0]

The server, eight nodes and the secure sum in one process, without Flower's transport: greeting,
five stages, the nodes' own training, clipping, rotation, rounding and noise, masks, release,
server step. The embedded language model, once with all its parameters and once with low-rank
factors. A round of 1,000 users is what this one's users scale up to; the noise and masks of the
eight nodes do not grow with them. Goals: at most 60 % outside local training for the full model,
at most 30 % for low-rank factors; with topics, CTCL's rounds, at most 40 % for either: each user's
texts are then learned from the keywords of their topics, which are found from cached embeddings.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from local_training import EMBEDDED, RANK, chosen, made_up

from privsyn_flower.client_apps import updates
from privsyn_flower.client_apps.answers import guarded, reply
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.config import AveragingConfig, CtclConfig, TrainingConfig
from privsyn_flower.privacy import Ledger, calibrate
from privsyn_flower.privacy.encoding.sizing import distance_each
from privsyn_flower.privacy.ledger.usage import exclusive
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.protocol.greeting import Hello, answer_hello, is_hello
from privsyn_flower.protocol.messaging import in_process
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import CTCL, DPFedAvg
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.rounds import Rounds
from privsyn_flower.text import load_embedder
from privsyn_flower.text.fingerprints import folder_fingerprint
from privsyn_flower.text.topics import TopicModel
from privsyn_flower.text.words import words_of
from privsyn_flower.training import LocalTraining
from privsyn_flower.training.low_rank import initial_parameters, trained_patterns
from privsyn_flower.training.models import LoadedLM

EPSILON, DELTA, RELEASES = 7.58, 3e-6, 9
EMBEDDER = "minilm"


class Seconds(NamedTuple):
    """Wall-clock and processor seconds."""

    wall: float
    cpu: float

    def __add__(self, other: Any) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)


def now() -> Seconds:
    return Seconds(time.perf_counter(), time.process_time())


class Loopback:
    """A grid whose nodes are functions message -> reply."""

    def __init__(self, nodes: dict[int, Callable[[Message], Message]]) -> None:
        self.nodes, self.replies = nodes, cast(dict[str, Message], {})

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in (sent := list(messages)):
            answer = self.nodes[message.metadata.dst_node_id](message)
            self.replies[message.metadata.message_id] = answer
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(key) for key in list(message_ids) if key in self.replies]


def handler(node: Node) -> Callable[[Message], Message]:
    """What a node's ClientApp does with a message."""
    name = node.facts.partition + 1
    context = Context(run_id=0, node_id=name, node_config={}, state=RecordDict(), run_config={})

    def handle(message: Message) -> Message:
        if is_hello(message):
            return answer_hello(message, node.facts)
        return guarded(message, lambda: reply(message, context, node, updates.UPDATE))

    return handle


def grid(users: dict[str, list[str]], nodes: int, model: Path, caches: Path) -> Loopback:
    """Nodes of equal numbers of users. caches: where theirs are."""
    names, found = list(users), {}
    for at in range(nodes):
        own = {name: users[name] for name in names[at::nodes]}
        node = Node(
            facts=Hello(len(own), at, deployed=False), cache=caches / f"node-{at}",
            embedder=EMBEDDER, device="cpu", policy=None, noise_seed=None, load=lambda own=own: own,
            downstream=lambda: model,
        )  # fmt: skip
        found[at + 1] = handler(node)
    return Loopback(found)


def topics_of(count: int) -> TopicModel:
    """As many topics of made-up texts, ten words each."""
    embedder = load_embedder(EMBEDDER, "cpu", progress=False)
    texts = [own[0] for own in made_up(count, 1).values()]
    words = tuple(tuple(dict.fromkeys(words_of(text)))[:10] or ("text",) for text in texts)
    return TopicModel(embedder.embed(texts), words, embedder.fingerprint)


def conditional(kind: Any, users: int, topics: TopicModel, model: Path, noise: float) -> CTCL:
    """The same training, of pairs."""
    training = TrainingConfig(
        clip_norm=0.5, parameters=kind, lora_rank=RANK, lora_factors="up", max_steps=100
    )
    config = CtclConfig(max_source=64)
    strategy = CTCL(topics, model, rounds=1, config=config, training=training)
    strategy.begin(users=users, noise_multiplier=noise)
    return strategy


def plain(kind: Any, users: int, model: Path, noise: float) -> DPFedAvg:
    """The training of texts by themselves."""
    patterns = trained_patterns(model, kind, factors="up")
    options = LocalTraining(
        "sgd",
        0.1,
        0.0,
        0.0,
        epochs=1,
        batch_size=4,
        max_steps=100,
        sequence_length=64,
        trained=patterns,
    )
    strategy = DPFedAvg(AveragingConfig(clip_norm=0.5))
    strategy.begin(
        initial_parameters(model, kind, rank=RANK, factors="up"), model=folder_fingerprint(model),
        rounds=1, users=users, options=options.to_options(), noise_multiplier=noise,
    )  # fmt: skip
    return strategy


def round_of(
    kind: Any,
    users: dict[str, list[str]],
    nodes: int,
    model: Path,
    caches: Path,
    topics: TopicModel | None,
) -> tuple[Seconds, Seconds, dict[str, Any]]:
    """Wall and CPU seconds of a round, those of local training among them, and its facts.

    The first call loads the model, and later ones find it loaded.
    """
    with tempfile.TemporaryDirectory() as name:
        return _round_of(kind, users, nodes, model, caches, topics, Path(name))


def _round_of(
    kind: Any,
    users: dict[str, list[str]],
    nodes: int,
    model: Path,
    caches: Path,
    topics: TopicModel | None,
    folder: Path,
) -> tuple[Seconds, Seconds, dict[str, Any]]:
    noise, run = calibrate(EPSILON, RELEASES, gaussian_delta(DELTA)), RunFolder(folder / "run")
    strategy: Any = (
        conditional(kind, len(users), topics, model, noise)
        if topics
        else plain(kind, len(users), model, noise)
    )
    strategy.attach(run)
    plan = RoundPlan(
        folder.name, len(users), noise, nodes=nodes, greetings=("train",),
        distance=distance_each(EPSILON, DELTA, RELEASES),
    )  # fmt: skip
    book = Ledger.open(
        folder / "ledger.jsonl", population="benchmark", total_epsilon=EPSILON, total_delta=DELTA
    )
    spent, real = Seconds(0.0, 0.0), LoadedLM.train

    def watched(self: LoadedLM, *args: Any) -> Any:
        nonlocal spent
        start = now()
        try:
            return real(self, *args)
        finally:
            spent += now() - start

    engine = Rounds(cast(Grid, grid(users, nodes, model, caches)), strategy, plan, run, book)
    LoadedLM.train = watched  # type: ignore[method-assign]
    start = now()
    try:
        with in_process(), exclusive(book):
            engine.run()
    finally:
        LoadedLM.train = real  # type: ignore[method-assign]
    return now() - start, spent, run.metrics()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=96)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--model", type=Path, default=EMBEDDED, help="a causal LM's folder")
    parser.add_argument("--width", type=int, default=0, help="the same with this hidden size")
    parser.add_argument("--topics", type=int, default=0, help="CTCL's rounds, with so many")
    options = parser.parse_args()
    users = made_up(options.users, options.texts)
    topics = topics_of(options.topics) if options.topics else None
    goals = {"full": 0.4, "lora": 0.4} if topics else {"full": 0.6, "lora": 0.3}
    with chosen(options) as model, tempfile.TemporaryDirectory() as caches:
        for kind, goal in goals.items():
            warm = dict(list(users.items())[: 2 * options.nodes])
            for group in (users if topics else warm, users):  # the first embeds, and loads
                whole, training, facts = round_of(
                    kind, group, options.nodes, model, Path(caches), topics
                )
            print(
                f"{kind}: {len(users)} users on {options.nodes} nodes: {whole.wall:.0f} s, CPU "
                f"{whole.cpu:.0f} s, {1000 * whole.cpu / len(users):.0f} ms a user; outside local "
                f"training {1 - training.wall / whole.wall:.0%} of the time, "
                f"{1 - training.cpu / whole.cpu:.0%} of the CPU's (goal: at most {goal:.0%}); "
                f"bytes per node: down {facts['bytes_down_per_node']:,}  up "
                f"{facts['bytes_up_per_node']:,}",
                flush=True,
            )


if __name__ == "__main__":
    main()
