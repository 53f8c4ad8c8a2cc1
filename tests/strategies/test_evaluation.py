"""A whole evaluation through real nodes under secure aggregation: figures, charge and resume."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privsyn_flower.client_apps.answers import guarded
from privsyn_flower.client_apps.answers import reply as answered
from privsyn_flower.client_apps.evaluation import EVALUATION
from privsyn_flower.client_apps.node.device import Node
from privsyn_flower.privacy import calibrate
from privsyn_flower.privacy.correlated import Participation, factorization
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.plan import ROUNDS, Phase
from privsyn_flower.privacy.planning import evaluation_phases, plan_privacy
from privsyn_flower.protocol.greeting import HELLO, Hello, answer_hello
from privsyn_flower.queries.metrics import TooNoisyError, metrics_bound
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import Aggregation, PlainSum, SecureAggregation
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.engine.session import FederationSpec, Session
from privsyn_flower.strategies.evaluation.strategy import (
    Caps,
    better,
    evaluate,
    evaluation_query,
    read_estimates,
)
from privsyn_flower.text.models.lm_metrics import Scorer
from privsyn_flower.text.models.parameters import ParametersError
from tests.conftest import node_context, sentences
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture

CANARY = "xylophone"
USERS = {
    i: {f"u{i}-{j}": [f"{CANARY} {i} {j}", *sentences(2, 10 * i + j)] for j in range(5)}
    for i in range(4)
}
CAPS = Caps(max_tokens=80, max_loss=9.0, sequence_length=30)


class Device:
    """A node of five users with a base model of its own, behind the real handler."""

    def __init__(self, folder: Path, index: int, base: Path) -> None:
        self.context = node_context({}, node_id=100 + index)
        self.node = Node(
            facts=Hello(5, index, deployed=False),
            cache=folder / f"node-{index}",
            embedder="ngram-64",
            device="cpu",
            policy=None,
            noise_seed=None,
            load=lambda: USERS[index],
            downstream=lambda: base,
        )
        self.asked = 0

    def __call__(self, message: Message) -> Message | None:
        if message.metadata.message_type == HELLO:
            return answer_hello(message, self.node.facts)
        self.asked += 1
        return guarded(message, lambda: answered(message, self.context, self.node, EVALUATION))


@pytest.fixture
def base(causal_folder: Path) -> Path:
    return causal_folder


@pytest.fixture
def devices(tmp_path: Path, base: Path) -> dict[int, Device]:
    return {100 + i: Device(tmp_path, i, base) for i in range(4)}


def models() -> dict[str, Any]:
    """The base, and one that is surely worse than it."""
    rng = np.random.default_rng(0)
    return {"base": {}, "worse": {"model.norm.weight": 9 * rng.standard_normal(32, np.float32)}}


def session(
    tmp_path: Path,
    grid: Any,
    rounds: Phase | None = None,
    evaluations: int = 1,
    *,
    aggregation: Aggregation | None = None,
    epsilon: float = 1e9,
    timeout: float = 5.0,
) -> Session:
    """A run of the id "r" of twenty users on four nodes; nearly without noise."""
    folder = RunFolder(tmp_path / "run")
    folder.save_value("run", "r")
    rounds = rounds or Phase(ROUNDS, 3, 0).with_multiplier(1e-3)
    made = plan_privacy(epsilon, 1e-5, [rounds, *evaluation_phases(rounds, evaluations)])
    terms = FederationSpec(
        20, nodes=4, round_timeout=timeout, node_timeout=min(timeout * 5, 1.0),
        ledger=tmp_path / "ledger.jsonl", population_name="people",
    )  # fmt: skip
    how, keys = aggregation or SecureAggregation(), tmp_path / "keys"
    return Session(grid, folder, made, terms, how, keys=keys)


def measure(run: Session, base: Path, **options: Any) -> Any:
    given: dict[str, Any] = {"caps": CAPS, **options}
    with run.begun():
        return evaluate(given.pop("models", models()), base=base, session=run, **given)


def truth(base: Path, parameters: Any) -> tuple[float, float]:
    """Accuracy and loss over all users' tokens, without any of the machinery between."""
    scorer = Scorer(base, "cpu")
    tokens, correct, nats = 0, 0, 0.0
    with scorer.with_parameters(parameters):
        for texts in (texts for users in USERS.values() for texts in users.values()):
            rows = scorer.encode(texts, max_tokens=80, length=30)
            right, lost = scorer.sums(rows, 9.0)
            tokens += sum(len(row) - 1 for row in rows)
            correct, nats = correct + right, nats + lost
    return correct / tokens, nats / tokens


def every_byte(grid: Any) -> bytes:
    """Whatever went over the grid, as bytes."""
    found = []
    for message in [*grid.sent, *grid.received]:
        found.append(repr(message).encode())
        for record in message.content.values():
            for value in record.values():
                raw = getattr(value, "data", value)
                found.append(raw if isinstance(raw, bytes) else repr(raw).encode())
    return b"\n".join(found)


@pytest.mark.slow
def test_figures_charge_and_resume(
    tmp_path: Path, base: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    grid = loopback(devices)
    run = session(tmp_path, grid, evaluations=2)
    got = measure(run, base)
    for name, parameters in models().items():
        accuracy, loss = truth(base, parameters)
        assert got[name].accuracy == pytest.approx(accuracy, abs=1e-3)
        assert got[name].accuracy_low <= got[name].accuracy <= got[name].accuracy_high
        assert got[name].loss == pytest.approx(loss, abs=5e-3)
        assert 0 < got[name].loss_high - got[name].loss_low < 0.02
    gain = better(got["base"], got["worse"])
    assert gain.loss.low > 0 and gain.loss.value == pytest.approx(
        got["worse"].loss - got["base"].loss
    )

    (charge,) = run.ledger.charges()
    assert (charge.run, charge.query, charge.round) == ("r-evaluation", "evaluation", 1)
    assert (charge.state, charge.noise_multiplier, charge.sent) == ("committed", 1e-3, True)
    assert got["base"].reading.noise_std == pytest.approx(
        1e-3 * metrics_bound(2) * math.sqrt(20 / 17)
    )

    assert CANARY.encode() not in every_byte(grid)
    assert b"safetensors" not in every_byte(grid) and b"model.norm.weight" in every_byte(grid)
    for file in (tmp_path / "run").rglob("*"):
        assert file.is_dir() or CANARY.encode() not in file.read_bytes()

    before = [device.asked for device in devices.values()]
    assert measure(session(tmp_path, grid, evaluations=2), base) == got
    assert [device.asked for device in devices.values()] == before
    assert len(run.ledger.charges()) == 1
    with pytest.raises(ValueError, match="choose another name"):
        measure(run, base, caps=replace(CAPS, max_tokens=79))
    again = measure(run, base, name="second", caps=replace(CAPS, gap=0.5))
    for name in got:  # told as a difference, they are the same figures
        assert again[name].loss == pytest.approx(got[name].loss, abs=0.02)
        assert again[name].accuracy == pytest.approx(got[name].accuracy, abs=2e-3)
    assert [c.run for c in run.ledger.charges()] == ["r-evaluation", "r-second"]


def test_a_kill_after_the_release_asks_nobody_again(
    tmp_path: Path, base: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    grid = loopback(devices)
    run = session(tmp_path, grid, aggregation=PlainSum())
    first = measure(run, base)
    (tmp_path / "run" / "evaluations" / "evaluation" / "checkpoints" / "round-0001.json").unlink()
    assert measure(run, base) == first
    assert [device.asked for device in devices.values()] == [1] * 4


def test_the_budget_and_the_noise_are_the_runs_own(
    tmp_path: Path, base: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    """Calibrated for three rounds and one evaluation: the evaluation is the fourth charge."""
    grid, rounds = loopback(devices), Phase(ROUNDS, 3, 0)
    run = session(tmp_path, grid, rounds, aggregation=PlainSum(), epsilon=50.0)
    noise = calibrate(50.0, 3 + 1, gaussian_delta(1e-5))
    assert run.privacy_plan.main.equivalent == pytest.approx(noise)
    with run.begun() as ledger:
        for rnd in (1, 2, 3):
            charge = {"run": "r", "query": "votes", "round": rnd, "attempt": 1}
            ledger.reserve(**charge, noise_multiplier=run.privacy_plan.main.equivalent)
    got = measure(run, base, confidence=1 - 1e-7)
    assert ledger.spent_epsilon() == pytest.approx(50.0, rel=1e-3)
    assert got["base"].loss_low < truth(base, {})[1] < got["base"].loss_high
    with pytest.raises(ValueError, match="more: the run has paid for 1 of 'evaluation'"):
        measure(run, base, name="more")


def test_a_trusted_aggregator_may_add_the_noise(
    tmp_path: Path, base: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    """One more Gaussian release on the run's ledger; the nodes add nothing, the key is erased."""
    keys, matrix = tmp_path / "keys", factorization("independent", 3)
    rounds = Phase(
        ROUNDS, 3, 0, source="aggregator", correlation=matrix, participation=Participation(3)
    )
    run = session(tmp_path, loopback(devices), rounds.with_multiplier(0.02))
    sure = 1 - 1e-7  # the noise is the system's: no interval may miss by chance
    got = measure(run, base, confidence=sure)
    for name, parameters in models().items():
        accuracy, loss = truth(base, parameters)
        assert got[name].accuracy == pytest.approx(accuracy, abs=0.03)
        assert got[name].loss_low < loss < got[name].loss_high
    assert got["base"].reading.noise_std == pytest.approx(0.02 * metrics_bound(2))
    (charge,) = run.ledger.charges()
    assert (charge.run, charge.total_variation, charge.state) == ("r-evaluation", 0.0, "committed")
    assert charge.noise_multiplier == pytest.approx(0.02)
    assert [path for path in keys.rglob("*") if path.is_file()] == []
    before = [device.asked for device in devices.values()]
    assert measure(run, base, confidence=sure) == got
    assert [device.asked for device in devices.values()] == before


def test_an_attempt_that_failed_is_repeated_only_when_it_was_paid_for(
    tmp_path: Path, base: Path, loopback: Any, devices: dict[int, Device]
) -> None:
    silent = loopback({**devices, 101: hello_only, 102: hello_only})
    rounds = Phase(ROUNDS, 3, 1).with_multiplier(5.0)
    run = session(tmp_path, silent, rounds, 2, aggregation=PlainSum(), timeout=0.1)
    for _ in range(2):  # one that failed is not asked again
        for last in (False, True):
            with pytest.raises(NoRelease, match="attempts are charged"):
                measure(run, base, name=f"n-{int(last)}", last=last)
        runs = [charge.run for charge in run.ledger.charges()]
        assert runs == ["r-n-0", "r-n-1", "r-n-1"]


def test_the_spare_attempts_are_what_the_rounds_have_left(tmp_path: Path, loopback: Any) -> None:
    matrix = factorization("independent", 3)
    trusted = {"source": "aggregator", "correlation": matrix, "participation": Participation(3)}
    run = session(tmp_path, loopback({}), Phase(ROUNDS, 3, 2).with_multiplier(5.0))
    other = session(
        tmp_path / "other", loopback({}), Phase(ROUNDS, 3, 2, **trusted).with_multiplier(5.0)
    )
    with run.begun() as ledger, other.begun():
        charge = {"run": "r", "query": "votes", "round": 1, "noise_multiplier": 5.0}
        for attempt, left in enumerate([2, 1, 0, 0], start=1):
            assert run.unused_spares() == left
            ledger.reserve(**charge, attempt=attempt)
        assert other.unused_spares() == 0  # a trusted aggregator's failed attempts cost nothing


def hello_only(message: Message) -> Message | None:
    if message.metadata.message_type != HELLO:
        return None
    return answer_hello(message, Hello(5, message.metadata.dst_node_id - 100, deployed=False))


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"models": {"x": {"model.other": np.ones(3, np.float32)}}}, ParametersError, "other"),
        ({"models": {}}, ValueError, "0 models"),
        ({"models": {f"{i}": {} for i in range(17)}}, ValueError, "17 models"),
        ({"caps": Caps(sequence_length=201)}, ValueError, "sequence_length = 201"),
        ({"caps": Caps(max_tokens=0)}, ValueError, "max_tokens"),
        ({"caps": Caps(max_loss=math.inf)}, ValueError, "max_loss"),
        ({"caps": Caps(bound=2.3)}, ValueError, "bound = 2.3"),
        ({"caps": Caps(gap=-0.1)}, ValueError, "gap = -0.1"),
    ],
)
def test_what_cannot_be_asked_costs_nothing(
    tmp_path: Path, base: Path, loopback: Any, options: Any, error: Any, named: str
) -> None:
    run = session(tmp_path, loopback({}))
    with pytest.raises(error, match=named):
        measure(run, base, **options)
    assert run.ledger.charges() == []


def test_a_smaller_bound_adds_less_noise() -> None:
    full = evaluation_query(models(), fingerprint="f", caps=CAPS)
    small = evaluation_query(models(), fingerprint="f", caps=replace(CAPS, bound=1.0))
    assert (full.bound, small.bound, full.length) == (pytest.approx(math.sqrt(5)), 1.0, 5)


def test_a_difference_has_one_denominator_and_the_noise_of_two_coordinates() -> None:
    sums, std = np.array([100.0, 30.0, 50.0, 33.0, 45.0]), 2.0
    rng = np.random.default_rng(2)
    names = ["a", "b"]
    covered, widths = [], []
    for _ in range(4000):
        got = read_estimates(sums + rng.normal(0, std, 5), names, std, CAPS, confidence=0.9)
        gain = better(got["b"], got["a"])
        covered.append(
            [
                gain.accuracy.low <= 0.03 <= gain.accuracy.high,
                gain.loss.low <= 9 * 0.05 <= gain.loss.high,
            ]
        )
        widths.append(gain.accuracy.high - gain.accuracy.low)
    assert np.mean(covered, axis=0) == pytest.approx(0.9, abs=0.0143)  # three standard errors
    assert np.mean(widths) == pytest.approx(2 * 1.645 * math.sqrt(2) * std / 100, rel=0.02)
    same = better(got["a"], got["a"]).accuracy
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    other = read_estimates(sums + 1, names, std, CAPS)
    with pytest.raises(ValueError, match="same evaluation"):
        better(got["a"], other["b"])


def test_noise_above_the_tokens_gives_an_error_and_no_number() -> None:
    with pytest.raises(TooNoisyError, match="more users or fewer models"):
        read_estimates(np.array([3.0, 1.0, 2.0]), ["a"], 2.0, CAPS)
