"""Whether a user was sampled must not show in the work of its node: the calls are compared.

Time cannot be tested on a busy machine. So every call of this package's code on the way to an
answer is written down with the shapes of its arrays, and calls of numpy, torch and the rest with
their names: once where all users are sampled, and once where some or none are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.client_apps import answers
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.client_apps.node.policy import Policy
from privsyn_flower.client_apps.updates import UPDATE
from privsyn_flower.client_apps.votes import VOTES
from privsyn_flower.privacy import epsilon
from privsyn_flower.privacy.encoding.quantize import SENSITIVITY
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.text import fingerprints
from privsyn_flower.training.models import LoadedLM
from tests.client_apps.rig import KINDS, USERS, Asked, asked, bare
from tests.conftest import node_context
from tests.rigs.answers import question
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

PACKAGE = str(Path(answers.__file__).parent.parent)
SAMPLES = {
    "none": np.zeros(6, dtype=bool),
    "some": np.array([True, False, False, True, False, True]),
}
Calls = Counter[tuple[Any, ...]]  # safetensors shuffles its arrays, so the order is not compared


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(fingerprints, "RESTED", -1)  # of a young model's files, too, they are kept


@pytest.fixture(params=KINDS)
def one(request: pytest.FixtureRequest, tmp_path: Path, causal_folder: Path) -> Asked:
    found = asked(request.param, tmp_path, causal_folder)
    found.rate = 0.5
    return found


def calls(work: Callable[[], Any]) -> tuple[Calls, Any]:
    """How often everything was called on the way, and what came out."""
    found: Calls = Counter()

    def note(frame: Any, event: str, called: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            values = frame.f_locals.items()
            shapes = [(key, v.shape) for key, v in values if isinstance(v, np.ndarray)]
            found[code.co_filename, code.co_qualname, *shapes] += 1
        elif event == "c_call":
            found[code.co_qualname, getattr(called, "__qualname__", "")] += 1

    sys.setprofile(note)
    try:
        result = work()
    finally:
        sys.setprofile(None)
    return found, result


@pytest.mark.slow
def test_unsampled_users_cost_the_node_the_same_work(
    one: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare(monkeypatch)
    # As in a device's process, which has seen this question's files alone.
    monkeypatch.setattr("privsyn_flower.text.fingerprints._seen", {})
    rounds = iter(range(1, 10))

    def traced(sample: Any) -> tuple[Calls, Any]:
        monkeypatch.setattr(answers, "poisson_sample", lambda count, rate: sample)
        rnd = next(rounds)
        message = one.message(rnd)
        made, reply = calls(lambda: one.answer(message))
        return made, one.integers(reply, rnd)

    traced(np.ones(6, dtype=bool))  # what is loaded and embedded only once
    everybody, all_of_them = traced(np.ones(6, dtype=bool))
    assert everybody.total() > 100
    for case, sample in SAMPLES.items():
        fewer, some_of_them = traced(sample)
        assert (everybody - fewer, fewer - everybody) == (Counter(), Counter()), case
        assert (some_of_them != all_of_them).any(), case
        assert some_of_them.any() == (case == "some"), case


def test_a_central_node_works_for_those_who_count(
    tmp_path: Path,
    causal_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server is on the same machine: the sum is the same, and the others' work is saved."""
    bare(monkeypatch)
    one = asked("plain step", tmp_path, causal_folder)
    one.rate = 0.5
    monkeypatch.setattr(answers, "poisson_sample", lambda count, rate: SAMPLES["some"])
    real, trained = LoadedLM.rows, list[list[str]]()

    def watched(self: LoadedLM, texts: list[str], *args: Any) -> Any:
        trained.append(texts)
        return real(self, texts, *args)

    monkeypatch.setattr(LoadedLM, "rows", watched)
    sums, texts = [], []
    for rnd, central in enumerate((False, True), 1):
        node = Node(
            Hello(6, 0, deployed=False), tmp_path / "node", "ngram-64", "cpu", None, None,
            lambda: USERS, lambda: causal_folder, central,
        )  # fmt: skip
        trained.clear()
        reply = answers.reply(one.message(rnd), node_context({}), node, UPDATE)
        sums.append(one.integers(reply, rnd))
        texts.append(list(trained))
    sampled = [own for own, drawn in zip(USERS.values(), SAMPLES["some"], strict=True) if drawn]
    assert texts == [list(USERS.values()), sampled]
    assert sums[0].any() and np.abs(sums[0] - sums[1]).max() <= 1  # float32, and its place


def test_a_node_charges_a_round_whoever_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's accounting may be amplified; the owner's is not."""
    policy = Policy(aggregation=("plain",), min_noise_multiplier=0.5, min_surviving_weight=0.5)
    spent = []
    for sampled in (True, False):
        cache = tmp_path / str(sampled)
        node = Node(
            Hello(6, 0, deployed=True), cache, "ngram-64", "cpu", policy, None, lambda: USERS
        )
        drawn = np.full(6, sampled)
        monkeypatch.setattr(answers, "poisson_sample", lambda count, rate, drawn=drawn: drawn)
        for rnd in (1, 2, 3):
            noise = Noise(4.0, SENSITIVITY, 32, 6.0, sampling_rate=0.1)
            message = wire.ask(question(), Ticket("run", "votes", rnd, 1), noise, 1, 6, 60.0)
            answers.reply(message, node_context({}), node, VOTES)
        status = node.records.status(1e-6)
        assert status["max_participations"] == 3
        spent.append(status["max_spent_epsilon"])
    assert spent[0] == spent[1] >= epsilon(4.0, 3, gaussian_delta(1e-6))
