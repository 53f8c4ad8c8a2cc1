"""The vote handler: exact votes plus the node's noise, and nothing private but the vector."""

from __future__ import annotations

import logging
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import private_training
from privsyn_flower.client_apps.main import hello
from privsyn_flower.client_apps.node.device import Node, open_node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.data import LabelledText
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.queries import vote_histogram
from privsyn_flower.text import load_embedder
from tests.conftest import node_context
from tests.rigs.client_apps_votes import EMBEDDER, TICKET, USERS, ask, node, noise, reply, vector
from tests.rigs.wire import refusal


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "node" / "node.log").read_text("utf-8")


def test_votes_are_the_sum_of_normalised_user_votes(tmp_path: Path, loopback: Any) -> None:
    query, message = ask()
    got = vector(reply(message, node(tmp_path)), query)
    want = np.zeros(10)
    for texts in USERS.values():
        counts = vote_histogram(load_embedder(EMBEDDER).embed(texts), query.question())
        want += counts / np.linalg.norm(counts)
    assert np.allclose(got, want, atol=5 / 4096)  # each user is truncated to an integer


def test_texts_beyond_the_cap_are_counted_on_the_node(tmp_path: Path, loopback: Any) -> None:
    query, message = ask(samples_cap=2)
    vector(reply(message, node(tmp_path)), query)
    assert "5 texts are beyond the question's samples-cap = 2" in log_of(tmp_path)


def test_votes_by_class_are_those_of_each_class_apart(tmp_path: Path, loopback: Any) -> None:
    """Texts of no class in the list do not vote, and a user's norm is over all its classes."""
    labels = {"u0": "aab", "u1": "abc", "u2": "ccc", "u3": "b", "u4": ""}
    users = {
        name: [LabelledText(text, label) for text, label in zip(USERS[name], own, strict=False)]
        for name, own in labels.items()
    }
    query = ask()[0].by_class(["a", "b"])
    assert query.length == 20 and len(query.rows) == 10
    message = wire.ask(query, TICKET, noise(1e-5), 1, 5, 60.0)
    got = vector(reply(message, node(tmp_path, lambda: users)), query)
    embedder, want = load_embedder(EMBEDDER), np.zeros(20)
    for texts in users.values():
        counts = np.concatenate(
            [
                vote_histogram(embedder.embed([*own, "x"])[:-1], query.question())
                for own in ([t for t in texts if t.label == label] for label in "ab")
            ]
        )
        want += counts / max(1.0, np.linalg.norm(counts))
    assert "4 texts are of no class that is asked about" in log_of(tmp_path)
    assert np.count_nonzero(want[:10]) and np.count_nonzero(want[10:])
    assert np.allclose(got, want, atol=5 / 4096)


@pytest.mark.parametrize(
    "changes",
    [{"labels": '["a", "a"]'}, {"labels": "[]"}, {"labels": '["a", "b", "c"]'}, {"labels": "a"}],
)
def test_classes_that_do_not_fit_are_refused(tmp_path: Path, loopback: Any, changes: Any) -> None:
    query = ask()[0].by_class(["a", "b"])
    query = replace(query, options={**query.options, **changes})
    message = wire.ask(query, TICKET, noise(1e-5), 1, 5, 60.0)
    refused = reply(message, node(tmp_path, lambda: pytest.fail("private text was opened")))
    assert refusal(wire.read_answer, refused, TICKET, query.length, 32) is Refusal.MALFORMED
    for labels in (["a", "a"], [""], []):
        with pytest.raises(ValueError, match="labels must be"):
            ask()[0].by_class(labels)


@pytest.mark.slow
def test_noise_has_the_share_of_the_nodes_weight(tmp_path: Path, loopback: Any) -> None:
    device = node(tmp_path, load=dict)
    rows = []
    for attempt in range(1, 401):
        ticket = Ticket("run", "votes", 1, attempt)
        query, message = ask(std=3.0, ticket=ticket)
        rows.append(vector(reply(message, device), query, ticket))
    # weight 5 of W_min 5: the node's share is the whole guaranteed variance
    assert np.var(rows) == pytest.approx(9.0, rel=0.1)


def test_what_user_data_raises_becomes_noise_and_a_local_log(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    def broken() -> Any:
        raise ValueError("the secret diary of u3")

    query, message = ask()
    answer = reply(message, node(tmp_path, load=broken))
    assert np.allclose(vector(answer, query), 0.0, atol=1e-3)
    log = tmp_path / "node" / "node.log"
    assert "secret diary" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    out, err = capfd.readouterr()
    assert "diary" not in caplog.text + out + err + str(answer.content)


@pytest.mark.parametrize(
    ("facts", "options", "code"),
    [
        ({}, {"model": "another-model"}, Refusal.EMBEDDER),
        ({}, {"clip": "none"}, Refusal.MALFORMED),
        ({}, {"metric": "hamming"}, Refusal.MALFORMED),
        ({}, {"samples_cap": 0}, Refusal.MALFORMED),
        ({"embedder": "/no/such/model"}, {}, Refusal.MODEL),
        ({"deployed": True, "policy": Policy()}, {}, Refusal.POLICY),
    ],
)
def test_refusals(tmp_path: Path, loopback: Any, facts: Any, options: Any, code: Refusal) -> None:
    def private() -> Any:
        pytest.fail("private text was opened for a query that must be refused")

    _, message = ask(**options)
    answer = reply(message, node(tmp_path, load=private, **facts))
    assert refusal(wire.read_answer, answer, TICKET, 10, 32) is code


def test_candidates_of_another_width_are_refused(tmp_path: Path, loopback: Any) -> None:
    """With the embedder's own fingerprint, which says nothing of the rows that came with it."""
    query = ask()[0]
    narrow = replace(query, rows=np.ascontiguousarray(query.rows[:, :32]))
    message = wire.ask(narrow, TICKET, noise(1e-5), 1, 5, 60.0)
    refused = reply(message, node(tmp_path, lambda: pytest.fail("private text was opened")))
    assert refusal(wire.read_answer, refused, TICKET, query.length, 32) is Refusal.MALFORMED


def test_a_vote_question_brings_no_array_of_its_own(tmp_path: Path, loopback: Any) -> None:
    """A projection of a few bytes would make rows of any size of the candidates."""
    query, _ = ask()
    bomb = replace(query, extra={"projection": np.zeros((20_000, 1), np.float16)})
    with pytest.raises(wire.WireError, match="projection"):
        VOTES.check(bomb, node(tmp_path))


def test_seeded_noise_repeats_whatever_the_attempt(tmp_path: Path, loopback: Any) -> None:
    query, message = ask(std=1.0)
    device = node(tmp_path, noise_seed=4)
    ticket = Ticket("run", "votes", 1, 2)
    first = vector(reply(message, device), query)
    second = vector(reply(ask(std=1.0, ticket=ticket)[1], device), query, ticket)
    assert np.array_equal(first, second)


def test_deployed_node_reads_only_its_own_config(tmp_path: Path, loopback: Any) -> None:
    data = tmp_path / "users.jsonl"
    data.write_text('{"user_id": "a", "text": "one"}\n{"user_id": "b", "text": "two"}\n')
    context = node_context(
        {"data": str(data), "weight": 1, "cache": str(tmp_path / "c"), "embedder": EMBEDDER},
        {"data.source": "files", "data.path": "/etc/passwd", "simulation-seeded-noise": True},
    )
    device = open_node(context)
    assert device.facts == Hello(1, 0, deployed=True)
    assert device.noise_seed is None
    assert device.policy == Policy()
    assert refusal(device.load) is Refusal.SETUP  # never more users than its weight adds noise for


def test_unknown_node_config_keys_are_refused_by_name(loopback: Any, caplog: Any) -> None:
    context = node_context({"data": __file__, "wieght": 3})
    assert refusal(greeting.read_hello, hello(greeting.hello(1, 10.0), context)) is Refusal.SETUP
    assert "wieght" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": "/no/such/file.jsonl"},
        {"weight": 0},
        {"weight": "many"},
        {"policy": "/no/such/policy.toml"},
        {"samples-per-user": -1},
    ],
)
def test_wrong_node_config_is_refused_before_any_query(
    tmp_path: Path, loopback: Any, wrong: Any
) -> None:
    data = tmp_path / "users.jsonl"
    data.write_text('{"user_id": "a", "text": "one"}\n')
    context = node_context({"data": str(data), **wrong})
    assert refusal(greeting.read_hello, hello(greeting.hello(1, 10.0), context)) is Refusal.SETUP


@pytest.mark.parametrize("key", ["data", "policy", "cache", "embedder"])
def test_a_relative_path_in_a_node_config_is_refused_with_the_whole_one(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, key: str
) -> None:
    """Flower's processes have another working directory than whoever wrote it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.jsonl").write_text('{"user_id": "a", "text": "one"}\n')
    (tmp_path / "here").mkdir()
    given = {"data": str(tmp_path / "users.jsonl"), "cache": str(tmp_path / "c"), key: "here"}
    for handle in (hello, private_training(lambda message, context: message)):
        assert (
            refusal(
                greeting.read_hello, handle(greeting.hello(1, 10.0, "train"), node_context(given))
            )
            is Refusal.SETUP
        )
        if key in ("data", "embedder"):  # a drop-in has none
            break
    assert f"node-config {key} = 'here' is relative" in caplog.text
    assert str(tmp_path / "here") in caplog.text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "docstrings of scipy,scikit-learn,pandas as installed here, because no data.source"),
        ({"data.source": "files", "data.path": "/u.jsonl"}, "the simulated users' texts: /u.jsonl"),
    ],
)
def test_flowers_log_says_whose_text_is_asked(
    loopback: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    config: Any,
    words: str,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO)
    for partition in range(3):
        place = {"partition-id": partition, "num-partitions": 3}
        context = node_context(place, {"cache": str(tmp_path), **config})
        assert not greeting.read_hello(hello(greeting.hello(1, 10.0), context)).deployed
    (line,) = [r.getMessage() for r in caplog.records if r.name == "flwr"]
    assert words in line


def test_parquet_without_pyarrow_is_a_refusal_and_not_an_empty_node(
    tmp_path: Path, loopback: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "users.parquet"
    data.write_bytes(b"")
    message, context = greeting.hello(1, 10.0), node_context({"data": str(data)})
    assert greeting.read_hello(hello(message, context)).deployed
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert (
        refusal(greeting.read_hello, hello(message, context)) is Refusal.SETUP
        and "needs pyarrow" in caplog.text
    )


def test_a_node_is_never_simulated_without_evidence(
    loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run config must not choose which file a real device opens."""
    monkeypatch.delenv("PRIVSYN_SIMULATION")
    context = node_context(
        {"partition-id": 0, "num-partitions": 1}, {"data.source": "files", "data.path": "/etc/x"}
    )
    assert refusal(greeting.read_hello, hello(greeting.hello(1, 10.0), context)) is Refusal.SETUP


class RustPanic(BaseException):
    """What a panic in a Rust tokenizer is to Python."""


@pytest.mark.parametrize("error", [MemoryError("big diary"), RustPanic("diary"), OSError("disk")])
def test_no_kind_of_user_data_error_changes_the_answer(
    tmp_path: Path, loopback: Any, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise error

    def unwritable(self: Node) -> Any:
        raise OSError("read-only file system")

    query, message = ask()
    monkeypatch.setattr(Node, "log", unwritable)
    answer = reply(message, node(tmp_path, load=broken))
    assert np.allclose(vector(answer, query), 0.0, atol=1e-3)


def test_hello_route(tmp_path: Path, loopback: Any) -> None:
    message = greeting.hello(1, 10.0)
    (tmp_path / "x.jsonl").write_text("")
    context = node_context({"data": str(tmp_path / "x.jsonl"), "weight": 3})
    facts = greeting.read_hello(hello(message, context))
    assert facts == Hello(3, 0, deployed=True)
    missing = hello(message, node_context({}))
    assert refusal(greeting.read_hello, missing) is Refusal.SETUP
