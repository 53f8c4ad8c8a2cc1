"""The decorator under `@app.evaluate()`: one bounded vector of metrics leaves, nothing else."""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privsyn_flower.client_apps import private_evaluation, private_training
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.noise import decode_sum
from privsyn_flower.protocol.question import TO_COME, Query, Ticket
from privsyn_flower.protocol.wire import Refusal, WireError
from tests.conftest import loopback_message
from tests.rigs import dropin as training
from tests.rigs import dropin_evaluation
from tests.rigs.dropin import (
    ARRAYS,
    LOG,
    SECRET,
    _raises,
    code,
    context,
    home,
    question,
)
from tests.rigs.dropin_evaluation import (
    GOOD,
    SETTINGS,
    TICKET,
    ask,
    decoded,
    evaluation,
    found,
    noise,
    told,
)

__all__ = ["home"]  # a fixture: where a simulated node keeps its things


def test_the_metrics_are_the_answer() -> None:
    query = evaluation()
    handler = private_evaluation(told(**GOOD, other=7.0))
    asked = ask(query)
    assert asked.metadata.message_type == "evaluate"
    reply = handler(asked, context())
    assert decoded(reply, query) == pytest.approx([1.0, 0.5, -0.5], abs=1e-3)
    assert set(reply.content) == {"answer"}
    head = reply.content.config_records["answer"]
    assert set(head) == {"protocol", "run", "query", "round", "attempt", "code", "vector"}


def test_without_weights_the_examples_need_not_be_told() -> None:
    query = evaluation()
    handler = private_evaluation(told(accuracy=1.0, loss=4))
    assert decoded(handler(ask(query), context()), query) == pytest.approx([1, 1, 1], abs=1e-3)


def test_a_check_on_made_up_data_must_have_the_metrics() -> None:
    asked: list[str] = []

    def evaluate(message: Message, context: Any) -> Message:
        asked.append("private")
        return found(message, **GOOD)

    handler = private_evaluation(check=told(accuracy=1.0))(evaluate)
    assert code(handler(ask(evaluation()), context())) == Refusal.SETUP
    assert asked == []
    handler = private_evaluation(check=told(**GOOD))(evaluate)
    assert code(handler(ask(evaluation()), context())) == "ok"
    assert asked == ["private"]


def test_a_training_tries_the_check_of_its_evaluation_before_anything_is_spent() -> None:
    """In the module's own words: of another module's train function it is no business."""
    trained: list[str] = []

    def train(message: Message, context: Any) -> Message:
        trained.append("private")
        arrays = message.content["arrays"]
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    def asked(rnd: int, to_come: str = "") -> Message:
        query = question(options={TO_COME: to_come} if to_come else {})
        return training.ask(query, ticket=replace(training.TICKET, round=rnd))

    private_evaluation(check=told(accuracy=1.0))(lambda message, context: message)
    handler = private_training(train)
    to_come = json.dumps(SETTINGS.options({"arrays": json.dumps(list(ARRAYS))}))
    assert code(handler(asked(1, to_come), context())) == Refusal.SETUP
    assert trained == []
    assert code(handler(asked(1), context())) == "ok"
    private_evaluation(check=told(**GOOD))(lambda message, context: message)
    assert code(handler(asked(2, to_come), context())) == "ok"
    for broken in ("[[]", "[]", '{"metrics": []}'):
        assert code(handler(asked(3, broken), context())) == Refusal.MALFORMED
    assert trained == ["private"] * 2


@pytest.mark.parametrize(("examples", "weight"), [(5, 0.25), (20, 1.0), (10_000, 1.0)])
def test_a_user_weighs_no_more_than_the_cap(examples: int, weight: float) -> None:
    query = evaluation(replace(SETTINGS, max_examples=20))
    handler = private_evaluation(told(**{**GOOD, "num-examples": examples}))
    got = decoded(handler(ask(query), context()), query)
    assert got == pytest.approx([weight, 0.5 * weight, -0.5 * weight], abs=1e-3)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.floats(), min_size=3, max_size=3), st.sampled_from([0, 20]))
def test_no_reply_moves_the_sum_by_more_than_the_bound(
    values: list[float], max_examples: int
) -> None:
    query = evaluation(replace(SETTINGS, max_examples=max_examples))
    metrics = dict(zip(GOOD, values, strict=True))
    ticket = replace(TICKET, run=uuid.uuid4().hex)
    used = noise(query)
    reply = private_evaluation(told(**metrics))(ask(query, ticket=ticket), context())
    residues = wire.read_answer(reply, ticket, query.length, used.bits).residues
    assert np.linalg.norm(decode_sum(residues, query, used)) <= query.bound


def test_nothing_but_the_vector_leaves() -> None:
    def evaluate(message: Message, context: Any) -> Message:
        context.state["mine"] = ConfigRecord({"text": SECRET})
        message.metadata.__dict__["_group_id"] = SECRET
        reply = found(message, **GOOD, **{SECRET: 3.0})
        reply.content["note"] = ConfigRecord({"text": SECRET})
        reply.content["arrays"] = ArrayRecord({SECRET: Array(np.ones(2))})
        return reply

    reply = private_evaluation(evaluate)(ask(evaluation()), context())
    assert decoded(reply, evaluation()).any()
    assert SECRET not in repr(reply) and SECRET not in repr(reply.metadata.__dict__)


def _two_records(message: Message, context: Any) -> Message:
    reply = found(message, **GOOD)
    reply.content["more"] = MetricRecord(GOOD)
    return reply


FAILURES: dict[str, Callable[[Message, Any], Any]] = {
    "no metrics": lambda m, c: Message(RecordDict({}), reply_to=m),
    "two records": _two_records,
    "a metric less": told(accuracy=0.5, **{"num-examples": 3}),
    "other metrics": told(f1=0.5, **{"num-examples": 3}),
    "nan": told(**{**GOOD, "loss": math.nan}),
    "infinite": told(**{**GOOD, "accuracy": math.inf}),
    "list": told(**{**GOOD, "accuracy": [0.5]}),
    "list of examples": told(**{**GOOD, "num-examples": [3]}),
    "no float": told(**{**GOOD, "accuracy": 10**400}),
    "examples that are none": told(**{**GOOD, "num-examples": math.nan}),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_reply_without_these_metrics_is_zeros(name: str, home: Path) -> None:
    query = evaluation()
    assert not decoded(private_evaluation(FAILURES[name])(ask(query), context()), query).any()
    assert "the evaluate function failed for one user" in (home / LOG).read_text()


@pytest.mark.parametrize("examples", [0, -3, 0.0])
@pytest.mark.parametrize("max_examples", [0, 20])
def test_a_user_without_examples_counts_nothing(examples: float, max_examples: int) -> None:
    query = evaluation(replace(SETTINGS, max_examples=max_examples))
    handler = private_evaluation(told(**{**GOOD, "num-examples": examples}))
    assert not decoded(handler(ask(query), context()), query).any()


def test_without_examples_a_weighted_user_counts_nothing() -> None:
    query = evaluation(replace(SETTINGS, max_examples=20))
    handler = private_evaluation(told(accuracy=0.5, loss=1.0))
    assert not decoded(handler(ask(query), context()), query).any()


def test_each_declared_user_is_measured_bounded_and_forgiven_alone() -> None:
    called: list[str] = []

    @private_evaluation(users=lambda context: ["a", "b", "c"])
    def evaluate(message: Message, context: Any) -> Message:
        user = str(message.content.config_records["config"]["user"])
        called.append(user)
        if user == "b":
            raise ValueError(SECRET)
        arrays = message.content.array_records["arrays"]
        assert np.array_equal(arrays["second"].numpy(), ARRAYS["second"])
        arrays["second"] = Array(ARRAYS["second"] + 5)  # nobody else's problem
        return found(message, accuracy=1e9 if user == "a" else 0.5, loss=0.0)

    query = evaluation()
    got = decoded(evaluate(ask(query, 3), context()), query, 3)
    assert called == ["a", "b", "c"]
    assert got == pytest.approx([2, 1, -2], abs=1e-3)


def test_the_wrapper_answers_the_greeting(loopback: Any) -> None:
    """So that a server learns before the first round that the function is private."""
    evaluate = private_evaluation(_raises(AssertionError("called")))
    told = greeting.read_hello(evaluate(greeting.hello(1, 60.0, "evaluate"), context()))
    assert not told.deployed and told.weight == 1


def listed(*metrics: Any) -> dict[str, str]:
    return {"metrics": json.dumps(list(metrics))}


ONE = ["accuracy", 0, 1]
MALFORMED: dict[str, Query] = {
    "no list": evaluation(options={"metrics": "accuracy"}),
    "an object": evaluation(options={"metrics": '{"accuracy": [0, 1]}'}),
    "empty": evaluation(options=listed(), length=1, bound=1.0),
    "no bounds": evaluation(options=listed(ONE, ["loss"])),
    "bounds of text": evaluation(options=listed(ONE, ["loss", "0", "4"])),
    "bounds of truth": evaluation(options=listed(ONE, ["loss", False, True])),
    "bounds in disorder": evaluation(options=listed(ONE, ["loss", 4, 0])),
    "one point": evaluation(options=listed(ONE, ["loss", 4, 4])),
    "one point as floats": evaluation(options=listed(ONE, ["loss", 2**60, 2**60 + 1])),
    "infinite": evaluation(options={"metrics": '[["accuracy", 0, 1], ["loss", 0, Infinity]]'}),
    "no number": evaluation(options={"metrics": '[["accuracy", 0, 1], ["loss", 0, NaN]]'}),
    "too wide": evaluation(options=listed(ONE, ["loss", -1e308, 1e308])),
    "too large": evaluation(options=listed(ONE, ["loss", 0, 10**400])),
    "twice": evaluation(options=listed(ONE, ONE)),
    "no name": evaluation(options=listed(ONE, ["", 0, 1])),
    "a number for a name": evaluation(options=listed(ONE, [1, 0, 1])),
    "17": evaluation(
        options=listed(*([f"m{n}", 0, 1] for n in range(17))), length=18, bound=math.sqrt(18)
    ),
    "deep": evaluation(options={"metrics": "[" * 100_000}),
    "longer": evaluation(length=4),
    "looser": evaluation(bound=2.0),
    "no cap": evaluation(options={"max-examples": None}),
    "a negative cap": evaluation(options={"max-examples": -1}),
    "half a cap": evaluation(options={"max-examples": 0.5}),
    "a true cap": evaluation(options={"max-examples": True}),
    "no round": evaluation(options={"server-round": "three"}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_odd_questions_are_refused_before_the_function_sees_them(name: str, home: Path) -> None:
    evaluate = private_evaluation(_raises(AssertionError("called")))
    assert code(evaluate(ask(MALFORMED[name]), context())) == Refusal.MALFORMED
    assert not (home / LOG).exists()


def test_each_decorator_refuses_the_others_question() -> None:
    evaluate = private_evaluation(_raises(AssertionError("called")))
    train = private_training(_raises(AssertionError("called")))
    assert code(train(ask(evaluation()), context())) == Refusal.MALFORMED
    update = question(options=dict(evaluation().options))
    asked = wire.ask(update, Ticket("r", "update", 1, 1), training.noise(update), 1, 1, 60.0)
    assert code(evaluate(asked, context())) == Refusal.MALFORMED


def test_an_evaluation_travels_as_what_it_is_about() -> None:
    """The two handlers of evaluations, of texts and of apps, cannot get each other's question."""
    query, ticket = evaluation(), TICKET
    assert wire.message_type("evaluation") == "query.evaluation"
    for type_, asked in (
        ("query.evaluation", query),
        ("evaluate", replace(query, options={"models": 1})),
    ):
        content = wire.ask_records(asked, ticket, noise(query))
        with pytest.raises(WireError, match="metrics"):
            wire.read_head(loopback_message(content, 1, type_))


def draws(hostile: str, rows: int) -> float:
    """What a function draws from three libraries for a clinic's rows; or what it does instead."""
    torch = pytest.importorskip("torch")
    if hostile == "no rows":
        raise ValueError("a clinic without rows")
    if hostile == "seeds":
        random.seed(5)
        torch.manual_seed(5)
        np.random.set_bit_generator(np.random.PCG64(5))
    return random.random() + np.random.standard_normal() + float(torch.rand(rows)[-1])


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_neighbour_moves_no_draw_of_the_others(kind: str) -> None:
    """Eight clinics in one process, seeded when it began: whatever the first of them does."""
    torch = pytest.importorskip("torch")
    rig: Any = training if kind == "train" else dropin_evaluation
    decorate: Any = private_training if kind == "train" else private_evaluation

    def drawn(rnd: int, hostile: str = "") -> list[tuple[float, Any]]:
        """What each clinic's function drew, and the vector that came of it."""
        seen: list[float] = []

        def function(message: Message, asked: Any) -> Message:
            clinic = int(asked.node_config["partition-id"])
            seen.append(np.nan)
            seen[-1] = draws(hostile if clinic == 0 else "", 3 + clinic)
            value = np.tanh(seen[-1]) / 2
            if kind == "train":
                return training.answered(message, training.plus(value))
            return found(message, accuracy=value + 0.5, loss=1.0, **{"num-examples": 5})

        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        before = np.random.get_state()[1].tobytes(), random.getstate(), torch.get_rng_state()
        options = {} if kind == "train" else {"server-round": rnd}
        query = (question if kind == "train" else evaluation)(options=options)
        ticket = replace(rig.TICKET, run=f"run-{hostile}-{rnd}", round=rnd)
        replies = [decorate(function)(rig.ask(query, 1, ticket), context(n)) for n in range(8)]
        assert (np.random.get_state()[1].tobytes(), random.getstate()) == before[:2]
        assert torch.equal(torch.get_rng_state(), before[2])
        return list(zip(seen, (rig.decoded(r, query, 1, ticket) for r in replies), strict=True))

    calm, later = drawn(1), drawn(2)
    assert len({value for value, _ in calm + later}) == 16  # no two calls draw alike
    for hostile in ("no rows", "seeds"):
        moved = drawn(1, hostile)
        assert moved[0][0] != calm[0][0]
        assert [value for value, _ in moved[1:]] == [value for value, _ in calm[1:]]
        for (_, one), (_, other) in zip(moved[1:], calm[1:], strict=True):
            assert np.allclose(one, other, atol=1e-2)  # as the node rounds them


@pytest.fixture(autouse=True)
def node_messages(loopback: Any) -> Iterator[None]:
    """Messages can be made outside of a Flower process."""
    yield
