"""Waiting for nodes: once a run, with a word on who is missing, and never for who cannot come."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from privsyn_flower.protocol import wire
from privsyn_flower.protocol.question import Ticket
from privsyn_flower.protocol.wire import Refusal
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies import DPFedAvg
from privsyn_flower.strategies.engine import cohort
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.cohort import TooFewNodes
from privsyn_flower.strategies.engine.rounds import Rounds
from tests.rigs.arguments import Voting, Zeros
from tests.rigs.rounds import Counting, Rig, VotingNode, crash_in, rig
from tests.strategies.training_rig import record

__all__ = ["rig"]


@pytest.fixture
def nodes() -> dict[int, VotingNode]:
    return {100 + i: VotingNode(25, i, deployed=True) for i in range(4)}


def begun(rig: Rig, strategy: Counting, **plan: Any) -> Rounds:
    run = rig.engine(strategy)
    for name, value in plan.items():
        object.__setattr__(run.plan, name, value)
    return run


class Notes:
    def __init__(self) -> None:
        self.nodes: list[str] = []

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        if stage == "nodes" and note:
            self.nodes.append(note)


def test_an_absent_node_is_waited_for_once_and_named(rig: Rig) -> None:
    del rig.nodes[103]
    ids, looks = rig.grid.get_node_ids, list[int]()

    def get_node_ids() -> list[int]:
        looks.append(len(rig.nodes[100].seen))  # rounds so far
        found: list[int] = ids()
        return found

    rig.grid.get_node_ids = get_node_ids
    run = begun(rig, Counting(4), node_timeout=0.7)
    run.cohort.progress = notes = Notes()
    assert run.run() == 4
    assert looks.count(0) > 1 and [looks.count(done) for done in (1, 2, 3)] == [1, 1, 1]
    assert notes.nodes == ["waiting for 1 more of 4 nodes (weight 75, 75 needed; 1 s at most)"]


def test_who_was_here_before_is_named_when_a_run_is_resumed(rig: Rig) -> None:
    crash_in(2, rig.engine(Counting()))
    del rig.nodes[102]
    run = begun(rig, Counting(), node_timeout=0.3)
    run.cohort.progress = notes = Notes()
    assert run.run() == 3
    assert notes.nodes[0].endswith(": node 102")


def test_a_node_that_goes_is_missed_aloud_and_welcome_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    gone = rig.nodes[103]

    def look(ticket: Ticket) -> None:
        rig.nodes.pop(103, None)
        if ticket.round == 3:
            rig.nodes[103] = gone

    rig.nodes[100].before_answer = look
    run = begun(rig, Counting(4), node_timeout=900.0)
    start = time.monotonic()
    assert run.run() == 4
    assert time.monotonic() - start < 600.0
    assert [row["nodes_asked"] for row in run.folder.metrics()] == [4, 3, 3, 4]
    said = [m for m in caplog.messages if "going on" in m]
    assert said == ["going on without 1 nodes (node 103): weight 75 is there, 75 needed"]


def test_a_node_beyond_the_declared_users_is_not_asked(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """One that connects during a run, and those who are there when it is resumed."""
    new = {104: VotingNode(1, 4, deployed=True), 105: VotingNode(9, 5, deployed=True)}
    rig.nodes[100].before_answer = lambda ticket: rig.nodes.update(new)
    crash_in(3, begun(rig, Counting(4)))
    said = [
        f"node {node} is not asked: its weight {weight} is above the 0 left of users = 100"
        for node, weight in ((104, 1), (105, 9))
    ]
    assert [m for m in caplog.messages if "not asked" in m] == said
    caplog.clear()
    run = begun(rig, Counting(4))
    assert run.run() == 4
    assert [m for m in caplog.messages if "not asked" in m] == said
    assert [row["nodes_asked"] for row in run.folder.metrics()] == [4] * 4
    assert not new[104].seen and not new[105].seen
    assert run.folder.load_value("weights") == dict.fromkeys(
        (f"node {i}" for i in range(100, 104)), 25
    )


def test_a_newcomer_has_the_place_of_who_left_until_it_is_back(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """As a SuperNode that is started anew, under another id, while Flower still lists the old."""
    old, new = rig.nodes[103], VotingNode(25, 4, deployed=True)

    def look(ticket: Ticket) -> None:
        rig.nodes[104] = new
        rig.nodes.pop(103, None)
        if ticket.round in (1, 4):
            rig.nodes[103] = old

    rig.nodes[100].before_answer = look
    crash_in(5, begun(rig, Counting(6)))
    assert [ticket.round for ticket, _ in new.seen] == [3, 4]
    rig.nodes[103] = old
    run = begun(rig, Counting(6))
    assert run.run() == 6
    assert [ticket.round for ticket, _ in new.seen] == [3, 4]
    assert [row["nodes_asked"] for row in run.folder.metrics()] == [4, 4, 4, 4, 4, 4]
    said = [message for message in caplog.messages if "not asked" in message]
    assert len(said) == 2 and "(node 104)" not in caplog.text  # once in each start


def test_a_node_without_room_is_counted_where_the_others_are_too_few(rig: Rig) -> None:
    def look(ticket: Ticket) -> None:
        rig.nodes[104] = VotingNode(60, 4, deployed=True)
        if ticket.round == 2:
            del rig.nodes[102], rig.nodes[103]

    rig.nodes[100].before_answer = look
    run = begun(rig, Counting(4), node_timeout=0.3)
    with pytest.raises(TooFewNodes, match=r"weight 50 .*; 1 of 3 nodes would exceed users = 100"):
        run.run()


def test_a_node_without_room_may_come_back_with_less_weight(rig: Rig) -> None:
    """It was only greeted: that binds nobody."""
    new = VotingNode(25, 4, deployed=True)

    def look(ticket: Ticket) -> None:
        if ticket.round == 1:
            rig.nodes[104] = VotingNode(60, 4, deployed=True)
        if ticket.round == 2:
            del rig.nodes[104]
        if ticket.round == 3:
            rig.nodes[104] = new
            del rig.nodes[103]

    rig.nodes[100].before_answer = look
    run = begun(rig, Counting(4))
    assert run.run() == 4
    assert [ticket.round for ticket, _ in new.seen] == [4]
    assert [row["nodes_asked"] for row in run.folder.metrics()] == [4] * 4


def test_a_resumed_run_waits_for_its_nodes_where_too_many_others_came_first(rig: Rig) -> None:
    crash_in(3, begun(rig, Counting(4)))
    ids = rig.grid.get_node_ids
    rig.nodes |= {node: VotingNode(60, node - 100, deployed=True) for node in (104, 105)}
    looks = iter([(104, 105)] * 2)
    rig.grid.get_node_ids = lambda: next(looks, None) or ids()
    assert begun(rig, Counting(4), node_timeout=900.0).run() == 4
    assert next(looks, None) is None
    assert not rig.nodes[104].seen and not rig.nodes[105].seen


def test_a_newcomer_of_another_kind_is_left_out_and_named(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start it is an error of whoever started the run; later anybody could end it so."""
    stranger = VotingNode(25, 4, deployed=True)
    stranger.facts = replace(stranger.facts, seeded=True)

    def look(ticket: Ticket) -> None:
        rig.nodes[104] = stranger
        rig.nodes.pop(103, None)

    rig.nodes[100].before_answer = look
    run = begun(rig, Counting())
    assert run.run() == 3
    assert [row["nodes_asked"] for row in run.folder.metrics()] == [4, 3, 3]
    assert not stranger.seen
    assert caplog.text.count("are not asked: a node's noise is drawn from the seed") == 1


def test_a_silent_node_is_not_greeted_in_every_round(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "GREETING_SECONDS", 0.2)
    greeted: list[Message] = []
    rig.nodes[103] = lambda message: greeted.append(message)  # type: ignore[assignment]
    run = begun(rig, Counting(4), node_timeout=0.5)
    assert run.run() == 4
    assert 1 <= len(greeted) <= 4  # while the first cohort was waited for


@pytest.mark.parametrize("code", [3, 4])
def test_nodes_too_slow_for_their_greeting_are_greeted_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Flower answers for a message, or an answer, that expired: the node may do better later."""
    monkeypatch.setattr(cohort, "GREETING_SECONDS", 0.2)
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.1)
    slow: list[Message] = []
    quick = dict(rig.nodes)

    def expired(node: int) -> Any:
        def answer(message: Message) -> Message:
            slow.append(message)
            rig.nodes[node] = quick[node]
            time.sleep(0.1)
            return Message(Error(code, "expired"), reply_to=message)

        return answer

    for node in quick:
        rig.nodes[node] = expired(node)
    assert begun(rig, Counting(), node_timeout=60.0).run() == 3
    assert len(slow) == len(quick)


def test_a_simulation_waits_for_nobody_who_cannot_come(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.3)
    nodes = {100 + i: VotingNode(25, i) for i in range(3)}
    assert begun(Rig(tmp_path, loopback, nodes), Counting(), node_timeout=60.0).run() == 3
    del nodes[100]
    run = begun(Rig(tmp_path / "two", loopback, nodes), Counting(), node_timeout=900.0)
    start = time.monotonic()
    with pytest.raises(TooFewNodes, match=r"weight 50.*num-supernodes, which is 2 unless set"):
        run.run()
    assert time.monotonic() - start < 600.0


def test_what_was_not_asked_binds_nobody(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the weights of nodes that were too few nor any argument of the first try."""
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.1)
    options = {"folder": tmp_path / "run", "delta": 1e-5, "aggregation": PlainSum()}
    two = loopback({1: Voting(500, 0), 2: Voting(300, 1)})
    with pytest.raises(TooFewNodes, match="weight 800"):
        Zeros().start(two, users=1000, nodes=2, epsilon=1.0, **options)
    eight = loopback({i: Voting(125, i - 1) for i in range(1, 9)})
    assert Zeros(rounds=2).start(eight, users=1010, nodes=8, epsilon=4.0, **options).rounds == 2
    assert RunFolder(tmp_path / "run").load_value("weights") == dict.fromkeys(
        (f"partition {i}" for i in range(8)), 125
    )
    with pytest.raises(ValueError, match=r"begun with other values: users = 1000 was 1010"):
        Zeros(rounds=2).start(eight, users=1000, nodes=8, epsilon=4.0, **options)


def test_the_last_error_says_whose_weight_changed(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.1)
    before = {i: VotingNode(25, i) for i in range(4)}
    crash_in(2, Rig(tmp_path, loopback, before).engine(Counting()))
    run = begun(Rig(tmp_path, loopback, {i: VotingNode(50, i) for i in range(2)}), Counting())
    with pytest.raises(
        TooFewNodes,
        match=r"2 of 2 nodes are not enrolled: their weight 50 was 25 when the run began: start as "
        r"many nodes as then, or choose another folder",
    ):
        run.run()


def test_a_greeting_that_all_refuse_ends_the_wait(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.3)
    asked: list[Message] = []

    def refuses(message: Message) -> Message:
        asked.append(message)
        return wire.refuse(message, Refusal.SETUP)

    rig = Rig(tmp_path, loopback, dict.fromkeys(range(100, 104), refuses))
    with pytest.raises(
        TooFewNodes, match=r"^4 of 4 nodes refused: node-setup: the nodes' own logs"
    ):
        begun(rig, Counting(), node_timeout=60.0).run()
    assert len(asked) == 4


def test_a_node_that_starts_late_is_still_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four refuses; the others are on their way: nobody gives up."""
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.1)
    late = dict(rig.nodes)
    rig.nodes.clear()
    rig.nodes[104] = lambda message: wire.refuse(message, Refusal.SETUP)  # type: ignore[assignment]
    start = time.monotonic()
    ids = rig.grid.get_node_ids

    def get_node_ids() -> list[int]:
        if time.monotonic() - start > 0.6:
            rig.nodes.update(late)
        found: list[int] = ids()
        return found

    rig.grid.get_node_ids = get_node_ids
    assert begun(rig, Counting(), node_timeout=60.0).run() == 3


def test_a_forgotten_decorator_is_named_within_seconds(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.3)
    called: list[Message] = []

    def undecorated(message: Message) -> Message:
        called.append(message)
        message.content["arrays"]  # a greeting has none
        raise AssertionError

    start = time.monotonic()
    with pytest.raises(TooFewNodes) as caught:
        DPFedAvg().start(
            loopback({100 + i: undecorated for i in range(20)}),
            record(),
            epsilon=4.0,
            delta=1e-5,
            users=20,
            folder=tmp_path / "run",
        )
    assert time.monotonic() - start < 100.0
    assert len(called) == 20  # each one is a traceback in Flower's log
    assert str(caught.value) == (
        "20 of 20 nodes failed (Flower error code 2): their train function is not private. Put "
        "@private_training below @app.train() in the ClientApp; or the function has an action "
        'name, as in @app.train("fit"), or the ClientApp has mods that read messages, such as '
        "clipping: take those out (docs/dropin.md)"
    )


def test_another_app_than_ours_is_named(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.3)

    def raises(message: Message) -> Message:
        raise ValueError("no such handler")

    with pytest.raises(TooFewNodes, match=r"ClientApp must be privsyn_flower\.client_apps\.main"):
        Rig(tmp_path, loopback, {100: raises}).engine(Counting()).run()


# Groups of nodes -----------------------------------------------------------------------------


def of_groups(nodes: dict[int, VotingNode]) -> dict[int, VotingNode]:
    """Two strong nodes, then two weak ones."""
    for number, node in enumerate(nodes.values()):
        node.facts = replace(node.facts, resources="strong" if number < 2 else "weak")
    return nodes


def test_a_group_is_asked_alone_and_counts_its_own_weight(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    of_groups(rig.nodes)
    run = begun(rig, Counting(1), group="weak", users=50, nodes=2)
    assert run.run() == 1
    assert [len(node.seen) for node in rig.nodes.values()] == [0, 0, 1, 1]
    row = run.folder.metrics()[0]
    assert (row["nodes_asked"], row["surviving_weight"]) == (2, 50)
    assert [charge.group for charge in run.ledger.charges()] == ["r/weak"]
    assert not [said for said in caplog.messages if "going on without" in said]


def test_a_group_that_is_too_light_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort, "SETTLE_SECONDS", 0.1)
    rig.nodes[103].facts = replace(rig.nodes[103].facts, resources="weak")
    plan = {"group": "weak", "users": 50, "nodes": 2, "node_timeout": 0.3}
    with pytest.raises(TooFewNodes, match=r"weight 25 .* of weak nodes; node-config resources"):
        begun(rig, Counting(1), **plan).run()
    assert not any(node.seen for node in rig.nodes.values())


@pytest.mark.parametrize("group", ["weak", ""])
def test_a_node_that_changes_its_group_is_left_out_of_runs_with_groups(
    rig: Rig, group: str
) -> None:
    """It was asked as another one's before; where there are no groups nothing depends on it."""
    of_groups(rig.nodes)
    plan = {"group": "strong", "users": 50, "nodes": 2} if group else {}
    crash_in(1, begun(rig, Counting(), **plan))
    rig.nodes[101].facts = replace(rig.nodes[101].facts, resources="weak")
    before = len(rig.nodes[101].seen)
    plan = {"group": "weak", "users": 50, "nodes": 2} if group else {}
    run = begun(rig, Counting(), **plan)
    run.run()
    assert len(rig.nodes[101].seen) == before + (0 if group else 2)
    assert run.folder.load_value("resources") == (
        {f"node {i}": "strong" if i < 102 else "weak" for i in rig.nodes} if group else None
    )


def test_a_node_that_named_no_group_joins_one_later(rig: Rig) -> None:
    """It was never asked, and its owner was told to set the key."""
    of_groups(rig.nodes)
    rig.nodes[103].facts = replace(rig.nodes[103].facts, resources="")
    plan = {"group": "strong", "users": 50, "nodes": 2}
    assert begun(rig, Counting(1), **plan).run() == 1
    rig.nodes[103].facts = replace(rig.nodes[103].facts, resources="weak")
    run = begun(rig, Counting(2), **{**plan, "group": "weak"})
    run.run()
    assert [len(node.seen) for node in rig.nodes.values()] == [1, 1, 1, 1]


def test_a_newcomer_is_weighed_in_its_own_group(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    of_groups(rig.nodes)
    new = {104: VotingNode(5, 4, deployed=True), 105: VotingNode(5, 5, deployed=True)}
    for node, resources in ((104, "strong"), (105, "weak")):
        new[node].facts = replace(new[node].facts, resources=resources)
    rig.nodes[102].before_answer = lambda ticket: rig.nodes.update(new)
    run = begun(rig, Counting(2), group="weak", users=50, nodes=2)
    assert run.run() == 2
    assert [m for m in caplog.messages if "not asked" in m] == [
        "node 105 is not asked: its weight 5 is above the 0 left of users = 50"
    ]
    assert not new[104].seen and not new[105].seen
