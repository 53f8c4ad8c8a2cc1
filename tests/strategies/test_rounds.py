"""The engine's order of steps is the guarantee: charges before messages, no second release."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privsyn_flower.privacy.ledger import Ledger, LedgerError
from privsyn_flower.privacy.release import TooFewSurvivors
from privsyn_flower.protocol import wire
from privsyn_flower.protocol.greeting import Hello
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.runs import read_jsonl
from privsyn_flower.strategies.engine.aggregation import Attempt, Collected, PlainSum
from privsyn_flower.strategies.engine.cohort import RoundPlan, TooFewNodes, WrongNode
from privsyn_flower.strategies.engine.rounds import MOST_ABORTS, NoRelease
from tests.rigs.ledger import remaining_rounds
from tests.rigs.rounds import (
    Counting,
    Rig,
    VotingNode,
    crash_in,
    engine,
    nodes,
    rig,
)

__all__ = ["nodes", "rig"]


def test_all_rounds(rig: Rig) -> None:
    strategy = Counting()
    run = rig.engine(strategy)
    assert run.run() == 3
    assert strategy.learned == {str(r): [4.0] * 4 for r in (1, 2, 3)}
    assert [c.state for c in run.ledger.charges(run="r")] == ["committed"] * 3
    rows = read_jsonl(rig.folder / "run" / "metrics.jsonl")
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[0]["surviving_weight"] == 100
    # std^2 per unit of weight is (5 * bound)^2 / 75, so 100 users carry more than guaranteed
    assert strategy.stds == pytest.approx([5 * np.sqrt(100 / 75)] * 3)
    ticket, noise = rig.nodes[100].seen[0]
    assert (ticket.round, ticket.attempt) == (1, 1)
    assert (noise.multiplier, noise.min_weight) == (5.0, 75.0)


def test_charge_is_on_disk_before_a_node_is_asked(rig: Rig) -> None:
    states: list[list[str]] = []

    def look(ticket: Ticket) -> None:
        rows = [json.loads(line) for line in (rig.folder / "ledger.jsonl").read_text().splitlines()]
        text = json.dumps(rows)
        assert '"r"' in text
        book = Ledger.open(
            rig.folder / "ledger.jsonl",
            population="people",
            total_epsilon=2.0,
            total_delta=1e-5,
        )
        states.append([c.state for c in book.charges(run="r") if c.round == ticket.round])
        assert not (rig.folder / "run" / "releases" / f"round-{ticket.round:04d}.npz").exists()

    rig.nodes[100].before_answer = look
    rig.engine(Counting()).run()
    assert states == [["reserved"]] * 3


@pytest.mark.parametrize("mode", ["silent", "raise", "refuse", "bits", "short", "old"])
def test_one_node_failing_leaves_enough_weight(
    rig: Rig, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.nodes[102].mode = mode
    strategy = Counting(rounds=1)
    run = rig.engine(strategy)
    assert run.run() == 1
    assert strategy.learned == {"1": [3.0] * 4}
    assert run.folder.metrics()[0]["surviving_weight"] == 75
    assert "diary" not in caplog.text


def test_too_few_survivors_spends_a_spare_and_then_ends(rig: Rig) -> None:
    rig.nodes[101].mode = rig.nodes[102].mode = "silent"
    strategy = Counting()
    run = rig.engine(strategy)
    with pytest.raises(NoRelease, match="spare-rounds"):
        run.run()
    assert strategy.learned == {}
    charges = run.ledger.charges(run="r")
    assert [(c.round, c.attempt, c.state) for c in charges] == [
        (1, 1, "reserved"),
        (1, 2, "reserved"),
    ]
    assert not list((rig.folder / "run" / "releases").glob("*"))


def test_a_retry_within_the_spare_rounds_succeeds(rig: Rig) -> None:
    def recover(ticket: Ticket) -> None:
        rig.nodes[101].mode = rig.nodes[102].mode = "silent" if ticket.attempt == 1 else "ok"

    rig.nodes[100].before_answer = recover
    strategy = Counting(rounds=1)
    assert rig.engine(strategy).run() == 1
    assert [ticket.attempt for ticket, _ in rig.nodes[100].seen] == [1, 2]
    assert strategy.asked == [1]  # the stored question is asked again, not a new one


def test_a_stored_release_is_never_asked_again(rig: Rig) -> None:
    crash_in(2, rig.engine(Counting()))
    resumed = Counting()
    run = rig.engine(resumed)
    assert run.run() == 3
    assert [ticket.round for ticket, _ in rig.nodes[100].seen] == [1, 2, 3]
    assert resumed.asked == [3]
    assert resumed.learned == {str(r): [4.0] * 4 for r in (1, 2, 3)}
    assert [c.state for c in run.ledger.charges(run="r")] == ["committed"] * 3


def power_cut(*given: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("method", "before", "after", "asked"),
    [
        ("commit", ["reserved"], ["committed"], 1),  # the release is there
        ("mark_sent", ["reserved"], ["void", "committed"], 1),  # nobody was asked, so it is free
    ],
)
def test_crash_beside_the_ledger(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str, before: Any, after: Any, asked: int
) -> None:
    run = rig.engine(Counting(rounds=1))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, method, power_cut)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    assert [c.state for c in run.ledger.charges(run="r")] == before
    again = rig.engine(Counting(rounds=1))
    assert again.run() == 1
    assert [c.state for c in again.ledger.charges(run="r")] == after
    assert len(rig.nodes[100].seen) == asked


def test_crash_after_sending_stays_charged(rig: Rig) -> None:
    rig.nodes[103].before_answer = power_cut
    with pytest.raises(KeyboardInterrupt):
        rig.engine(Counting(rounds=1)).run()
    rig.nodes[103].before_answer = None
    again = rig.engine(Counting(rounds=1))
    assert again.run() == 1
    assert [c.state for c in again.ledger.charges(run="r")] == ["reserved", "committed"]


def test_budget_refuses_before_asking(rig: Rig) -> None:
    strategy = Counting(rounds=50)
    run = rig.engine(strategy)
    done = run.run()
    assert 0 < done < 50
    assert run.ledger.spent_epsilon() <= 2.0
    assert remaining_rounds(run.ledger, 5.0) == 0
    assert len(rig.nodes[100].seen) == done


def test_declared_population_bounds_the_weights(rig: Rig) -> None:
    rig.nodes[104] = VotingNode(1, 4)
    with pytest.raises(
        TooFewNodes, match=r"101 users .*: 25, partition 4: 1\), the declared population is 100"
    ):
        rig.engine(Counting()).run()


def test_too_few_nodes_names_the_numbers(rig: Rig) -> None:
    for absent in (101, 102, 103):
        del rig.nodes[absent]
    with pytest.raises(TooFewNodes, match="weight 25"):
        rig.engine(Counting()).run()
    assert rig.nodes[100].seen == []


def test_deployed_nodes_are_refused_in_simulation(rig: Rig) -> None:
    rig.nodes[103] = VotingNode(25, 3, deployed=True)
    run = rig.engine(Counting())
    object.__setattr__(run.plan, "kind", "simulated")
    with pytest.raises(WrongNode, match="a deployed node is connected to a simulated run"):
        run.run()
    run = rig.engine(Counting())
    object.__setattr__(run.plan, "kind", "deployed")
    with pytest.raises(WrongNode, match="a simulated node is connected to a deployed run"):
        run.run()


def test_seeded_noise_is_refused_where_privacy_is_claimed(rig: Rig) -> None:
    rig.nodes[103].facts = Hello(25, 3, deployed=False, seeded=True)
    run = rig.engine(Counting())
    with pytest.raises(WrongNode, match="drawn from the seed"):
        run.run()
    assert run.ledger.charges() == []


def test_a_node_whose_weight_changed_is_not_counted(rig: Rig) -> None:
    """A restarted node with a smaller weight adds less noise than the sum counts on."""

    def restart(ticket: Ticket) -> None:
        rig.nodes[103].facts = Hello(1, 3, deployed=False)

    rig.nodes[100].before_answer = restart

    def guarded(message: Message) -> Message | None:
        try:
            return rig.nodes[103](message)
        except wire.WireError as error:
            return wire.refuse(message, error.code)

    run = engine(rig.folder, rig.loopback({**rig.nodes, 103: guarded}), Counting(rounds=1))
    assert run.run() == 1
    assert run.folder.metrics()[0]["surviving_weight"] == 75


def test_another_ledger_than_the_runs_own_is_refused(rig: Rig) -> None:
    crash_in(2, rig.engine(Counting()))
    (rig.folder / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="not the ledger the run began with"):
        rig.engine(Counting()).run()


class Unheard(PlainSum):
    """Ends before a node was asked to unmask, as when all of them refuse."""

    tries = 0

    def collect(self, attempt: Attempt) -> Collected:
        Unheard.tries += 1
        raise TooFewSurvivors("nobody answered")


def test_attempts_that_cost_nothing_are_counted_for_each_start_alone(rig: Rig) -> None:
    """Whoever mended the cause may try again; one start tries a bounded number of times."""
    most = 2 + MOST_ABORTS
    for start in (1, 2):
        run = rig.engine(Counting(rounds=2))
        run.aggregation = Unheard()
        Unheard.tries = 0
        with pytest.raises(NoRelease):
            run.run()
        assert Unheard.tries == most
        assert [c.state for c in run.ledger.charges(run="r")] == ["void"] * most * start
    run = rig.engine(Counting(rounds=2))
    assert run.run() == 2
    assert [c.state for c in run.ledger.charges(run="r")][-2:] == ["committed"] * 2
    assert rig.nodes[100].seen[0][0].attempt == 2 * most + 1  # no attempt has the number of another


@pytest.mark.parametrize("lasting", [False, True])
def test_a_full_disk_at_any_write_leaves_what_a_resume_needs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    """The error names the file; nothing is asked without a charge, nothing charged is lost."""
    real, left = os.fsync, [0]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] == 0 or (lasting and left[0] < 0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    for at in range(1, 1000):
        here, before = rig.folder / str(at), len(rig.nodes[100].seen)
        left[0] = at
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", full)
                engine(here, rig.grid, Counting(rounds=2)).run()
        except OSError as error:
            assert error.errno == errno.ENOSPC and str(error.filename).startswith(str(here))
            assert f"No space left on device: '{error.filename}'" in str(error)
        else:
            break
        assert not list(here.rglob("*.tmp"))
        strategy = Counting(rounds=2)
        run = engine(here, rig.grid, strategy)
        assert run.run() == 2
        assert strategy.learned == {"1": [4.0] * 4, "2": [4.0] * 4}
        states = [c.state for c in run.ledger.charges(run="r") if c.state != "void"]
        assert states.count("committed") == 2 and states.count("reserved") <= 1
        tickets = [ticket for ticket, _ in rig.nodes[100].seen[before:]]
        assert len(set(tickets)) == len(tickets) <= len(states)
    assert at > 20


def test_a_run_folder_set_back_cannot_release_a_round_twice(rig: Rig) -> None:
    rig.engine(Counting()).run()
    for name in ("checkpoints/round-0003.json", "releases/round-0003.npz"):
        (rig.folder / "run" / name).unlink()
    asked = len(rig.nodes[100].seen)
    with pytest.raises(LedgerError, match="restore the run folder"):
        rig.engine(Counting()).run()
    assert len(rig.nodes[100].seen) == asked


def test_weights_are_whole_users() -> None:
    plan = RoundPlan("r", 10, 1.0, min_surviving_weight=0.9, colluding_weight=0.1)
    assert (plan.min_weight, plan.colluding) == (9, 1)
    with pytest.raises(ValueError, match="colluding-weight"):
        RoundPlan("r", 10, 1.0, min_surviving_weight=0.89, colluding_weight=0.11)


def test_a_nodes_weight_is_fixed_for_the_run(rig: Rig) -> None:
    crash_in(1, rig.engine(Counting(rounds=2)))
    rig.nodes[103].facts = Hello(10, 3, deployed=False)
    again = Counting(rounds=2)
    run = rig.engine(again)
    object.__setattr__(run.plan, "nodes", 3)
    assert run.run() == 2
    assert run.folder.metrics()[-1]["surviving_weight"] == 75


def test_present_nodes_below_the_guaranteed_weight_cost_no_charge(rig: Rig) -> None:
    for node in rig.nodes.values():
        node.facts = Hello(10, node.facts.partition, deployed=False)
    run = rig.engine(Counting())
    with pytest.raises(TooFewNodes, match="weight 40"):
        run.run()
    assert run.ledger.charges(run="r") == []


def test_refusal_carries_no_text(loopback: Any) -> None:
    from tests.conftest import loopback_message

    message = loopback_message(RecordDict({"ask": ConfigRecord({"protocol": 99})}), 1, "query.x")
    with pytest.raises(wire.WireError) as caught:
        wire.read_ask(message, 1)
    assert caught.value.code is Refusal.PROTOCOL
    reply = wire.refuse(message, caught.value.code)
    assert dict(reply.content.config_records["answer"]) == {
        "protocol": wire.PROTOCOL,
        "code": "protocol-version",
    }
    assert set(reply.content) == {"answer"}
