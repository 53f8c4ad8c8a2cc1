"""What holds under `@app.train()` and under `@app.evaluate()`: what is asked and allowed."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from privsyn_flower.client_apps import private_evaluation, private_training
from privsyn_flower.client_apps.dropin.training import open_dropin
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.question import Query
from privsyn_flower.protocol.wire import Refusal, WireError
from privsyn_flower.training import Layout
from tests.conftest import loopback_message
from tests.rigs import dropin, dropin_evaluation
from tests.rigs.dropin import ARRAYS, LOG, SECRET, _raises, code, context, home, policy

__all__ = ["home"]  # a fixture: where a simulated node keeps its things


@dataclass(frozen=True)
class Decorated:
    """A decorator, and what is asked of and told by the function under it."""

    type: str  # of Flower's message, and the name of the function
    kind: str  # of the question
    decorate: Any
    question: Callable[..., Query]
    good: Callable[[Message], Message]  # the function's reply
    vector: Any  # what a user says by that
    rig: Any  # TICKET, noise, ask and decoded


TRAIN = Decorated(
    "train", "update", private_training, dropin.question,
    lambda message: dropin.answered(message, dropin.plus(0.1)), np.full(8, 0.1), dropin,
)  # fmt: skip
EVALUATE = Decorated(
    "evaluate", "evaluation", private_evaluation, dropin_evaluation.evaluation,
    lambda message: dropin_evaluation.found(message, **dropin_evaluation.GOOD),
    np.array([1.0, 0.5, -0.5]), dropin_evaluation,
)  # fmt: skip


@pytest.fixture(params=[TRAIN, EVALUATE], ids=["train", "evaluate"])
def under(request: pytest.FixtureRequest) -> Decorated:
    own: Decorated = request.param
    return own


def test_the_function_gets_what_flower_would_give_it(under: Decorated) -> None:
    seen: list[Message] = []

    def function(message: Message, context: Any) -> Message:
        seen.append(message)
        assert message.metadata.message_type == under.type
        return under.good(message)

    asked = under.rig.ask(under.question(options={"config.note": "hi"}))
    assert code(under.decorate(function)(asked, context())) == "ok"
    content = seen[0].content
    assert set(content) == {"arrays", "config"}
    own = {"lr": 0.5} if under is TRAIN else {"batch": 8}
    assert dict(content.config_records["config"]) == {**own, "note": "hi", "server-round": 3}
    arrays = content.array_records["arrays"]
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].numpy().dtype == array.dtype
        assert np.array_equal(arrays[name].numpy(), array)
    assert set(asked.content) == {"ask", "question"}  # the message itself is left as it was


FAILURES: dict[str, Callable[[Message, Any], Any]] = {
    "raises": _raises(ValueError(SECRET)),
    "exits": _raises(SystemExit(SECRET)),
    "memory": _raises(MemoryError(SECRET)),
    "refusal": _raises(WireError(Refusal.POLICY, SECRET)),
    "nothing": lambda m, c: None,
    "no content": lambda m, c: RecordDict(),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_function_that_fails_is_zeros_and_tells_the_local_log_only(
    under: Decorated, name: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    query = under.question(**({"indicator": 0.1} if under is TRAIN else {}))
    reply = under.decorate(FAILURES[name])(under.rig.ask(query), context())
    assert not under.rig.decoded(reply, query).any()
    assert SECRET not in repr(reply)
    out, err = capfd.readouterr()
    assert SECRET not in out + err
    assert f"the {under.type} function failed for one user" in (home / LOG).read_text()
    assert stat.S_IMODE((home / LOG).stat().st_mode) == 0o600


def test_an_interrupt_is_no_failure_of_the_data(under: Decorated) -> None:
    with pytest.raises(KeyboardInterrupt):
        under.decorate(_raises(KeyboardInterrupt()))(under.rig.ask(under.question()), context())


def test_an_unsampled_user_has_its_turn_and_counts_nothing(under: Decorated) -> None:
    called: list[str] = []
    names = [f"u{number}" for number in range(40)]

    def function(message: Message, context: Any) -> Message:
        called.append(str(message.content.config_records["config"]["user"]))
        return under.good(message)

    handler = under.decorate(users=lambda context: names)(function)
    query = under.question()
    noise = replace(under.rig.noise(query, 40), sampling_rate=0.5)
    asked = wire.ask(query, under.rig.TICKET, noise, 1, 40, 60.0)
    sampled = under.rig.decoded(handler(asked, context()), query, 40) / under.vector
    assert called == names
    assert 0 < np.median(sampled) < 39.5 and np.allclose(sampled, np.median(sampled), atol=0.2)


def test_flowers_own_round_is_refused(under: Decorated) -> None:
    arrays = ArrayRecord({name: Array(array) for name, array in ARRAYS.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    reply = under.decorate(_raises(AssertionError("called")))(
        loopback_message(content, 1, under.type), context()
    )
    assert set(reply.content) == {"answer"}
    assert code(reply) == Refusal.MALFORMED


MALFORMED: dict[str, Callable[[Query], dict[str, Any]]] = {
    "order missing": lambda query: {"options": {"arrays": ""}},
    "order of others": lambda query: {"options": {"arrays": '["first"]'}},
    "order no list": lambda query: {"options": {"arrays": '{"first": 1}'}},
    "another model": lambda query: {"model": "0" * 64},
    "an array more": lambda query: {"extra": {**query.extra, "more": np.zeros(1, dtype=np.uint8)}},
    "rows": lambda query: {
        "rows": np.ones((1, 1), dtype=np.int8),
        "scales": np.ones(1, dtype=np.float32),
    },
    "no safetensors": lambda query: {"extra": {"parameters": np.zeros(64, dtype=np.uint8)}},
    "no bytes": lambda query: {"extra": {"parameters": np.zeros((1, 8))}},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_odd_questions_are_refused_before_the_function_sees_them(
    under: Decorated, name: str, home: Path
) -> None:
    query = under.question(**MALFORMED[name](under.question()))
    handler = under.decorate(_raises(AssertionError("called")))
    refusal = Refusal.MODEL if name == "another model" else Refusal.MALFORMED
    assert code(handler(under.rig.ask(query), context())) == refusal
    assert not (home / LOG).exists()


def test_arrays_that_are_not_finite_are_refused(under: Decorated, home: Path) -> None:
    arrays = {**ARRAYS, "first": np.array([np.nan, 1.0], dtype=np.float32)}
    packed = dropin.question(arrays).extra
    query = under.question(extra=packed, model=Layout.of(arrays).digest())
    handler = under.decorate(_raises(AssertionError("called")))
    assert code(handler(under.rig.ask(query), context())) == Refusal.MALFORMED
    assert not (home / LOG).exists()


def test_a_question_is_answered_once(under: Decorated) -> None:
    handler = under.decorate(lambda m, c: under.good(m))
    assert code(handler(under.rig.ask(under.question()), context())) == "ok"
    assert code(handler(under.rig.ask(under.question()), context())) == Refusal.POLICY


def test_a_device_answers_what_its_owner_allows(
    under: Decorated, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRIVSYN_SIMULATION")
    handler = under.decorate(lambda m, c: under.good(m))
    own = {"data-path": "/somewhere", "cache": str(home / "cache")}  # the app has keys of its own
    query = under.question()
    (other,) = {"update", "evaluation"} - {under.kind}
    for odd in ({}, {"policy": policy(home, other)}):  # the defaults allow neither
        assert code(handler(under.rig.ask(query), context(**own | odd))) == Refusal.POLICY
    allowed = own | {"policy": policy(home, under.kind)}
    node = open_dropin(context(**allowed, weight=3))
    assert node.facts == greeting.Hello(3, 0, deployed=True) and node.policy is not None
    got = under.rig.decoded(handler(under.rig.ask(query), context(**allowed)), query)
    assert np.allclose(got, under.vector, atol=1e-2)
    assert (home / "cache" / "node.sqlite").exists()
    assert not (home / ".cache").exists()
    for odd in ({"weight": "3"}, {"weight": 0}, {"policy": str(home / "none.toml")}):
        assert code(handler(under.rig.ask(query), context(**own | odd))) == Refusal.SETUP


def test_the_decorator_goes_under_flowers(under: Decorated) -> None:
    app = ClientApp()

    @getattr(app, under.type)()  # type: ignore[untyped-decorator]
    @under.decorate
    def function(msg: Message, context: Any) -> Message:
        """Says something."""
        return under.good(msg)

    assert (function.__name__, function.__doc__) == ("function", "Says something.")
    query = under.question()
    got = under.rig.decoded(app(under.rig.ask(query), context()), query)
    assert np.allclose(got, under.vector, atol=1e-2)
