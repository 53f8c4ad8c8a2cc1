"""POPri's own logic and its whole loop in process: real ClientApp handlers, a toy generator whose
adapter is a distribution over words, and a toy trainer that moves it towards chosen words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.data import LabelledText
from privsyn_flower.protocol.greeting import HELLO
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.strategies import NoPairs, POPri
from privsyn_flower.strategies.engine.aggregation import PlainSum, SecureAggregation
from privsyn_flower.strategies.engine.run_ledger import open_ledger
from privsyn_flower.text.protocols import Trained
from tests.conftest import WORDS, sentences
from tests.rigs.strategies_popri import (
    PRIVATE_WORDS,
    PUBLIC,
    Killed,
    ToyGenerator,
    ToyTrainer,
    config,
    distance_to_users,
    federation,
    make,
    start,
)


def attached(method: POPri, path: Path) -> POPri:
    method.attach(RunFolder(path))
    return method


# The loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["standardised", "centred", "nearest"])
def test_three_rounds_bring_the_generator_to_the_users(
    score: str, tmp_path: Path, loopback: Any
) -> None:
    method = make(config=config(score=score), validation=sentences(200, 3, PRIVATE_WORDS))
    result = start(method, federation(tmp_path, loopback), tmp_path / "run")
    texts = [one.text for one in result.texts]
    base = [one.text for one in attached(make(), tmp_path / "base").synthesise(200)]
    assert result.rounds == 3 and len(set(texts)) == 200
    assert distance_to_users(texts) < 0.8 * distance_to_users(base)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    distances = [row["frechet_public"] for row in rows]
    assert distances[2] < distances[0]
    assert all(row["pairs"] == 30 and row["training_loss"] == 0.5 for row in rows)
    assert min(row["signal_to_noise_within"] for row in rows) > 1.0
    # Each round goes on from the adapter before, and the generator rests while it trains.
    work = tmp_path / "run" / "popri"
    adapters = [work / f"round-000{rnd}" / "epoch-2" for rnd in (1, 2, 3)]
    assert method.trainer.starts == [None, *adapters[:2]]
    assert [adapter for adapter, size in method.generator.calls if size == 240] == [
        None,
        *adapters[:2],
    ]
    assert method.generator.rests == 3
    assert method.generator.calls[-1][0] == method.adapter() == adapters[2]


def test_pure_noise_teaches_nothing(tmp_path: Path) -> None:
    """The same loop without users: what preferences of noise do to the generator."""
    method = attached(make(validation=sentences(200, 3, PRIVATE_WORDS)), tmp_path)
    rng = np.random.default_rng(0)
    for rnd in (1, 2, 3):
        query = method.ask(rnd)
        facts = method.learn(rnd, rng.normal(0, 5.0, query.length), 5.0)
        assert facts["signal_to_noise_within"] < 0.5
    base = [one.text for one in attached(make(), tmp_path / "base").synthesise(200)]
    texts = [one.text for one in method.synthesise(200)]
    assert distance_to_users(texts) > 0.95 * distance_to_users(base)


def test_central_data_is_one_sample_a_user_and_plain_aggregation(
    tmp_path: Path, loopback: Any
) -> None:
    """Appendix D.2.2: example-level privacy of a central data set."""
    grid = federation(tmp_path, loopback, users=300, each=1, nodes=1)
    options = {"users": 300, "nodes": 1, "aggregation": PlainSum()}
    method = make(config=config(score="mean-cosine"), samples_cap=1)
    result = start(method, grid, tmp_path / "run", **options)
    assert "the aggregator is trusted" in result.statement.sentence()
    page = (tmp_path / "run" / "privacy.md").read_text(encoding="utf-8")
    assert result.statement.simulated and page == result.statement.page()
    base = [one.text for one in attached(make(), tmp_path / "base").synthesise(200)]
    assert distance_to_users([t.text for t in result.texts]) < 0.9 * distance_to_users(base)


class ToyByClass(ToyGenerator):
    """Logits by prompt: without examples in it, a prompt is a class."""

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        known = json.loads((self.adapter / "logits.json").read_text()) if self.adapter else {}
        rows = []
        for prompt in prompts:
            weights = np.exp(np.array(known.get(prompt, [0.0] * len(WORDS))))
            drawn = rng.choice(WORDS, size=(n, 8), p=weights / weights.sum())
            rows.append([" ".join(words) for words in drawn])
        return rows

    def use_adapter(self, folder: Path | None) -> None:
        self.adapter = folder


class TrainerByClass(ToyTrainer):
    def train(
        self, pairs: Sequence[Mapping[str, str]], *, start: Path | None, work: Path, seed: int
    ) -> list[Trained]:
        known = json.loads((start / "logits.json").read_text()) if start else {}
        for pair in pairs:
            logits = known.setdefault(pair["prompt"], [0.0] * len(WORDS))
            for sign, side in ((1, "chosen"), (-1, "rejected")):
                for word in pair[side].split():
                    logits[WORDS.index(word)] += sign * 0.1
        work.mkdir(parents=True, exist_ok=True)
        (work / "logits.json").write_text(json.dumps(known))
        return [Trained(work, {"loss": 0.0})]


def test_each_class_learns_from_its_own_samples(tmp_path: Path, loopback: Any) -> None:
    """Algorithm 3: every user has samples of both classes, and every round is one charge."""
    topics = {"maths": WORDS[8:16], "matter": WORDS[20:28]}

    def texts(seed: int) -> list[str]:
        return [
            LabelledText(text, label)
            for label, words in topics.items()
            for text in sentences(3, seed, words)
        ]

    grid = federation(tmp_path, loopback, texts=texts)
    settings = config(examples=0, instruction="About {label}:", labels=",".join(topics))
    models = {"generator": ToyByClass(), "trainer": TrainerByClass()}
    method = make(3, prompts=[], config=settings, **models)
    result = start(method, grid, tmp_path / "run")
    share = {}
    for label, words in topics.items():
        own = [word for one in result.texts if one.label == label for word in one.text.split()]
        share[label] = np.mean([word in words for word in own])
        other = topics["matter" if label == "maths" else "maths"]
        assert share[label] > 2 * np.mean([word in other for word in own])
    assert min(share.values()) > 1.5 * 8 / len(WORDS)
    book = open_ledger(RunFolder(tmp_path / "run"))
    assert [charge.state for charge in book.charges()] == ["committed"] * 3


# Resume --------------------------------------------------------------------------------------


def killing(monkeypatch: pytest.MonkeyPatch, method: POPri, point: str) -> None:
    """Let the second round end at `point`."""

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    def second(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def wrapped(self: Any, rnd: int, *rest: Any) -> Any:
            return die() if rnd == 2 else real(self, rnd, *rest)

        monkeypatch.setattr(owner, name, wrapped)

    if point == "query written":
        count = iter(range(9))
        real = SecureAggregation.collect
        monkeypatch.setattr(
            SecureAggregation,
            "collect",
            lambda self, attempt: die() if next(count) else real(self, attempt),
        )
    elif point == "training":
        real_train = method.trainer.train

        def train(*args: Any, **options: Any) -> Any:
            method.trainer.killed = bool(method.trainer.starts)  # type: ignore[attr-defined]
            return real_train(*args, **options)

        method.trainer.train = train  # type: ignore[method-assign]
    else:
        owners = {"texts written": "save_query", "learned": "save_checkpoint"}
        if point == "released":
            second(POPri, "learn")
        else:
            second(RunFolder, owners[point])


@pytest.mark.parametrize(
    "point", ["texts written", "query written", "released", "training", "learned"]
)
def test_a_killed_run_goes_on_without_generating_or_asking_again(
    point: str, tmp_path: Path, loopback: Any
) -> None:
    grid = federation(tmp_path, loopback, users=20)
    options = {"users": 60, "samples": 20}
    first = make(2)
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, first, point)
        with pytest.raises(Killed):
            start(first, grid, tmp_path / "run", **options)
    run = RunFolder(tmp_path / "run")
    written = (run.path / "popri" / "round-0002.json").read_bytes()
    query, released = run.load_query(2), run.load_release(2)
    sent = len(grid.sent)
    again = make(2)
    result = start(again, grid, tmp_path / "run", **options)
    assert result.rounds == 2
    assert (run.path / "popri" / "round-0002.json").read_bytes() == written
    assert [size for _, size in again.generator.calls if size == 240] == []
    trained = [] if point == "learned" else [run.path / "popri" / "round-0001" / "epoch-2"]
    assert again.trainer.starts == trained
    if point == "training":
        assert again.trainer.pairs == first.trainer.pairs[1:]
        assert again.trainer.seeds == first.trainer.seeds[1:]
    if query is not None:
        asked = run.load_query(2)
        assert asked is not None and np.array_equal(asked.rows, query.rows)
    if released is not None:
        assert np.array_equal(run.load_release(2), released)
        assert len(grid.sent) == sent
    # A finished run is only read.
    third = make(2)
    assert start(third, grid, tmp_path / "run", **options).texts == result.texts
    assert third.generator.calls == [] and third.state() == again.state()


def test_state_is_json_and_moves_with_the_folder(tmp_path: Path) -> None:
    method = attached(make(2, validation=PUBLIC), tmp_path / "a")
    query = method.ask(1)
    method.learn(1, np.random.default_rng(0).normal(size=query.length), 0.1)
    state = json.loads(json.dumps(method.state()))
    assert str(tmp_path) not in json.dumps(state)
    (tmp_path / "a").rename(tmp_path / "b")
    moved = attached(make(2, validation=PUBLIC), tmp_path / "b")
    moved.restore(state)
    assert moved.state() == method.state()
    assert moved.adapter() == tmp_path / "b" / "popri" / "round-0001" / "epoch-2"
    assert moved.ask(2).length and moved.generator.adapter == moved.adapter(1)


def test_files_of_another_run_are_noticed(tmp_path: Path) -> None:
    method = attached(make(), tmp_path)
    with pytest.raises(ValueError, match=r"are not\s+those of this run"):
        method.learn(1, np.zeros(method.ask(1).length - 1), 1.0)
    with pytest.raises(RuntimeError, match="attach"):
        make().ask(1)


# Questions and pairs -------------------------------------------------------------------------


class Fixed(ToyGenerator):
    """The same responses to every prompt."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts = texts

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        self.calls.append((self.adapter, len(prompts) * n))
        return [list(self.texts[:n]) for _ in prompts]


FOUR = config(prompts=2, responses=4, rejected_rank=2)


def test_what_is_asked_is_distinct_usable_and_cut(tmp_path: Path) -> None:
    texts = "a b c d e f\nOriginal Text Sample 5", "too short", "a b c d g", "v w x y"
    method = attached(make(generator=Fixed(*texts), config=FOUR, max_words=4), tmp_path)
    query = method.ask(1)
    rows = method.embedder.embed(["a b c d", "v w x y"] * 2)
    assert np.abs(query.question() - rows).max() < 0.01
    assert (query.kind, query.options["score"], query.options["samples-cap"]) == (
        "scores",
        "standardised",
        8,
    )
    assert query.extra["groups"].tolist() == [2, 2] and query.model == method.embedder.fingerprint
    facts = method.learn(1, np.array([1.0, 2.0, 2.0, 1.0]), 0.5)
    # In the second prompt the first two places are one text, so there is nothing to prefer.
    assert [(p["chosen"], p["rejected"]) for p in method.trainer.pairs[0]] == [
        ("v w x y", "a b c d")
    ]
    assert (facts["pairs"], facts["pairs_identical"], facts["prompts_asked"]) == (1, 1, 2)
    assert facts["preference_margin"] == 2.0
    assert method.seeds == ["v w x y"]


def test_a_round_without_pairs_leaves_the_generator_as_it_is(tmp_path: Path) -> None:
    texts = "a b c d", "a b c d", "a b c d", "v w x y"
    method = attached(make(generator=Fixed(*texts), config=FOUR), tmp_path)
    method.ask(1)
    with pytest.raises(NoPairs, match=r"round 1.*popri\.responses"):
        method.learn(1, np.array([2.0, 1.0, 2.0, 1.0]), 0.5)
    method.ask(2)  # as a comparison may do, which goes on whatever happens
    method.learn(2, np.array([1.0, 2.0, 1.0, 2.0]), 0.5)
    seeds = list(method.seeds)
    method.ask(3)
    facts = method.learn(3, np.array([2.0, 1.0, 2.0, 1.0]), 0.5)
    assert facts["pairs"] == 0 and len(method.trainer.pairs) == 1
    assert [adapter for _, adapter in method.candidates()] == [None, *[method.adapter(2)] * 2]
    assert method.adapter(2) is not None and method.seeds == seeds


def test_nothing_to_compare_is_not_asked(tmp_path: Path, loopback: Any) -> None:
    grid = federation(tmp_path, loopback, users=4, nodes=3)
    options = {"users": 12, "samples": 1}
    method = make(2, generator=Fixed(*["a b c d"] * 4), config=FOUR)
    with pytest.raises(NoPairs, match="round 1"):
        start(method, grid, tmp_path / "one", **options)
    assert not [m for m in grid.sent if m.metadata.message_type != HELLO]

    class Collapsing(Fixed):
        def use_adapter(self, folder: Path | None) -> None:
            super().use_adapter(folder)
            self.texts = (
                ("a b c d",) * 4 if folder else ("a b c d", "e f g h", "i j k l", "m n o p")
            )

    method = make(3, generator=Collapsing(), config=FOUR)
    assert start(method, grid, tmp_path / "two", **options).rounds == 1


def test_classes_share_one_question_in_equal_numbers(tmp_path: Path) -> None:
    labels = ["good", "bad", "odd"]
    settings = config(prompts=12, examples=0, instruction="A {label} one:", labels="good, bad,odd")
    method = attached(make(prompts=[], config=settings), tmp_path)
    query = method.ask(1)
    assert json.loads(str(query.options["labels"])) == labels
    assert Counter(query.extra["classes"].tolist()) == {0: 4, 1: 4, 2: 4}
    assert query.extra["groups"].tolist() == [8] * 12 and query.length == 96
    asked = json.loads((tmp_path / "popri" / "round-0001.json").read_text())["prompts"]
    assert [labels[i] for i in query.extra["classes"]] == [prompt["label"] for prompt in asked]
    method.learn(1, np.random.default_rng(0).normal(size=96), 1.0)
    prompts = Counter(pair["prompt"] for pair in method.trainer.pairs[0])
    assert prompts == {f"A {label} one:": 4 for label in labels}
    assert {one.label for one in method.synthesise(30)} == set(labels)


def test_a_pool_by_class_is_shown_by_class(tmp_path: Path) -> None:
    pool = {"a": PUBLIC[:30], "b": PUBLIC[30:]}
    method = attached(make(prompts=pool), tmp_path)
    assert json.loads(str(method.ask(1).options["labels"])) == ["a", "b"]


def test_synthetic_texts_repeat_no_public_example(tmp_path: Path) -> None:
    texts = [PUBLIC[3], "v w x y z"]

    class Copying(Fixed):
        def complete(
            self, prompts: Sequence[str], n: int, rng: np.random.Generator
        ) -> list[list[str]]:
            return [[texts[i % 2]] for i, _ in enumerate(prompts)]

    method = attached(make(generator=Copying(), max_words=4), tmp_path)
    method.prompts.shown = frozenset({" ".join(PUBLIC[3].split()[:4])})  # type: ignore[misc]
    assert [one.text for one in method.synthesise(1)] == ["v w x y"]


# Checkpoints and selection -------------------------------------------------------------------


class Walking(ToyGenerator):
    """An adapter's texts are its own name: distances can tell the epochs apart."""

    def complete(self, prompts: Sequence[str], n: int, rng: np.random.Generator) -> list[list[str]]:
        self.calls.append((self.adapter, len(prompts) * n))
        name = f"{self.adapter.parent.name} {self.adapter.name}" if self.adapter else "base"
        return [[f"{name} text {i} {j}" for j in range(n)] for i, _ in enumerate(prompts)]


def play(method: POPri, rounds: int) -> None:
    for rnd in range(1, rounds + 1):
        method.learn(rnd, np.random.default_rng(rnd).normal(size=method.ask(rnd).length), 1.0)


@pytest.mark.parametrize("epoch", [1, 2])
def test_the_epoch_nearest_to_public_validation_text_is_kept(epoch: int, tmp_path: Path) -> None:
    wanted = [f"round-0001 epoch-{epoch} text {i} 0" for i in range(50)]
    method = make(config=config(checkpoint="public"), validation=wanted, generator=Walking())
    play(attached(method, tmp_path), 1)
    assert method.adapter() == tmp_path / "popri" / "round-0001" / f"epoch-{epoch}"
    # Both epochs were compared on the same prompts, as many texts each.
    assert [size for adapter, size in method.generator.calls if adapter] == [100, 100]
    far = method.checkpoints.public_distance(
        [f"round-0001 epoch-{3 - epoch} text {i} 0" for i in range(100)]
    )
    assert method.distances[0] is not None and method.distances[0] < far


def test_private_text_chooses_only_where_a_benchmark_lets_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="benchmark = true"):
        make(config=config(checkpoint="private"))
    for choice in ("last", "public"):
        with pytest.raises(ValueError, match="benchmark = true"):
            make(config=config(checkpoint=choice), validation=PUBLIC, private_distance=len)
    method = make(
        config=config(checkpoint="private"),
        generator=Walking(),
        private_distance=lambda texts: float("epoch-1" not in texts[0]),
    )
    play(attached(method, tmp_path), 1)
    assert method.adapter() == tmp_path / "popri" / "round-0001" / "epoch-1"
    assert method.distances == [None]
    with pytest.raises(ValueError, match="does not cover"):  # no epsilon is stated for such a run
        method.start(None, folder=tmp_path, users=9, epsilon=1.0, delta=1e-5)


def test_private_text_chooses_the_round_too(tmp_path: Path) -> None:
    """Section 5 and Figure 8: the round of the best validation."""
    near = {"round-0001": 3.0, "round-0002": 1.0, "round-0003": 2.0}
    chosen = {"checkpoint": "private", "select": "private"}
    method = make(
        config=config(**chosen),
        validation=[f"round-0001 epoch-1 text {i} 0" for i in range(50)],  # the public choice
        generator=Walking(),
        private_distance=lambda texts: near[texts[0].split()[0]] + ("epoch-1" in texts[0]),
    )
    play(attached(method, tmp_path), 3)
    assert method.distances == [3.0, 1.0, 2.0] and method.selected_round() == 2
    assert method.adapter() == tmp_path / "popri" / "round-0002" / "epoch-2"
    again = attached(make(config=config(**chosen), private_distance=len), tmp_path)
    again.restore(method.state())
    assert again.selected_round() == 2


def test_the_round_that_writes_the_result(tmp_path: Path) -> None:
    wanted = [f"round-0002 epoch-2 text {i} 0" for i in range(50)]
    method = make(config=config(select="public"), validation=wanted, generator=Walking())
    assert method.adapter() is None
    play(attached(method, tmp_path), 3)
    assert method.selected_round() == 2
    folder = tmp_path / "popri"
    listed = [(rnd, folder / f"round-000{rnd}" / "epoch-2") for rnd in (1, 2, 3)]
    assert method.candidates() == listed and method.adapter() == listed[1][1]
    last = make(validation=wanted, generator=Walking())
    play(attached(last, tmp_path / "last"), 2)
    assert last.selected_round() == 2


def test_a_round_chosen_from_outside(tmp_path: Path, loopback: Any) -> None:
    method = attached(make(config=config(select="federated")), tmp_path)
    play(method, 2)
    with pytest.raises(RuntimeError, match="no round was chosen"):
        method.adapter()
    method.choose(1)
    assert method.adapter() == method.candidates()[0][1] == method.adapter(1)
    method.choose(0)
    assert method.adapter() is None
    with pytest.raises(ValueError, match=r"round 3: must lie in \[0, 2\]"):
        method.choose(3)
    with pytest.raises(ValueError, match="needs a whole run"):
        start(method, loopback({}), tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rejected_rank": 9}, r"popri\.rejected-rank = 9 is above popri\.responses = 8"),
        ({"score": "nearest", "dimension": 8}, "takes neither"),
        ({"select": "public"}, r"popri\.select = 'public' needs"),
        ({"checkpoint": "public"}, r"popri\.checkpoint = 'public' needs"),
        ({"labels": "a,b"}, r"popri\.labels"),
        ({"examples": 0}, r"popri\.examples = 0 needs popri\.instruction"),
        ({"examples": 61}, r"popri\.examples"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(config=config(**options))
