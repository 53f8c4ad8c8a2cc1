"""CTCL: a histogram and rounds of one promise, asked of real nodes, once each."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from privsyn_flower.config import CtclConfig, FtrlConfig, TrainingConfig
from privsyn_flower.privacy import BudgetExceeded
from privsyn_flower.privacy.accounting.composition import composed_epsilon, gaussian_mu
from privsyn_flower.privacy.accounting.sampling import EVERYBODY, Sampler
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.plan import ROUNDS
from privsyn_flower.privacy.planning import plan_privacy
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import CTCL
from privsyn_flower.strategies.ctcl.strategy import TOPICS, ctcl_phases, trainer_of
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.engine.session import FederationSpec, Session
from privsyn_flower.training.conditions import ROWS
from tests.rigs.ctcl import (
    DELTA,
    EPSILON,
    USERS,
    base,  # noqa: F401
    made,
    nodes,
    started,
    topics,
    training,
)
from tests.rigs.models import one_thread  # noqa: F401 - a fixture
from tests.text.conftest import causal_folder  # noqa: F401 - a fixture


def session(grid: Any, folder: Path, strategy: CTCL, epsilon: float = EPSILON) -> Session:
    terms = FederationSpec(
        USERS, min_surviving_weight=1.0, nodes=3, round_timeout=9.0, node_timeout=9.0
    )
    found = plan_privacy(epsilon, DELTA, strategy.phases(0, nodes=3))
    run = Session(grid, RunFolder(folder), found, terms, PlainSum(), keys=folder.parent / "keys")
    strategy.begin(users=USERS, nodes=3)
    strategy.attach(run.folder)
    return run


# What it costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "share"), [(10.0, 0.1), (0.0, 0.1), (0.0, 0.05), (3.0, 0.2)])
@pytest.mark.parametrize("spare", [0, 1])
def test_histogram_and_rounds_cost_the_budget_together(
    given: float, share: float, spare: int
) -> None:
    """Without sampling 1 / z_h^2 + T / z^2 is mu^2 (failed attempts that are paid for included)."""
    config = CtclConfig(histogram_multiplier=given, histogram_share=share)
    phases = ctcl_phases(config, trainer_of(TrainingConfig()), 8, spare)
    found = plan_privacy(7.58, 3e-6, phases)
    first, main = found[TOPICS], found.main
    mu = gaussian_mu(7.58, gaussian_delta(3e-6))
    cost = (1 + spare) / first.multiplier**2 + (8 + spare) / main.multiplier**2
    assert 0 <= 1 - cost / mu**2 < 3e-9  # calibration keeps 1e-9 of the noise in reserve
    assert found.epsilon <= 7.58
    if given:
        assert first.multiplier == given
    else:
        assert (1 + spare) / first.multiplier**2 == pytest.approx(share * mu**2, rel=1e-9)
    assert [phase.name for phase in found.phases] == [TOPICS, ROUNDS] and main.rounds == 8


def test_the_numbers_of_the_design_for_the_demo() -> None:
    """A tenth of the budget at (7.58, 3e-6): 2.08 for the histogram, 1.96 for eight rounds."""
    config = CtclConfig(histogram_multiplier=0.0)
    found = plan_privacy(7.58, 3e-6, ctcl_phases(config, trainer_of(TrainingConfig()), 8, 0))
    assert found[TOPICS].multiplier == pytest.approx(2.08, abs=0.01)
    assert found.main.multiplier == pytest.approx(1.96, abs=0.01)


@pytest.mark.slow
def test_sampling_amplifies_the_rounds_and_not_the_histogram() -> None:
    """One unsampled release beside sampled rounds, composed by privacy loss distributions."""
    poisson_sample = Sampler("poisson", 0.1)
    trainer = trainer_of(TrainingConfig(), sampler=poisson_sample)
    found = plan_privacy(2.0, 1e-5, ctcl_phases(CtclConfig(), trainer, 20, 0))
    first, main = found[TOPICS], found.main
    assert (first.rate, main.rate, first.sampler) == (1.0, 0.1, EVERYBODY)
    assert found.epsilon == pytest.approx(2.0, rel=1e-3) and found.epsilon <= 2.0
    events = {(10.0, 1.0): 1, (main.multiplier, 0.1): 20}
    assert composed_epsilon(events, gaussian_delta(1e-5)) == pytest.approx(found.epsilon)
    unsampled = plan_privacy(
        2.0, 1e-5, ctcl_phases(CtclConfig(), trainer_of(TrainingConfig()), 20, 0)
    )
    assert main.multiplier < 0.5 * unsampled.main.multiplier
    plan = found.plan
    assert plan is not None
    assert sorted((kind.noise_multiplier, kind.sampling_rate, kind.releases) for kind in plan) == [
        (pytest.approx(main.multiplier), 0.1, 20),
        (10.0, 1.0, 1),
    ]


def test_a_trusted_aggregator_adds_both_noises() -> None:
    table = training(noise="aggregator")
    trainer = trainer_of(table, FtrlConfig(mechanism="banded", min_separation=2))
    found = plan_privacy(4.0, 1e-5, ctcl_phases(CtclConfig(), trainer, 8, 1))
    first, main = found[TOPICS], found.main
    assert (first.source, main.source) == ("aggregator", "aggregator")
    assert main.correlation is not None and main.correlation.name == "banded"
    assert first.most == 1 and main.most == 4  # turns; failed attempts cost nothing
    cost = first.sensitivity**2 / 10**2 + main.sensitivity**2 / main.multiplier**2
    assert cost == pytest.approx(gaussian_mu(4.0, gaussian_delta(1e-5)) ** 2, rel=1e-8)


def test_one_of_the_two_may_be_left_out() -> None:
    trainer = trainer_of(TrainingConfig())
    [rounds] = ctcl_phases(CtclConfig(histogram=False), trainer, 8, 1, noise_multiplier=3.0)
    assert (rounds.name, rounds.multiplier) == (ROUNDS, 3.0)
    alone = CtclConfig(generator_training=False, histogram_multiplier=0.0)
    found = plan_privacy(2.0, 1e-5, ctcl_phases(alone, trainer, 8, 0))
    assert [phase.name for phase in found.phases] == [TOPICS]
    mu = gaussian_mu(2.0, gaussian_delta(1e-5))
    assert found.main.multiplier == pytest.approx(1 / mu, rel=1e-8)  # the whole budget
    with pytest.raises(ValueError, match=r"ctcl\.histogram = false with ctcl\.generator-training"):
        CtclConfig(histogram=False, generator_training=False)


# What is asked -----------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "nodes": {},
    "sampling": {"sampler": Sampler("poisson", 0.5)},
    "aggregator": {"noise": "aggregator", "ftrl": FtrlConfig(mechanism="tree")},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_histogram_is_asked_once_and_then_the_rounds(
    tmp_path: Path,
    loopback: Any,
    base: Path,
    way: str,
) -> None:
    """By real nodes; a run that goes on asks nobody again, and knows the same counts."""
    grid, epsilon = nodes(tmp_path, loopback, base), 8.0 if way == "sampling" else EPSILON
    strategy = made(base, **WAYS[way])
    run = session(grid, tmp_path / "run", strategy, epsilon)
    start = strategy.parameters()
    with run.begun() as ledger:
        strategy.histogram(run)
        assert run.rounds(strategy).run() == 2
        charges = [(c.query, c.noise_multiplier, c.sampling_rate) for c in ledger.charges()]
        first, main = run.privacy_plan[TOPICS], run.privacy_plan.main
        assert [query for query, *_ in charges] == ["votes", "update", "update"]
        assert charges[0] == ("votes", first.multiplier, 1.0)
        if main.correlation is None:
            assert charges[1:] == [("update", main.multiplier, main.rate)] * 2
        assert ledger.spent_epsilon() == pytest.approx(epsilon, rel=1e-3)
        with pytest.raises(ValueError, match="the run has paid for 1 of 'topics', all begun"):
            run.ask(OneQuestion(strategy.question(), list("abcd")), TOPICS, name="again")
        with pytest.raises(BudgetExceeded):  # whoever asks
            ledger.reserve(
                run="x", query="votes", round=1, attempt=1, noise_multiplier=first.multiplier
            )
    assert strategy.counts is not None and len(strategy.counts) == 4
    assert way == "sampling" or strategy.counts.sum() > 2  # of 6 users of norm 1
    moved = strategy.parameters()
    assert any(not np.array_equal(moved[name], start[name]) for name in start)
    sent = len(grid.sent)
    again = made(base, **WAYS[way])
    later = session(grid, tmp_path / "run", again, epsilon)
    with later.begun() as ledger:
        again.histogram(later)
        assert later.rounds(again).run() == 2 and len(ledger.charges()) == 3
    assert len(grid.sent) == sent
    assert np.array_equal(again.counts, strategy.counts)
    assert all(np.array_equal(again.parameters()[name], moved[name]) for name in moved)


def test_a_histogram_of_another_configuration_is_refused(
    tmp_path: Path,
    loopback: Any,
    base: Path,
) -> None:
    grid = nodes(tmp_path, loopback, base)
    strategy = made(base)
    run = session(grid, tmp_path / "run", strategy)
    with run.begun():
        strategy.histogram(run)
    for name, other in {
        r"ctcl\.topics = '\w+' was '\w+'": made(base, topics(3)),
        r"data\.samples-per-user = 2 was 3": made(base),
        r"ctcl\.labels = 'a, b' was ''": made(base, labels="a, b"),
    }.items():
        if "samples" in name:
            other.samples_per_user = 2
        again = session(grid, tmp_path / "run", other)
        with again.begun(), pytest.raises(ValueError, match=name):
            other.histogram(again)
    cheaper = made(base, histogram_share=0.3)
    with (
        pytest.raises(ValueError, match=r"others = .* was "),
        session(grid, tmp_path / "run", cheaper).begun(),
    ):
        pytest.fail("begun with another share")


def test_a_histogram_that_fails_ends_the_run(
    tmp_path: Path,
    loopback: Any,
    base: Path,
) -> None:
    """No rounds are spent on a run that cannot be finished."""
    grid = nodes(tmp_path, loopback, base)
    strategy = made(base)
    real = dict(grid.nodes)
    run = session(grid, tmp_path / "run", strategy)
    run.spec = replace(run.spec, round_timeout=0.2)
    grid.nodes.update({n: _only_hello(real[n]) for n in real})
    with run.begun(), pytest.raises(NoRelease):
        strategy.histogram(run)


def _only_hello(node: Any) -> Any:
    return lambda message: node(message) if message.metadata.message_type == "query.hello" else None


# What is made of it ------------------------------------------------------------------------------


def test_a_plan_follows_the_counts(base: Path) -> None:
    """By largest remainder, above the threshold; the published code would give 5, 3, 2, 0."""
    strategy = made(base, topic_threshold=0.0)
    with pytest.raises(RuntimeError, match="was not asked yet"):
        strategy.plan(10)
    strategy.counts, strategy.noise_std = np.array([5.0, 3.0, 9.0, 1.0]), 2.0
    assert strategy.plan(10).tolist() == [3, 2, 5, 0]
    higher = made(base, topic_threshold=1.0)
    higher.counts, higher.noise_std = strategy.counts, 2.0
    assert higher.plan(110).tolist() == [30, 10, 70, 0]
    assert made(base, histogram=False).plan(8).tolist() == [2, 2, 2, 2]


def test_a_generator_without_conditions_needs_no_topics(base: Path) -> None:
    config = CtclConfig(condition="none", histogram=False)
    strategy = CTCL(None, base, config=config, training=training())
    assert strategy.plan(7).tolist() == [7]
    strategy.begin(users=USERS)
    assert set(strategy.ask(1).extra) == {"parameters"}
    with pytest.raises(ValueError, match=r"ctcl\.condition = 'topic' needs topics"):
        CTCL(None, base)


def test_with_classes_the_histogram_is_joint(base: Path) -> None:
    """Topic j of class c at place c m + j, in the question, in the plan and for the nodes."""
    strategy = made(base, labels="good, bad")
    asked = strategy.question()
    assert asked.length == 8 and len(asked.rows) == 4
    assert json.loads(str(asked.options["labels"])) == ["good", "bad"]
    strategy.counts, strategy.noise_std = np.array([9.0, 0, 0, 1, 0, 0, 0, 10]), 0.0
    assert strategy.plan(20).tolist() == [9, 0, 0, 1, 0, 0, 0, 10]
    strategy.begin(users=USERS)
    assert json.loads(str(strategy.ask(1).options["condition.labels"])) == ["good", "bad"]
    assert made(base, labels="good, bad", histogram=False).plan(8).tolist() == [1] * 8
    with pytest.raises(ValueError, match="has a class twice"):
        CtclConfig(labels="a, a")


def test_the_topics_travel_as_the_histogram_has_them(base: Path) -> None:
    strategy = made(base)
    strategy.begin(users=USERS)
    asked = strategy.ask(1)
    assert np.array_equal(asked.extra[ROWS], strategy.question().rows)
    assert asked.options["condition.embedder"] == strategy.question().model
    assert math.isclose(asked.bound, 0.5)


# In any ServerApp --------------------------------------------------------------------------------


@pytest.mark.slow
def test_start_counts_trains_and_writes(tmp_path: Path, loopback: Any, base: Path) -> None:
    grid = nodes(tmp_path, loopback, base)
    result = started(made(base, filter=False), grid, tmp_path / "run")
    assert (result.rounds, result.ended_early) == (2, "")
    assert result.spent == pytest.approx(EPSILON, rel=1e-3) and result.spent <= EPSILON
    said = result.statement.sentence()
    assert "over 1 of 'topics'" in said and "2 rounds" in said
    rows = [json.loads(line) for line in (tmp_path / "run" / "synthetic.jsonl").open()]
    assert [row["text"] for row in rows] == [one.text for one in result.texts]
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (told["method"], told["synthetic_samples"]) == ("ctcl", len(rows))
    assert 1 <= len(rows) <= 12 and {row["topic"] for row in rows} <= set(range(4))
    before, after = (load_file(p / "model.safetensors") for p in (base, tmp_path / "run" / "model"))
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    sent = len(grid.sent)
    again = started(made(base, filter=False), grid, tmp_path / "run")
    assert len(grid.sent) == sent and again.texts == result.texts and again.rounds == 2


def test_numbers_are_checked_before_the_folder_is_made(tmp_path: Path, base: Path) -> None:
    with pytest.raises(ValueError, match="node_timeout = -1: Input should be greater than 0"):
        started(made(base), None, tmp_path / "run", node_timeout=-1)
    assert not (tmp_path / "run").exists()


def test_the_settings_of_both_phases_are_logged(
    base: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO)
    made(base, topic_threshold=0.5).summary()
    for words in ("CTCL settings:", "topic_threshold: 0.5", "DPFedAvg settings:", "clip_norm: "):
        assert words in caplog.text


def test_start_refuses_what_it_cannot_do(
    tmp_path: Path, loopback: Any, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = nodes(tmp_path, loopback, base)
    with pytest.raises(ValueError, match=r"ctcl\.generator-training = false needs a whole run"):
        started(made(base, generator_training=False), grid, tmp_path / "run")
    assert grid.sent == []
    started(made(base), grid, tmp_path / "run")
    with pytest.raises(ValueError, match=r"ctcl\.topics = '\w+' was '\w+'"):
        started(made(base, topics(3)), grid, tmp_path / "run")
    other = made(base)
    monkeypatch.setattr(other, "ready", lambda session: pytest.fail("touched another's folder"))
    with pytest.raises(ValueError, match=r"was begun with other values: epsilon = 3"):
        started(other, grid, tmp_path / "run", epsilon=30.0)
