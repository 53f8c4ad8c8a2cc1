"""Several kinds of questions in one run, under one calibrated budget and one ledger."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.privacy import BudgetExceeded
from privsyn_flower.privacy.accounting.sampling import Sampler
from privsyn_flower.privacy.ledger.usage import affordable_charges
from privsyn_flower.privacy.plan import EVALUATIONS, ROUNDS, Phase
from privsyn_flower.privacy.planning import evaluation_phases, plan_privacy
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine.aggregation import PlainSum, SecureAggregation
from privsyn_flower.strategies.engine.callbacks import Callback, Callbacks, CheckFailed
from privsyn_flower.strategies.engine.one_question import OneQuestion
from privsyn_flower.strategies.engine.rounds import NoRelease
from privsyn_flower.strategies.engine.session import FederationSpec, Session
from privsyn_flower.text import load_embedder
from tests.conftest import sentences
from tests.rigs.pipeline import Asking
from tests.rigs.rounds import VotingNode
from tests.server_apps.in_process import deployed, grid_for

EPSILON, DELTA = 8.0, 1e-5
TOPICS = 4


def topics() -> OneQuestion:
    """A histogram: how many samples are closest to each of some public topics."""
    embedder = load_embedder("ngram-32")
    rows = embedder.embed(sentences(TOPICS, 9))
    query = Query.votes(rows, bound=1.0, model=embedder.fingerprint)
    return OneQuestion(query, [f"topic {number}" for number in range(TOPICS)])


def session(tmp_path: Path, grid: Any, phases: list[Phase]) -> Session:
    terms = FederationSpec(6, nodes=3, round_timeout=5.0, node_timeout=5.0)
    made = plan_privacy(EPSILON, DELTA, phases)
    return Session(grid, RunFolder(tmp_path / "run"), made, terms, SecureAggregation())


SAMPLED = Sampler("poisson", 0.5)
PLANS = {
    "a share": [Phase("topics", share=0.1), Phase(ROUNDS, 2, 1)],
    "given noise": [Phase("topics", multiplier=3.0), Phase(ROUNDS, 2, 1)],
    "sampling": [Phase("topics", multiplier=3.0), Phase(ROUNDS, 2, 1, SAMPLED)],
}


@pytest.mark.parametrize("name", PLANS)
def test_a_histogram_and_then_rounds(tmp_path: Path, loopback: Any, name: str) -> None:
    _, contexts = deployed(tmp_path)
    run = session(tmp_path, grid_for(loopback, contexts), PLANS[name])
    made = run.privacy_plan
    assert made.epsilon == pytest.approx(EPSILON, rel=1e-4) and made.epsilon <= EPSILON
    question, strategy = topics(), Asking("scores")
    with run.begun() as ledger:
        run.ask(question, "topics")
        assert run.rounds(strategy).run() == 2
        charges = ledger.charges()
        asked = {(c.query, c.noise_multiplier, c.sampling_rate) for c in charges}
        first, then = made["topics"], made.main
        assert asked == {
            ("votes", first.multiplier, 1.0),
            ("scores", then.multiplier, then.rate),
        }
        assert ledger.spent_epsilon() < EPSILON  # the spare round is left
        assert sum(c.total_variation for c in charges) <= ledger.header.total_variation
        spare = {"noise_multiplier": then.multiplier, "sampling_rate": then.rate}
        assert affordable_charges(ledger, [spare] * 2) == 1
    assert len(question.released) == TOPICS and np.isfinite(question.released).all()
    said = run.statement.sentence()
    assert "over 1 of 'topics' with integer (discrete Gaussian) noise of at least" in said
    # The same questions again are read from disk.
    again, sent = topics(), len(run.grid.sent)  # type: ignore[attr-defined]
    with run.begun() as ledger:
        run.ask(again, "topics")
        assert run.rounds(Asking("scores")).run() == 2
        assert len(ledger.charges()) == len(charges)
    assert again.released == question.released
    assert len(run.grid.sent) == sent  # type: ignore[attr-defined]


def test_rounds_and_then_evaluations(
    tmp_path: Path, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as were paid for, each charged once, and not one more. A node beyond the declared
    users, which comes between them, is greeted once and told of once."""
    _, contexts = deployed(tmp_path)
    rounds = Phase(ROUNDS, 2, 0)
    run = session(tmp_path, grid_for(loopback, contexts), [rounds, *evaluation_phases(rounds, 2)])
    with run.begun() as ledger:
        engine = run.rounds(Asking("votes"))
        assert engine.run() == 2
        run.grid.nodes[99] = VotingNode(1, 9, deployed=True)  # type: ignore[attr-defined]
        for number in (1, 2):
            run.ask(topics(), EVALUATIONS, name=f"evaluation-{number}", cohort=engine.cohort)
        with pytest.raises(ValueError, match="other: the run has paid for 2 of 'evaluation'"):
            run.ask(topics(), EVALUATIONS, name="other")
        runs = Counter(charge.run for charge in ledger.charges())
        assert sorted(runs.values()) == [1, 1, 2]
        assert ledger.spent_epsilon() == pytest.approx(EPSILON, rel=1e-6)
        with pytest.raises(BudgetExceeded):
            ledger.reserve(run="x", query="votes", round=1, attempt=1, noise_multiplier=50.0)
    assert "2 evaluations of models on the nodes" in run.statement.sentence()
    sent = [m for m in run.grid.sent if m.metadata.dst_node_id == 99]  # type: ignore[attr-defined]
    said = [m for m in caplog.messages if "not asked" in m]
    assert len(sent) == 1
    assert said == ["node 99 is not asked: its weight 1 is above the 0 left of users = 6"]


def test_a_phase_that_was_not_paid_for_is_not_asked(tmp_path: Path, loopback: Any) -> None:
    _, contexts = deployed(tmp_path)
    run = session(tmp_path, grid_for(loopback, contexts), [Phase(ROUNDS, 2)])
    with run.begun(), pytest.raises(KeyError, match=r"topics: the run has paid for \['rounds'\]"):
        run.ask(topics(), "topics")


@pytest.mark.parametrize("evaluates", [False, True])
def test_only_an_evaluation_is_given_up(tmp_path: Path, loopback: Any, evaluates: bool) -> None:
    """The run goes on without; what a method begins with is asked again by the next start."""
    nodes = {number: VotingNode(25, number) for number in range(1, 5)}
    first = Phase("first", source="aggregator", evaluates=evaluates, multiplier=3.0)
    terms = FederationSpec(100, nodes=4, round_timeout=0.1, node_timeout=0.3)
    made, keys = plan_privacy(EPSILON, DELTA, [first, Phase(ROUNDS, 2)]), tmp_path / "keys"
    folder, grid = RunFolder(tmp_path / "run"), loopback(nodes)
    run = Session(grid, folder, made, terms, PlainSum(), keys=keys)
    for node in nodes.values():
        node.mode = "silent"
    with run.begun(), pytest.raises(NoRelease, match="before anything was unmasked"):
        run.ask(topics(), "first")
    for node in nodes.values():
        node.mode = "ok"
    asked, question = len(nodes[1].seen), topics()
    assert bool(list(keys.glob("*"))) == (not evaluates)
    with run.begun() as ledger:
        if evaluates:
            with pytest.raises(NoRelease, match="before anything was unmasked"):
                run.ask(question, "first")
        else:
            run.ask(question, "first")
        assert {charge.state for charge in ledger.charges()} >= {"void"}
    assert (len(nodes[1].seen) == asked) == evaluates
    assert bool(question.released) == (not evaluates)
    assert not [path for path in keys.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["sub/a", "..", ".", "/tmp/a"])
def test_a_name_is_one_folder(tmp_path: Path, loopback: Any, name: str) -> None:
    """Else the questions in a folder of a folder would not be counted."""
    _, contexts = deployed(tmp_path)
    rounds = Phase(ROUNDS, 2, 0)
    run = session(tmp_path, grid_for(loopback, contexts), [rounds, *evaluation_phases(rounds, 1)])
    with run.begun() as ledger, pytest.raises(ValueError, match="name of a folder"):
        run.ask(topics(), EVALUATIONS, name=name)
    assert ledger.charges() == []


def test_a_question_whose_folder_is_gone_stays_counted(tmp_path: Path, loopback: Any) -> None:
    _, contexts = deployed(tmp_path)
    rounds = Phase(ROUNDS, 2, 0)
    run = session(tmp_path, grid_for(loopback, contexts), [rounds, *evaluation_phases(rounds, 1)])
    with run.begun():
        run.ask(topics(), EVALUATIONS, name="first")
        shutil.rmtree(run.folder.path / "evaluations" / "first")
        with pytest.raises(ValueError, match="second: the run has paid for 1"):
            run.ask(topics(), EVALUATIONS, name="second")


def test_the_spares_of_a_phase_are_for_all_its_questions(tmp_path: Path, loopback: Any) -> None:
    nodes = {number: VotingNode(25, number) for number in range(1, 5)}
    for node in nodes.values():
        node.mode = "silent"
    terms = FederationSpec(100, nodes=4, round_timeout=0.1, node_timeout=0.3)
    made = plan_privacy(EPSILON, DELTA, [Phase("topics", 2, 1), Phase(ROUNDS, 2, 0)])
    folder = RunFolder(tmp_path / "run")
    run = Session(loopback(nodes), folder, made, terms, PlainSum())
    with run.begun() as ledger:
        for name in ("a", "b"):
            with pytest.raises(NoRelease):
                run.ask(topics(), "topics", name=name)
        assert [charge.run[-2:] for charge in ledger.charges()] == ["-a", "-a", "-b"]


def test_a_run_that_asked_devices_is_no_simulation_any_more(tmp_path: Path, loopback: Any) -> None:
    _, contexts = deployed(tmp_path)
    run = session(tmp_path, grid_for(loopback, contexts), [Phase(ROUNDS, 2, 0)])
    for deployed_ones, simulated in ((0, True), (1, False), (0, False)):
        with run.begun(), run.running(Asking("votes")) as engine:
            engine.cohort.nodes = {1: Hello(6, 0, deployed=bool(deployed_ones))}
        assert run.statement.simulated is simulated


def test_whose_data_failed_does_not_choose_what_an_evaluation_says(
    tmp_path: Path, loopback: Any
) -> None:
    """An evaluation may choose the result, so only its noisy sum is looked at; rounds stop."""
    _, contexts = deployed(tmp_path)
    rounds = Phase(ROUNDS, 2, 0)
    run = session(tmp_path, grid_for(loopback, contexts), [rounds, *evaluation_phases(rounds, 1)])

    class Failing(Callback):
        check = True

        def released(self, *_: Any) -> None:
            raise CheckFailed("3 of 3 nodes failed")

    run.callbacks = Callbacks([Failing()])
    question = topics()
    with run.begun():
        run.ask(question, EVALUATIONS)
        assert question.released
        with pytest.raises(CheckFailed):
            run.rounds(Asking("votes")).run()


def test_a_run_begun_before_statements_said_more_goes_on(tmp_path: Path, loopback: Any) -> None:
    """A statement without other questions, rho or a filter promises what it promised without."""
    made, terms = plan_privacy(EPSILON, DELTA, [Phase(ROUNDS, 2, 1)]), FederationSpec(6, nodes=3)
    old: dict[str, Any] = {
        "epsilon": 8.0, "delta": 1e-05, "noise_multiplier": made.main.multiplier, "rounds": 2,
        "spare_rounds": 1, "min_surviving_weight": 0.85, "colluding_weight": 0.0,
        "aggregation": "plain", "sampler": "full", "sampling_rate": 1.0, "keys": "first-use",
        "consistency": "signed", "ledger_scope": "run", "split": "unknown",
        "simulation_seeded": False, "benchmark": False, "evaluations": 0,
        "private_selection": False, "rival": False, "noise_source": "nodes", "correlated": "",
        "min_separation": 1, "max_participations": 0, "participations": 0,
        "adaptive_clipping": False, "unit": "user", "adjacency": "zero-out", "users": 6,
        "cohort_nodes": 0, "population_name": "", "noise": "of the nodes",
    }  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    folder.save_value("promised", old)
    words = {"split": "rows", "carries": "# Privacy of this run"}
    for own in ({}, words):
        one = Session(loopback({}), folder, made, terms, PlainSum(), statement_fields=own)
        with one.begun() as ledger:
            assert ledger.charges() == []
    privacy_plan = folder.path / "checkpoints" / "promised.json"
    text = privacy_plan.read_text()
    folder.save_query(1, topics().ask(1))
    privacy_plan.unlink()
    lost = Session(loopback({}), folder, made, terms, PlainSum())
    with pytest.raises(ValueError, match=r"holds rounds, but .*promised\.json"), lost.begun():
        pass
    privacy_plan.write_text(text)
    chosen = Session(
        loopback({}), folder, made, terms, PlainSum(), statement_fields={"chooses_text": True}
    )
    with (
        pytest.raises(ValueError, match="other values: chooses_text = True was None;"),
        chosen.begun(),
    ):
        pass
