"""A simulation whose workers die: the round closes or is tried again, after a new start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.messaging import Absence
from privsyn_flower.strategies.engine.rounds import LOST, WorkersLost
from tests.rigs.rounds import Counting, VotingNode, engine

DIED = "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly'>"
RAISED = "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'my diary says'>"


class Worker(VotingNode):
    """A node whose worker is gone, or whose app raises, from a round on; as Flower answers then."""

    fails_from = 99
    reason = DIED

    def __call__(self, message: Message) -> Message | None:
        if message.metadata.message_type != greeting.HELLO:
            _, ticket, _ = wire.read_ask(message, self.facts.weight)
            if ticket.round >= self.fails_from:
                return Message(Error(0, self.reason), reply_to=message)
        return super().__call__(message)


def workers(**of_the_last: Any) -> dict[int, Any]:
    nodes = {100 + i: Worker(25, i) for i in range(4)}
    vars(nodes[103]).update(of_the_last)
    return nodes


def states(run: Any) -> list[tuple[int, str]]:
    return [(charge.round, charge.state) for charge in run.ledger.charges(run="r")]


def test_a_round_closes_with_the_survivors_and_the_next_is_not_asked(
    tmp_path: Path, loopback: Any
) -> None:
    strategy = Counting()
    run = engine(tmp_path, loopback(workers(fails_from=2)), strategy)
    with pytest.raises(WorkersLost, match=rf"{LOST} in mid-round: 1 .*from round 3 on.*--resume"):
        run.run()
    assert {rnd: sum(votes) for rnd, votes in strategy.learned.items()} == {"1": 16, "2": 12}
    assert states(run) == [(1, "committed"), (2, "committed")]
    again, mended = Counting(), workers()
    assert engine(tmp_path, loopback(mended), again).run() == 3
    assert again.learned.keys() == {"1", "2", "3"} and again.asked == [3]
    assert {ticket.round for ticket, _ in mended[100].seen} == {3}


def test_too_few_survivors_are_not_asked_again_before_a_new_start(
    tmp_path: Path, loopback: Any
) -> None:
    nodes = workers(fails_from=2)
    nodes[102].fails_from = 2
    run = engine(tmp_path, loopback(nodes), Counting())
    with pytest.raises(WorkersLost, match=r"2 nodes' workers .*from round 2 on"):
        run.run()
    assert states(run) == [(1, "committed"), (2, "reserved")], "plain: it was sent, so it is paid"
    done = engine(tmp_path, loopback(workers()), Counting())
    assert done.run() == 3
    assert [state for _, state in states(done)].count("committed") == 3


def test_a_loss_in_the_last_round_costs_nothing_more(tmp_path: Path, loopback: Any) -> None:
    assert engine(tmp_path, loopback(workers(fails_from=3)), Counting()).run() == 3


def test_an_app_that_raises_is_no_loss(tmp_path: Path, loopback: Any) -> None:
    assert engine(tmp_path, loopback(workers(fails_from=1, reason=RAISED)), Counting()).run() == 3


def test_a_device_cannot_end_a_run_so(tmp_path: Path, loopback: Any) -> None:
    nodes = workers(fails_from=1)
    for i, node in enumerate(nodes.values()):
        node.facts = greeting.Hello(25, i, deployed=True)
    assert engine(tmp_path, loopback(nodes), Counting()).run() == 3


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        (DIED, True),
        ("<class 'ray.exceptions.OutOfMemoryError'>:<''>", True),
        ("<class 'ray.exceptions.WorkerCrashedError'>", True),
        (RAISED, False),
        ("", False),
        (f"text before {DIED}", False),
    ],
)
def test_of_an_error_only_that_a_worker_is_gone_is_told(reason: str, lost: bool) -> None:
    absence = Absence.failure(Error(0, reason))
    assert absence.lost == lost
    assert absence.text == ("were lost" if lost else "failed") + " (Flower error code 0)"
