"""The score handler: exact scores plus noise, labels by class, refusals, and nothing private."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps.answers import Participants, guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.main import app
from privsyn_flower.client_apps.node.device import Node, open_node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.data import LabelledText, label_of
from privsyn_flower.privacy.encoding.quantize import decode
from privsyn_flower.privacy.release import TooFewSurvivors
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.protocol.noise import Noise, integer_plan
from privsyn_flower.protocol.question import Query, Ticket
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.queries import similarity_scores
from privsyn_flower.strategies.engine.aggregation import Attempt, PlainSum, SecureAggregation
from tests.conftest import node_context, sentences
from tests.rigs.scores import EMBEDDER, embed, question

TICKET = Ticket("run", "scores", 1, 1)
NOISE = Noise(1e-6, 2.0**26, 32, 15.0)  # hardly any, and yet many integers
CANARY = "zyzzyva quixotic diary of user three"
LABELS = ["news", "mail"]
USERS = {
    i: {
        f"u{i}-{j}": [
            LabelledText(text, LABELS[n % 2]) for n, text in enumerate(sentences(3, 10 * i + j))
        ]
        for j in range(5)
    }
    for i in range(4)
}
USERS[1]["u1-3"][0] = LabelledText(CANARY, "mail")


class Device:
    """A node of five users behind the real handler."""

    def __init__(self, folder: Path, index: int, policy: Policy | None = None) -> None:
        self.context = node_context({}, node_id=100 + index)
        self.node = Node(
            facts=Hello(5, index, deployed=policy is not None),
            cache=folder / f"node-{index}",
            embedder=EMBEDDER,
            device="cpu",
            policy=policy,
            noise_seed=None,
            load=lambda: USERS[index],
        )

    def __call__(self, message: Any) -> Any:
        if message.metadata.message_type == HELLO:
            return answer_hello(message, self.node.facts)
        return guarded(message, lambda: answered(message, self.context, self.node, SCORES))


def collect(
    grid: Any, query: Query, aggregation: Any = SecureAggregation, noise: Noise = NOISE
) -> Any:
    attempt = Attempt(
        grid,
        {100 + i: Hello(5, i, deployed=False) for i in range(4)},
        query,
        TICKET,
        noise,
        timeout=0.5,
        stage_timeout=0.5,
        arrived=lambda n, of: None,
        revealing=lambda: None,
    )
    return aggregation().collect(attempt).total.decoded(noise.multiplier).vector


def expected(query: Query, kinds: bool = False) -> Any:
    """Each user alone, standardised by class, one clip for all of it."""
    want = np.zeros(12)
    classes = np.repeat(query.extra["classes"], query.extra["groups"]) if kinds else np.zeros(12)
    for users in USERS.values():
        for texts in users.values():
            vector = np.zeros(12)
            for number in np.unique(classes):
                block = classes == number
                own = [t for t in texts if not kinds or t.label == LABELS[int(number)]]
                vector[block] = similarity_scores(embed(own), query.question()[block])
            want += vector / np.linalg.norm(vector)
    return want


@pytest.mark.parametrize("aggregation", [SecureAggregation, PlainSum])
@pytest.mark.parametrize("kinds", [False, True])
def test_the_sum_of_users_scores_and_no_private_text(
    tmp_path: Path, loopback: Any, aggregation: Any, kinds: bool, caplog: Any, capfd: Any
) -> None:
    query = question(classes=["news", "mail", "news"], labels=LABELS) if kinds else question()
    grid = loopback({100 + i: Device(tmp_path, i) for i in range(4)})
    got = collect(grid, query, aggregation)
    assert np.allclose(got, expected(query, kinds), atol=20 * 0.004)
    assert len(grid.received) >= 4
    text = "".join([caplog.text, *capfd.readouterr()]).encode()
    rows = embed([CANARY])
    for message in grid.received:
        sent = pickle.dumps(
            [
                {name: dict(record) for name, record in message.content.items()},
                vars(message.metadata),
            ]
        )
        for secret in (
            "zyzzyva",
            "quixotic",
            "u1-3",
            "mail",
            rows.tobytes(),
            rows[0, :4].tobytes(),
        ):
            needle = secret if isinstance(secret, bytes) else secret.encode()
            assert needle not in sent + text
    # The same canary would have been found, had the server been sent it.
    assert b"zyzzyva" in pickle.dumps({"answer": CANARY})


@pytest.mark.parametrize("score", ["centred", "mean-cosine"])
@pytest.mark.parametrize("dimension", [0, 40])
def test_every_kind_of_score_stays_within_the_bound(
    tmp_path: Path, loopback: Any, score: str, dimension: int
) -> None:
    """One user takes part, then none: what it changes has at most the bound's norm."""
    query = question(score=score, dimension=dimension, bound=0.5)
    plan = integer_plan(query, NOISE)
    device = Device(tmp_path, 0)
    everybody = np.ones(5, bool)
    total = SCORES.vectors(query, USERS[0], Participants(everybody, everybody), plan, device.node)
    changes = []
    for user in range(5):
        sampled = Participants(everybody, np.arange(5) != user)
        others = SCORES.vectors(query, USERS[0], sampled, plan, device.node)
        changes.append(total - others)
        assert 0 < changes[-1] @ changes[-1] <= NOISE.sensitivity**2
    assert np.array_equal(np.sum(changes, axis=0), total)


def test_a_projected_question_ranks_as_the_whole_one(tmp_path: Path, loopback: Any) -> None:
    device = Device(tmp_path, 2)
    sums, everybody = [], Participants(np.ones(5, bool), np.ones(5, bool))
    for dimension in (0, 12):  # 12 candidates have no more directions
        query = question(dimension=dimension)
        plan = integer_plan(query, NOISE)
        sums.append(
            decode(
                SCORES.vectors(query, USERS[2], everybody, plan, device.node).astype(np.uint64),
                plan,
            )
        )
    assert np.abs(sums[0]).max() > 0.5
    np.testing.assert_allclose(sums[1], sums[0], atol=0.12)
    assert np.array_equal(np.argsort(sums[0])[-3:], np.argsort(sums[1])[-3:])


def changed(query: Query, **extra: Any) -> Query:
    return replace(query, extra={**query.extra, **extra})


def hostile() -> dict[str, Query]:
    plain = question()
    kinds = question(classes=["news", "mail", "news"], labels=LABELS)
    small = question(dimension=8)
    projection = small.extra["projection"]
    infinite = projection.copy()
    infinite[0, 0] = np.inf

    def option(query: Query, **options: Any) -> Query:
        named = {key.replace("_", "-"): value for key, value in options.items()}
        return replace(query, options={**query.options, **named})

    return {
        "score": option(plain, score="nearest"),
        "cap 0": option(plain, samples_cap=0),
        "cap text": option(plain, samples_cap="8"),
        "cap bool": option(plain, samples_cap=True),
        "dimension": option(plain, dimension=-1),
        "labels no json": option(kinds, labels="["),
        "labels empty": option(kinds, labels="[]"),
        "labels twice": option(kinds, labels=json.dumps(["a", "a"])),
        "labels numbers": option(kinds, labels="[1, 2]"),
        "labels deep": option(kinds, labels="[" * 100_000),
        "labels one": option(kinds, labels='["news"]'),
        "labels missing": replace(plain, extra=kinds.extra),
        "classes missing": replace(kinds, extra=plain.extra),
        "classes short": changed(kinds, classes=kinds.extra["classes"][:2]),
        "classes signed": changed(kinds, classes=np.array([0, -1, 0])),
        "narrow": replace(plain, rows=np.ascontiguousarray(plain.rows[:, :32])),
        "projection narrow": changed(small, projection=projection[:32]),
        "groups sum": changed(plain, groups=np.array([5, 4, 2], np.uint16)),
        "groups zero": changed(plain, groups=np.array([5, 0, 7], np.uint16)),
        "groups float": changed(plain, groups=np.array([5.0, 4.0, 3.0])),
        "groups matrix": changed(plain, groups=np.array([[5, 4, 3]], np.uint16)),
        "groups none": changed(plain, groups=np.zeros(0, np.uint16)),
        "unknown array": changed(plain, more=np.zeros(1)),
        "projection missing": replace(small, extra=plain.extra),
        "projection wide": changed(small, projection=projection[:, :7]),
        "projection float64": changed(small, projection=projection.astype(float)),
        "projection infinite": changed(small, projection=infinite),
        "projection flat": changed(small, projection=projection[0]),
        "scales": replace(plain, scales=plain.scales * np.float32(1e38)),
        "rows": replace(plain, length=11),
        "no rows": replace(plain, rows=plain.rows[:0], scales=plain.scales[:0]),
        "model": replace(plain, model="another"),
    }


@pytest.mark.parametrize("name", list(hostile()))
def test_malformed_questions_are_refused_before_private_text_is_opened(
    tmp_path: Path, loopback: Any, name: str
) -> None:
    query = hostile()[name]
    device = Device(tmp_path, 0)

    def private() -> Any:
        pytest.fail("private text was opened for a question that must be refused")

    object.__setattr__(device.node, "load", private)
    reply = device(wire.ask(query, TICKET, NOISE, 100, 5, 60.0))
    with pytest.raises(wire.WireError) as caught:
        wire.read_answer(reply, TICKET, query.length, 32)
    model = Refusal.EMBEDDER if name == "model" else Refusal.MALFORMED
    assert caught.value.code is model


def test_a_policy_without_scores_refuses(tmp_path: Path, loopback: Any, caplog: Any) -> None:
    noise = Noise(1.5, 4096.0, 32, 15.0)
    assert Policy().queries == ("votes", "scores")
    for kinds, answers in ((("votes", "scores"), True), (("votes",), False)):
        policy = Policy(min_noise_multiplier=1.0, queries=kinds)
        grid = loopback({100 + i: Device(tmp_path / str(answers), i, policy) for i in range(4)})
        if answers:
            assert collect(grid, question(), noise=noise).shape == (12,)
            continue
        with pytest.raises(TooFewSurvivors):
            collect(grid, question(), noise=noise)
        assert "query kind 'scores'" in caplog.text
        heads = [dict(m.content.config_records["secagg"]) for m in grid.received]
        assert {head["code"] for head in heads} == {"policy"}


def test_users_whose_texts_cannot_be_embedded_shift_nobodys_labels(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing user comes first, so labels by row would slip by its texts."""
    from privsyn_flower.text import embedders

    class Failing:
        def embed(self, texts: Any) -> Any:
            if any("broken" in text for text in texts):
                raise ValueError("broken diary")
            return embed(texts)

    monkeypatch.setattr(embedders, "load_embedder", lambda *a, **k: Failing())
    query = question(classes=["news", "mail", "news"], labels=LABELS)
    plan, device = integer_plan(query, NOISE), Device(tmp_path, 0)
    users = {"first": [LabelledText("broken", "mail"), LabelledText("two", "news")], **USERS[0]}
    six, five = (Participants(np.ones(n, bool), np.ones(n, bool)) for n in (6, 5))
    with_failing = SCORES.vectors(query, users, six, plan, device.node)
    without = SCORES.vectors(query, USERS[0], five, plan, device.node)
    assert np.array_equal(with_failing, without) and without.any()


def test_labels_reach_a_deployed_and_a_simulated_node(tmp_path: Path, loopback: Any) -> None:
    data = tmp_path / "users.jsonl"
    rows = [
        {"user_id": f"u{user}", "text": f"{text} of user {user}", "kind": kind}
        for user in range(6)
        for text, kind in (("a short note", "news"), ("another longer note", 3))
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {"data": str(data), "weight": 6, "cache": str(tmp_path), "embedder": EMBEDDER}
    users = open_node(node_context({**config, "label-column": "kind"})).load()
    assert [label_of(text) for text in users["u2"]] == ["news", "3"]
    assert list(users["u2"]) == ["a short note of user 2", "another longer note of user 2"]
    assert {label_of(text) for text in open_node(node_context(config)).load()["u2"]} == {""}
    simulated = open_node(
        node_context(
            {"partition-id": 1, "num-partitions": 2},
            {
                "cache": str(tmp_path / "cache"),
                "data.source": "files",
                "data.path": str(data),
                "data.label-column": "kind",
                "data.users": 4,
                "data.held-out-users": 1,
                "data.development-users": 0,
                "data.public-pool": 1,
                "data.public-validation": 0,
                "nodes": 3,
            },
        )
    ).load()
    assert len(simulated) == 2
    assert all([label_of(text) for text in own] == ["news", "3"] for own in simulated.values())


def test_a_labelled_text_is_its_text() -> None:
    text = LabelledText("some words", "news")
    assert text == "some words" and hash(text) == hash("some words") and label_of("plain") == ""
    copy = pickle.loads(pickle.dumps(text))
    assert (copy, label_of(copy)) == ("some words", "news")


def test_scores_have_a_route(tmp_path: Path, loopback: Any) -> None:
    data = tmp_path / "users.jsonl"
    data.write_text('{"user_id": "a", "text": "one two three"}\n')
    policy = tmp_path / "policy.toml"
    policy.write_text('aggregation = ["plain"]\nmin-surviving-weight = 1.0\n')
    context = node_context(
        {"data": str(data), "weight": 1, "cache": str(tmp_path / "c"), "embedder": EMBEDDER,
         "policy": str(policy)}
    )  # fmt: skip
    noise = Noise(1.5, 4096.0, 32, 1.0)
    query = question()
    route = app.query("scores")
    assert route is not None
    from privsyn_flower.client_apps.main import scores

    reply = scores(wire.ask(query, TICKET, noise, 1, 1, 60.0), context)
    assert wire.read_answer(reply, TICKET, 12, 32).residues.shape == (12,)
