"""The decorator under `@app.train()`: a bounded change of the parameters leaves, nothing else."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from privsyn_flower.app.cli.node import node_app
from privsyn_flower.client_apps import private_training
from privsyn_flower.client_apps.dropin.training import open_dropin
from privsyn_flower.client_apps.node.failures import read_failures
from privsyn_flower.config import AveragingConfig
from privsyn_flower.protocol import greeting
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.strategies import DPFTRL, DPFedAvg
from privsyn_flower.strategies.averaging.start import TrainingStrategy
from tests.rigs import dropin as rigs
from tests.rigs.dropin import (
    ARRAYS,
    CLIP,
    LOG,
    SECRET,
    TICKET,
    WEIGHT,
    _raises,
    answered,
    ask,
    code,
    context,
    decoded,
    home,  # noqa: F401
    plus,
    policy,
    question,
)
from tests.strategies.training_rig import ftrl


def test_the_change_of_the_parameters_is_the_answer() -> None:
    def shifted(name: str, array: Any) -> Any:
        return array - np.float32(0.25) if name == "first" else array

    query = question()
    got = decoded(private_training(lambda m, c: answered(m, shifted))(ask(query), context()), query)
    assert np.allclose(got, [-0.25, -0.25, 0, 0, 0, 0, 0, 0], atol=1e-2)
    other = private_training(lambda m, c: answered(m, plus(0.5)))
    got = decoded(other(ask(query), context(1)), query)
    assert np.allclose(got, np.full(8, 0.5), atol=1e-2)


def test_a_change_is_clipped_and_the_indicator_tells() -> None:
    query = question(indicator=0.1)
    train = private_training(lambda m, c: answered(m, plus(100.0)))
    got = decoded(train(ask(query), context()), query)
    assert np.allclose(got[:-1], CLIP / np.sqrt(8), atol=1e-2)
    assert got[-1] == pytest.approx(-0.1 * CLIP, abs=1e-2)
    small = private_training(lambda m, c: answered(m, plus(0.01)))
    assert decoded(small(ask(query), context(1)), query)[-1] == pytest.approx(0.2, abs=1e-2)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.floats(width=32), min_size=8, max_size=8))
def test_no_reply_moves_the_sum_by_more_than_the_clip(values: list[float]) -> None:
    vector = np.array(values, dtype=np.float32)

    def back(name: str, array: Any) -> Any:
        return {"first": vector[:2], "second": vector[2:].reshape(2, 3), "seen": array}[name]

    query, ticket = question(), replace(TICKET, run=uuid.uuid4().hex)
    train = private_training(lambda m, c: answered(m, back))
    got = decoded(train(ask(query, ticket=ticket), context()), query, ticket=ticket)
    assert np.linalg.norm(got) <= CLIP * 1.01
    if not np.isfinite(vector).all():
        assert not got.any()


def test_nothing_but_the_vector_leaves() -> None:
    def train(message: Message, context: Any) -> Message:
        more = {"note": ConfigRecord({"text": SECRET}), SECRET: MetricRecord({"examples": 3})}
        context.state["mine"] = ConfigRecord({"text": SECRET})
        return answered(message, plus(0.1), **more)

    reply = private_training(train)(ask(question()), context())
    assert set(reply.content) == {"answer"}
    head = reply.content.config_records["answer"]
    ticket = {"protocol", "run", "query", "round", "attempt"}
    assert set(head) == ticket | {"code", "vector"}
    assert SECRET not in repr(reply) and "examples" not in repr(reply)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_id", SECRET),
        ("message_type", "evaluate"),
        ("ttl", 1.5),
        ("dst_node_id", 77),
        ("src_task_id", 77),
        ("dst_task_id", 77),
        ("created_at", 7.0),
        ("delivered_at", SECRET),
    ],
)
def test_what_a_function_writes_on_its_message_stays_there(name: str, value: Any) -> None:
    """`answered` replies to the message, so Flower's own way back is taken, too."""
    seen: list[Message] = []

    def train(message: Message, context: Any) -> Message:
        seen.append(message)
        setattr(message.metadata, name, value)
        return answered(message, plus(0.1))

    asked = ask(question())
    before = repr(asked.metadata)
    reply = private_training(train)(asked, context())
    assert getattr(seen[0].metadata, name) == value
    assert repr(asked.metadata) == before
    assert reply.metadata.message_type == "train" and reply.metadata.group_id == "3"
    untouched = private_training(lambda m, c: answered(m, plus(0.1)))(ask(question()), context(1))
    for key in ("dst_node_id", "src_node_id", "src_task_id", "dst_task_id", "delivered_at"):
        assert getattr(reply.metadata, key) == getattr(untouched.metadata, key)
    assert reply.metadata.ttl == pytest.approx(untouched.metadata.ttl, abs=5.0)


def _without(name: str) -> Callable[[Message, Any], Message]:
    def train(message: Message, context: Any) -> Message:
        reply = answered(message, plus(1.0))
        del reply.content.array_records["arrays"][name]
        return reply

    return train


FAILURES: dict[str, Callable[[Message, Any], Any]] = {
    "no arrays": lambda m, c: Message(RecordDict({}), reply_to=m),
    "two records": lambda m, c: answered(m, plus(1.0), more=ArrayRecord([WEIGHT])),
    "a name less": _without("first"),
    "no counter": _without("seen"),
    "shape": lambda m, c: answered(m, lambda name, array: array.reshape(-1)),
    "type": lambda m, c: answered(m, lambda name, array: np.ones(array.shape, dtype=np.int8)),
    "nan": lambda m, c: answered(m, plus(np.nan)),
    "infinite": lambda m, c: answered(m, plus(np.inf)),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_reply_without_these_arrays_is_zeros(name: str, home: Path) -> None:
    query = question(indicator=0.1)
    assert not decoded(private_training(FAILURES[name])(ask(query), context()), query).any()
    assert "the train function failed for one user" in (home / LOG).read_text()


def test_each_declared_user_is_trained_clipped_and_forgiven_alone() -> None:
    called: list[str] = []

    @private_training(users=lambda context: ["a", "b", "c"])
    def train(message: Message, context: Any) -> Message:
        user = str(message.content.config_records["config"]["user"])
        called.append(user)
        if user == "b":
            raise ValueError(SECRET)
        arrays = message.content.array_records["arrays"]
        assert np.array_equal(arrays["second"].numpy(), WEIGHT)
        reply = answered(message, plus(1000.0 if user == "a" else 0.1))
        arrays["second"] = Array(WEIGHT + 5)  # what is left behind is nobody else's problem
        return reply

    query = question(indicator=0.1)
    hello = greeting.read_hello(train(greeting.hello(1, 60.0, "train"), context()))
    assert (hello.weight, called) == (3, [])
    got = decoded(train(ask(query, 3), context()), query, 3)
    assert called == ["a", "b", "c"]
    assert np.allclose(got[:-1], CLIP / np.sqrt(8) + 0.1, atol=1e-2)
    assert got[-1] == pytest.approx(0.0, abs=1e-2)  # one too long, one within, one nothing


@pytest.mark.parametrize(
    ("users", "weight"),
    [
        (lambda context: ["a", "b"], lambda context: 1),
        (lambda context: [1], lambda context: 1),
        (lambda context: [], None),
        (None, lambda context: 0),
        (None, lambda context: True),
        (None, lambda context: 1 / 0),
    ],
)
def test_more_users_than_weight_or_odd_numbers_are_refused(users: Any, weight: Any) -> None:
    train = private_training(users=users, weight=weight)(lambda m, c: answered(m))
    assert code(train(ask(question()), context())) == Refusal.SETUP


def test_a_node_may_stand_for_more_users_than_it_hosts() -> None:
    train = private_training(users=lambda c: ["a"], weight=lambda c: 5)(
        lambda m, c: answered(m, plus(0.1))
    )
    assert greeting.read_hello(train(greeting.hello(1, 60.0, "train"), context())).weight == 5
    query = question()
    assert np.allclose(decoded(train(ask(query, 5), context()), query, 5), 0.1, atol=1e-2)
    assert code(train(ask(query, 1, replace(TICKET, round=4)), context())) == Refusal.SETUP


MALFORMED: dict[str, Query] = {
    "longer": question(length=9),
    "no clip": question(options={"clip-norm": 0.0}),
    "clip no number": question(options={"clip-norm": "2"}),
    "looser clip": question(options={"clip-norm": 3.0}),
    "indicator": question(options={"indicator": float("nan")}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_odd_questions_are_refused_before_the_function_sees_them(name: str, home: Path) -> None:
    train = private_training(_raises(AssertionError("called")))
    assert code(train(ask(MALFORMED[name]), context())) == Refusal.MALFORMED
    assert not (home / LOG).exists()


def test_a_device_whose_app_uses_ray_keeps_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's defaults refuse a sum over one user without the nodes' noise."""
    monkeypatch.delenv("PRIVSYN_SIMULATION")
    driver = SimpleNamespace(get_actor_id=lambda: None)
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: driver)

    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    assert (
        code(private_training(lambda m, c: answered(m))(ask(question()), context()))
        == Refusal.POLICY
    )


def test_keys_of_a_device_count_in_a_simulation_too(home: Path) -> None:
    node = open_dropin(context(cache=str(home / "own")))
    assert node.facts.deployed and node.policy is not None and node.cache == home / "own"
    simulated = open_dropin(context(2))
    assert not simulated.facts.deployed and simulated.policy is None
    assert simulated.cache == home / ".cache/privsyn-flower/nodes/drop-in/2-of-4"


def failures(cache: str = ".cache/privsyn-flower/nodes/drop-in/0-of-4") -> list[dict[str, Any]]:
    return read_failures(Path.home() / cache)


def test_what_the_function_raises_is_counted_for_the_owner() -> None:
    handler = private_training(users=lambda context: ["a", "b"])(_raises(NameError(SECRET)))
    query = question()
    assert not decoded(handler(ask(query, 2), context()), query, 2).any()
    (row,) = failures()
    at = str(row.pop("at")).rpartition(":")[0]
    assert at == rigs.__file__
    ticket = {"run": TICKET.run, "round": TICKET.round, "attempt": TICKET.attempt}
    assert row == ticket | {"kind": "answer", "users": 2, "of": 2, "error": "NameError"}


@pytest.mark.parametrize("bad", ["raises", "exits", "other arrays", "no arrays"])
def test_a_check_on_made_up_data_fails_before_anything_is_spent(
    bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    mended: list[str] = []
    checked: list[dict[str, Any]] = []

    def check(message: Message, context: Any) -> Message:
        checked.append(dict(message.content.config_records["config"]))
        if mended:
            return answered(message)
        if bad == "other arrays":
            return answered(message, lambda name, array: array[:1])
        if bad == "no arrays":
            return Message(RecordDict(), reply_to=message)
        raise NameError(SECRET) if bad == "raises" else SystemExit(3)

    trained: list[str] = []

    def train(message: Message, context: Any) -> Message:
        trained.append(str(message.content.config_records["config"]["user"]))
        return answered(message, plus(0.1))

    users: list[str] = []

    def named(context: Any) -> list[str]:
        users.append("asked")
        return ["a"]

    handler = private_training(
        users=named, weight=lambda context: 1, check=check
    )(train)  # fmt: skip
    query = question()
    reply = handler(ask(query), context())
    assert code(reply) == Refusal.SETUP and SECRET not in repr(reply) + caplog.text
    assert trained == users == failures() == []
    assert "check on made-up data failed" in (Path.home() / LOG).read_text()
    mended.append("yes")
    for rnd in (3, 4):  # the same ticket: nothing was answered
        ticket = replace(TICKET, round=rnd)
        got = decoded(handler(ask(query, ticket=ticket), context()), query, ticket=ticket)
        assert np.allclose(got, 0.1, atol=1e-2)
    assert trained == ["a", "a"]
    assert checked == [{"lr": 0.5, "server-round": 3}] * 2  # once more when it had gone well


@pytest.mark.parametrize("said", ["ann", " ann\t"])
@pytest.mark.parametrize("listed", ["ann", " ann", "ann\n"])
def test_who_withdrew_is_out_however_the_app_spells_the_id(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str, listed: str
) -> None:
    monkeypatch.delenv("PRIVSYN_SIMULATION")
    trained: list[str] = []

    def train(message: Message, context: Any) -> Message:
        trained.append(str(message.content.config_records["config"]["user"]))
        return answered(message)

    handler = private_training(users=lambda context: [listed, " bob"])(train)
    own = context(cache=str(home / "cache"), policy=policy(home, "update"), weight=2)
    query = question()
    assert code(handler(ask(query, 2), own)) == "ok"
    assert trained == [listed, " bob"]  # the app's own spelling
    forgotten = CliRunner().invoke(node_app, ["forget", said, "--folder", str(home / "cache")])
    assert forgotten.exit_code == 0
    assert code(handler(ask(query, 2, replace(TICKET, round=4)), own)) == "ok"
    assert trained == [listed, " bob", " bob"]


def test_one_user_of_two_spellings_has_one_vector(home: Path) -> None:
    node = open_dropin(context(), users=lambda context: ["ann", " ann", "bob", " "])
    assert list(node.load()) == ["ann", "bob"]


def test_users_that_cannot_be_read_on_a_device_take_no_part(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def users(context: Any) -> list[str]:
        raise OSError(SECRET)

    train = private_training(users=users)(lambda m, c: answered(m, plus(0.1)))
    query = question()
    reply = train(ask(query), context(cache=str(home / "cache"), policy=policy(home, "update")))
    assert not decoded(reply, query).any() and SECRET not in repr(reply)


@pytest.mark.parametrize(
    "strategy",
    [
        DPFedAvg(AveragingConfig(clip_norm=CLIP)),
        ftrl(CLIP, "fedavg", min_separation=2, schedule="users"),
    ],
    ids=["dp-fedavg", "dp-ftrl"],
)
def test_a_decorated_app_is_trained_under_secure_aggregation(
    strategy: TrainingStrategy, home: Path, loopback: Any
) -> None:
    trained: list[tuple[int, str]] = []
    app = ClientApp(mods=[message_size_mod])  # it counts every record's bytes

    @app.train()
    @private_training(users=lambda context: [f"{context.node_id}-{n}" for n in range(2)])
    def train(message: Message, context: Any) -> Message:
        config = message.content.config_records["config"]
        trained.append((int(config["server-round"]), str(config["user"])))  # type: ignore[arg-type]
        return answered(message, plus(config["step"]))  # type: ignore[arg-type]

    def node(number: int) -> Callable[[Message], Message]:
        own = context(number, **{"num-partitions": 3})
        own.node_id = number + 1
        return lambda message: app(message, own)

    grid = loopback({number + 1: node(number) for number in range(3)})
    result = strategy.start(
        grid,
        ArrayRecord({name: Array(array) for name, array in ARRAYS.items()}),
        num_rounds=2,
        train_config=ConfigRecord({"step": 0.1}),
        epsilon=5000.0,  # hardly any noise
        delta=1e-5,
        users=6,
        nodes=3,
        folder=home / "run",
        noise_keys=home / "keys",
    )
    assert list(result.arrays) == list(ARRAYS)
    assert result.arrays["seen"].numpy() == 7
    for name in ("first", "second"):
        assert np.allclose(result.arrays[name].numpy(), ARRAYS[name] + 0.2, atol=0.08)
    everybody = {f"{node_id}-{n}" for node_id in (1, 2, 3) for n in range(2)}
    rounds = [{user for rnd, user in trained if rnd == number} for number in (1, 2)]
    if isinstance(strategy, DPFTRL):  # users take turns
        assert rounds[0] | rounds[1] == everybody and not rounds[0] & rounds[1]
    else:
        assert rounds == [everybody, everybody]
    records = {(name, type(r).__name__) for m in grid.received for name, r in m.content.items()}
    assert records == {("answer", "ConfigRecord"), ("secagg", "ConfigRecord")}


def test_importing_it_loads_no_model_library() -> None:
    script = (
        "import sys; from privsyn_flower.client_apps import private_training; "
        "print(sorted({'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
