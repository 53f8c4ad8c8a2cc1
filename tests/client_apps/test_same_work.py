"""Whether a user's coin came up must not show in the work of its node: the calls are compared.

Time cannot be tested on a busy machine. So every call of this package's code on the way to an
answer is written down with the shapes of its arrays, and calls of numpy, torch and the rest with
their names: once where all coins came up, and once where some or none did.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privsyn_flower import wire
from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps.answers import Kind
from privsyn_flower.client_apps.evaluation import EVALUATION
from privsyn_flower.client_apps.node import Node
from privsyn_flower.client_apps.scores import SCORES
from privsyn_flower.client_apps.updates import UPDATE
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.greeting import Hello
from privsyn_flower.privacy.accounting import SENSITIVITY
from privsyn_flower.question import Noise, Query, Ticket
from tests.client_apps import test_dropin as dropin
from tests.client_apps import test_dropin_evaluation as dropin_evaluation
from tests.client_apps import test_evaluation, test_scores, test_updates
from tests.client_apps.test_answers import question as vote_question
from tests.conftest import node_context, sentences
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

PACKAGE = str(Path(answers.__file__).parent.parent)
NAMES = [f"u{number}" for number in range(6)]
USERS = {name: sentences(3, number) for number, name in enumerate(NAMES)}
COINS = {
    "none": np.zeros(6, dtype=bool),
    "some": np.array([True, False, False, True, False, True]),
}
Calls = Counter[tuple[Any, ...]]  # safetensors shuffles its arrays, so the order is not compared


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def calls(work: Callable[[], Any]) -> tuple[Calls, Any]:
    """How often everything was called on the way, and what came out."""
    found: Calls = Counter()

    def note(frame: Any, event: str, called: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE):
                values = list(frame.f_locals.items())
                shapes = [(key, v.shape) for key, v in values if isinstance(v, np.ndarray)]
                found[code.co_filename, code.co_qualname, *shapes] += 1
        elif event == "c_call" and frame.f_code.co_filename.startswith(PACKAGE):
            found[frame.f_code.co_qualname, getattr(called, "__qualname__", "")] += 1

    sys.setprofile(note)
    try:
        result = work()
    finally:
        sys.setprofile(None)
    return found, result


def numbers(query: Query, rate: float) -> Noise:
    """Hardly any noise, so that the answers differ by who counts."""
    if query.dense:
        return replace(test_updates.noise(query), sampling_rate=rate)
    return Noise(1e-6, SENSITIVITY, 32, 6.0, sampling_rate=rate)


def handler(kind: Kind, folder: Path, base: Path | None = None) -> Callable[[Message], Message]:
    node = Node(
        facts=Hello(6, 0, deployed=False),
        cache=folder / "node",
        embedder="ngram-64",
        device="cpu",
        policy=None,
        noise_seed=1,
        load=lambda: USERS,
        downstream=lambda: base,
    )
    return lambda message: answers.reply(message, node_context({}), node, kind)


def dropin_handler(evaluates: bool) -> tuple[Query, Callable[[Message], Message]]:
    decorate = dropin_evaluation.private_evaluation if evaluates else dropin.private_training

    @decorate(users=lambda context: NAMES)
    def function(message: Message, context: Any) -> Message:
        if evaluates:
            return dropin_evaluation.found(message, **dropin_evaluation.GOOD)
        return dropin.answered(message, dropin.plus(0.1))

    context = dropin.context()
    query = dropin_evaluation.evaluation() if evaluates else dropin.question()
    return query, lambda message: function(message, context)


@pytest.fixture(params=["votes", "scores", "evaluation", "update", "drop-in", "drop-in evaluation"])
def asked(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    causal_folder: Path,  # noqa: F811
) -> tuple[Query, Callable[[Message], Message]]:
    """A question of each kind and the node that answers it for six users."""
    if request.param == "votes":
        return vote_question(), handler(VOTES, tmp_path)
    if request.param == "scores":
        return test_scores.question(), handler(SCORES, tmp_path)
    if request.param == "evaluation":
        query = test_evaluation.question(causal_folder)
        return query, handler(EVALUATION, tmp_path, causal_folder)
    if request.param == "update":
        return test_updates.question(causal_folder), handler(UPDATE, tmp_path, causal_folder)
    return dropin_handler(request.param == "drop-in evaluation")


@pytest.mark.parametrize("fallen", COINS)
def test_a_failed_coin_costs_the_node_the_same_work(
    asked: tuple[Query, Callable[[Message], Message]], fallen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, answer = asked
    monkeypatch.setattr("privsyn_flower.privacy.dense._uniform", lambda size: np.float32(0.5))
    rounds = iter(range(1, 10))

    def traced(coins: Any) -> tuple[Calls, Any]:
        monkeypatch.setattr(answers, "coins", lambda count, rate: coins)
        ticket = Ticket("run", query.kind, next(rounds), 1)
        noise = numbers(query, 0.5)
        message = wire.ask(query, ticket, noise, 1, 6, 60.0)
        made, reply = calls(lambda: answer(message))
        length = answers.encoded_length(query)
        return made, wire.read_answer(reply, ticket, length, noise.bits).residues

    traced(np.ones(6, dtype=bool))  # what is loaded and embedded only once
    everybody, all_of_them = traced(np.ones(6, dtype=bool))
    fewer, some_of_them = traced(COINS[fallen])
    assert everybody.total() > 100
    assert (everybody - fewer, fewer - everybody) == (Counter(), Counter())
    assert (some_of_them != all_of_them).any()
