"""Who adds the noise: charges, order of steps and key of a trusted aggregator.

Its noise has to be on a sum before anything else is done with it, on one sum only, from a key that
lives as long as the run; the ledger says what the released prefix has cost.
"""

from __future__ import annotations

import json
import math
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.accounting import gaussian_epsilon
from privsyn_flower.privacy.correlated import (
    Factorization,
    NoiseKey,
    NoiseKeyHeld,
    NoiseKeyMissing,
    Participation,
    epsilon_correlated,
    factorization,
)
from privsyn_flower.privacy.encoding.dense import encode_dense
from privsyn_flower.privacy.encoding.quantize import to_modulus
from privsyn_flower.privacy.ledger import BudgetExceeded, Ledger, LedgerError
from privsyn_flower.privacy.ledger.filters import SLACK, new_header
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.plan import Phase
from privsyn_flower.privacy.planning import evaluation_phases, plan_privacy
from privsyn_flower.privacy.release import ReleaseRefused, TooFewSurvivors, release
from privsyn_flower.protocol import greeting, wire
from privsyn_flower.protocol.noise import Noise, encoded_bound, integer_plan, total_variation
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine import aggregator_noise
from privsyn_flower.strategies.engine.aggregation import Aggregation, ModularSum, PlainSum
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.cohort import RoundPlan, TooFewNodes
from privsyn_flower.strategies.engine.mechanisms import NodeNoise
from privsyn_flower.strategies.engine.rounds import NoRelease, NothingLearned, Rounds
from privsyn_flower.strategies.engine.session import trusted_noise
from tests.rigs.answers import Device, expected, question
from tests.rigs.rounds import Counting, VotingNode

EPSILON, DELTA, T = 4.0, 1e-6, 5
BANDED = factorization("banded", T, bands=2)
TWICE = Participation(T, min_separation=2, max_participations=2)


class Voting(Counting):
    """A fixed vote question with the schedule that the noise is made for."""

    options: ClassVar[dict[str, Any]] = {"min-separation": 2, "max-participations": 2}

    def ask(self, rnd: int) -> Query:
        query = super().ask(rnd)
        return replace(query, options={**query.options, **self.options})


class Updating(Voting):
    """The same with a dense question."""

    def ask(self, rnd: int) -> Query:
        self.asked.append(rnd)
        parameters = np.full(8, rnd, dtype=np.uint8)
        rotation = bytes([rnd]) * 32
        return Query.update(
            parameters, length=300, bound=0.5, model="m", rotation=rotation, options=self.options
        )


class UpdatingNode(VotingNode):
    """Answers a vector of norm `bound` for each of its users."""

    def __call__(self, message: Message) -> Message | None:
        if greeting.is_hello(message):
            return greeting.answer_hello(message, self.facts)
        query, ticket, noise = wire.read_ask(message, self.facts.weight)
        self.seen.append((ticket, noise))
        vector = np.full(query.length, query.bound / math.sqrt(query.length))
        encoded = encode_dense(vector, integer_plan(query, noise), query.rotation)
        return wire.answer(message, ticket, to_modulus(encoded * 25, noise.bits), noise.bits)


@pytest.fixture
def nodes() -> dict[int, VotingNode]:
    return {100 + i: VotingNode(25, i) for i in range(4)}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def aggregator(
    keys: Path,
    matrix: Factorization = BANDED,
    participation: Participation = TWICE,
    *,
    evaluations: int = 0,
) -> AggregatorNoise:
    rounds = Phase(
        rounds=matrix.rounds, source="aggregator", correlation=matrix, participation=participation
    )
    beside = evaluation_phases(rounds, evaluations)
    return trusted_noise(plan_privacy(EPSILON, DELTA, [rounds, *beside]).main, keys, "r")


def evaluation_noise(mechanism: AggregatorNoise, keys: Path) -> AggregatorNoise:
    """Of a question beside rounds with that noise."""
    rounds = Phase(
        rounds=mechanism.factorization.rounds,
        source="aggregator",
        correlation=mechanism.factorization,
        participation=mechanism.participation,
    )
    [evaluation] = evaluation_phases(rounds.with_multiplier(mechanism.z), 1)
    return trusted_noise(evaluation, keys, "r-evaluation")


def book(tmp_path: Path) -> Ledger:
    return Ledger.open(
        tmp_path / "ledger.jsonl", population="people", total_epsilon=EPSILON, total_delta=DELTA
    )


PLAN = RoundPlan(
    run="r",
    users=100,
    noise_multiplier=1.0,
    spare_rounds=0,
    min_surviving_weight=0.75,
    nodes=4,
    round_timeout=0.1,
    node_timeout=1.0,
)


def engine(
    tmp_path: Path,
    grid: Any,
    mechanism: AggregatorNoise | NodeNoise,
    strategy: Counting | None = None,
    aggregation: Aggregation | None = None,
    plan: RoundPlan = PLAN,
) -> Rounds:
    return Rounds(
        grid,
        strategy or Voting(T),
        plan,
        RunFolder(tmp_path / "run"),
        book(tmp_path),
        aggregation or PlainSum(),
        mechanism=mechanism,
    )


def with_key(keys: Path, content: bytes = bytes(range(32))) -> Path:
    """A key that is known, so that the noise is."""
    (NoiseKey.create(keys, "r").place / "key").write_bytes(content)
    return keys


def noise_of(tmp_path: Path, mechanism: AggregatorNoise, length: int) -> list[np.ndarray[Any, Any]]:
    """The noise of each round under the known key, at standard deviation 1 of z."""
    with_key(tmp_path / "copy")
    key = NoiseKey.open(tmp_path / "copy", "r")
    stream = mechanism.factorization.stream(key, length, keep="memory", binding=mechanism.binding)
    return [stream.noise(rnd) for rnd in range(1, mechanism.factorization.rounds + 1)]


def rounded(tmp_path: Path, mechanism: AggregatorNoise, sums: list[float]) -> np.ndarray[Any, Any]:
    """What Voting releases under the known key, noise to the grid of 4096 integers a vote."""
    drawn = noise_of(tmp_path, mechanism, 4)
    noise = [np.rint(mechanism.z * 4096 * unit) / 4096 for unit in drawn]
    return np.round([total + one for total, one in zip(sums, noise, strict=True)], 9)


def releases(tmp_path: Path, rounds: int = T) -> list[np.ndarray[Any, Any]]:
    found = [RunFolder(tmp_path / "run").load_release(rnd) for rnd in range(1, rounds + 1)]
    return [array for array in found if array is not None]


# What the noise is, and what it costs ----------------------------------------------------


def test_each_release_is_the_sum_with_its_rounds_noise(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    mechanism = aggregator(with_key(keys))
    strategy = Voting(T)
    assert engine(tmp_path, loopback(nodes), mechanism, strategy).run() == T
    assert np.array_equal(np.round(releases(tmp_path), 9), rounded(tmp_path, mechanism, [4.0] * T))
    assert strategy.stds == pytest.approx(list(BANDED.release_std() * mechanism.z))
    _, noise = nodes[100].seen[0]
    assert (noise.source, noise.scale) == ("aggregator", 0.0)
    assert noise.multiplier == pytest.approx(
        mechanism.z * math.sqrt(2) / BANDED.sensitivity(TWICE), rel=1e-12
    )
    row = RunFolder(tmp_path / "run").metrics()[0]
    assert row["mechanism"] == BANDED.name and row["candidates"] == 4
    assert row["guaranteed_noise_std"] == row["noise_std"] == strategy.stds[0]


def test_noise_of_a_dense_sum_is_for_the_norm_after_rounding(
    tmp_path: Path, loopback: Any, keys: Path
) -> None:
    nodes = {100 + i: UpdatingNode(25, i) for i in range(4)}
    mechanism = aggregator(with_key(keys))
    assert engine(tmp_path, loopback(nodes), mechanism, Updating(T)).run() == T
    _, noise = nodes[100].seen[0]
    reach = noise.sensitivity / noise.scale
    assert 0.5 < reach < 0.5 * 1.01
    drawn = noise_of(tmp_path, mechanism, 512)  # of the padding, too
    for released, unit in zip(releases(tmp_path), drawn, strict=True):
        left = released - mechanism.z * reach * unit[:300]
        assert left == pytest.approx(np.full(300, 100 * 0.5 / math.sqrt(300)), abs=1e-3)
    rows = RunFolder(tmp_path / "run").metrics()
    wanted = BANDED.release_std() * mechanism.z * reach
    assert [row["noise_std"] for row in rows] == pytest.approx(list(wanted), rel=1e-12)
    assert "candidates" not in rows[0] and rows[0]["bytes_up_per_node"] > 300


@pytest.mark.parametrize(
    ("name", "participation", "options"),
    [
        ("independent", Participation(T), {}),
        ("tree", Participation(T, 2), {"min-separation": 2}),
        ("tree-honaker", Participation(T, 1, 1), {"max-participations": 1}),
        ("banded", Participation(T, 2, 1), {"min-separation": 2, "max-participations": 1}),
        ("blt", Participation(T, 3), {"min-separation": 3}),
    ],
)
def test_the_ledger_says_what_the_released_prefix_cost(
    tmp_path: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    keys: Path,
    name: str,
    participation: Participation,
    options: dict[str, int],
) -> None:
    matrix = factorization(name, T, participation=participation)
    mechanism = aggregator(keys, matrix, participation)
    strategy = Voting(T)
    strategy.options = options  # type: ignore[misc]
    run = engine(tmp_path, loopback(nodes), mechanism, strategy)
    assert run.run() == T
    spent = [row["epsilon_so_far"] for row in run.folder.metrics()]
    prefixes = matrix.cumulative_sensitivity(participation)
    wanted = [gaussian_epsilon(mechanism.z / prefix, gaussian_delta(DELTA)) for prefix in prefixes]
    assert spent == pytest.approx(wanted, rel=1e-6)
    whole = epsilon_correlated(mechanism.z, gaussian_delta(DELTA), matrix, participation)
    assert EPSILON * (1 - 1e-6) < whole <= EPSILON
    assert run.ledger.spent_epsilon() <= EPSILON * (1 + 1e-9)
    with pytest.raises(BudgetExceeded):  # nothing is left, not even for a hundred times the noise
        run.ledger.reserve(
            run="x", query="q", round=1, attempt=1, noise_multiplier=100 * mechanism.multiplier
        )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_user_moves_a_prefix_by_more_than_it_is_charged(data: st.DataObject) -> None:
    """The filter's condition on every path: sum of squared means <= sum of charges, at any stop."""
    coefficients = np.array([1.0, 0.5])
    matrix = factorization("banded", T, bands=2)
    assert np.allclose(coefficients, matrix.coefficients)  # type: ignore[attr-defined]
    mechanism = AggregatorNoise(matrix, TWICE, 1.7, Path("unused"), "r")
    first = data.draw(st.integers(0, T - 1))
    later = [r for r in range(T) if r >= first + 2]
    second = data.draw(st.sampled_from([*later, None]) if later else st.none())
    rows = np.zeros((T, 3))
    for rnd in {first, second} - {None}:
        vector = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=3, max_size=3)))
        rows[rnd] = vector / max(1.0, float(np.linalg.norm(vector)))
    moved = coefficients[0] * rows + coefficients[1] * np.vstack([np.zeros(3), rows[:-1]])
    plan, noise = PLAN, Noise(1.0, 1.0, 8, 1.0)
    charged = [mechanism.charge(plan, noise, r)["noise_multiplier"] ** -2 for r in range(1, T + 1)]
    paths = np.cumsum((moved**2).sum(axis=1)) / mechanism.z**2
    assert (paths <= np.cumsum(charged) * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["tree", "banded", "independent"])
def test_nodes_count_no_less_than_any_participations_cost(keys: Path, name: str) -> None:
    """One of two rounds costs three quarters of both in a tree, not one half."""
    participation = Participation(T, min_separation=4)
    matrix = factorization(name, T, participation=participation, bands=T)
    mechanism = aggregator(keys, matrix, participation)
    strategy = Voting(T)
    strategy.options = {"min-separation": 4}  # type: ignore[misc]
    told = mechanism.noise(PLAN, strategy.ask(1)).multiplier
    costs = [
        (matrix.sensitivity(Participation(T, 4, count)) / mechanism.z) ** 2 / count
        for count in (1, 2)
    ]
    assert told**-2 == pytest.approx(max(costs), rel=1e-9)
    assert told <= mechanism.multiplier * (1 + 1e-12)
    assert (told < 0.999 * mechanism.multiplier) == (name != "independent")
    # One participation in noise of its own is what it is charged.
    beside = evaluation_noise(mechanism, keys)
    assert beside.noise(PLAN, Counting(1).ask(1)).multiplier == beside.z == mechanism.multiplier


def test_an_evaluation_beside_the_rounds_fits_the_total(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    mechanism = aggregator(keys, evaluations=1)
    grid = loopback(nodes)
    assert engine(tmp_path, grid, mechanism).run() == T
    ledger = book(tmp_path)
    assert ledger.spent_epsilon() < EPSILON * 0.95
    folder, plan = RunFolder(tmp_path / "evaluation"), replace(PLAN, run="r-evaluation")
    for _ in range(2):  # the second reads the first one's release
        Rounds(
            grid,
            Counting(1),
            plan,
            folder,
            ledger,
            PlainSum(),
            mechanism=evaluation_noise(mechanism, keys),
        ).run()
    charges = ledger.charges(run="r-evaluation")
    assert [charge.noise_multiplier for charge in charges] == [mechanism.multiplier]
    assert EPSILON * (1 - 1e-6) < ledger.spent_epsilon() <= EPSILON * (1 + 1e-9)
    assert list(keys.iterdir()) == []


# One noise, one sum ----------------------------------------------------------------------


def crash(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


def die_answering(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    nodes[103].before_answer = crash


def die_before_the_claim(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    patch.setattr(AggregatorNoise, "claim", crash)


def die_with_noise_drawn(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    patch.setattr(RunFolder, "save_release", crash)


def die_writing_the_release(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    whole, tidy = Path.replace, Path.unlink

    def half(self: Path, target: Path) -> Path:
        if Path(target).parent.name == "releases":
            raise KeyboardInterrupt
        return whole(self, target)

    def left(self: Path, missing_ok: bool = False) -> None:
        if self.parent.name != "releases":
            tidy(self, missing_ok)

    patch.setattr(Path, "replace", half)
    patch.setattr(Path, "unlink", left)  # a kill tidies nothing up


def die_before_it_is_bound(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    patch.setattr(AggregatorNoise, "bind", crash)


def die_with_the_disk_of_the_key_full(
    patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]
) -> None:
    def full(path: Path, content: bytes) -> None:
        if path.name == "released.json":
            raise KeyboardInterrupt  # as `crash`; a full disk says OSError
        keys_written(path, content)

    keys_written = aggregator_noise.replace_private
    patch.setattr(aggregator_noise, "replace_private", full)


def die_before_the_commit(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    patch.setattr(Ledger, "commit", crash)


def die_before_the_checkpoint(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    patch.setattr(RunFolder, "save_checkpoint", crash)


def die_erasing(patch: pytest.MonkeyPatch, nodes: dict[int, VotingNode]) -> None:
    patch.setattr(NoiseKey, "erase", crash)


CLAIMED = [die_with_noise_drawn, die_writing_the_release]
UNBOUND = [die_before_it_is_bound, die_with_the_disk_of_the_key_full]
BEFORE = [die_answering, die_before_the_claim, *CLAIMED]
AFTER = [*UNBOUND, die_before_the_commit, die_before_the_checkpoint, die_erasing]


@pytest.mark.parametrize("kill", BEFORE + AFTER)
def test_a_killed_run_goes_on_with_the_same_bits(
    tmp_path: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    keys: Path,
    kill: Callable[[pytest.MonkeyPatch, dict[int, VotingNode]], None],
) -> None:
    grid = loopback(nodes)
    mechanism = aggregator(with_key(keys))
    strategy = Voting(T)
    strategy.crash_in = 2  # one round is done; the second is left to be learned from
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, grid, mechanism, strategy).run()
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, nodes)
        with pytest.raises(KeyboardInterrupt):
            engine(tmp_path, grid, aggregator(keys)).run()
    states = [(c.round, c.state, c.sent) for c in book(tmp_path).charges(run="r")]
    assert not any(sent for _, _, sent in states)
    asked, stored = len(nodes[100].seen), len(releases(tmp_path))
    nodes[103].before_answer = None
    nodes[100].mode = "silent"  # another sum, should a released round be asked again
    run = engine(tmp_path, grid, aggregator(keys))
    assert run.run() == T
    sums = [4.0] * stored + [3.0] * (T - stored)
    assert np.array_equal(np.round(releases(tmp_path), 9), rounded(tmp_path, mechanism, sums))
    assert len(nodes[100].seen) == asked + T - stored
    committed = [c.round for c in run.ledger.charges(run="r") if c.state == "committed"]
    assert committed == list(range(1, T + 1))
    assert {c.state for c in run.ledger.charges(run="r")} <= {"committed", "void"}
    assert not list((tmp_path / "run" / "releases").glob(".*"))
    assert list(keys.iterdir()) == []


@pytest.mark.parametrize("kill", [*CLAIMED, *UNBOUND])
def test_a_copy_made_before_a_killed_round_gets_no_noise_of_it(
    tmp_path: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    keys: Path,
    kill: Callable[[pytest.MonkeyPatch, dict[int, VotingNode]], None],
) -> None:
    """Its charge is reserved and never sent; the difference of two such releases is exact."""
    grid, mechanism = loopback(nodes), aggregator(with_key(keys))
    run, backup, first = tmp_path / "run", tmp_path / "backup", tmp_path / "first"
    strategy = Voting(T)
    strategy.crash_in = 2
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, grid, mechanism, strategy).run()
    shutil.copytree(run, backup)
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, nodes)
        with pytest.raises(KeyboardInterrupt):
            engine(tmp_path, grid, aggregator(keys)).run()
    asked, charges = len(nodes[100].seen), book(tmp_path).charges(run="r")
    assert [(charge.round, charge.state) for charge in charges][-1] == (3, "reserved")
    run.rename(first)
    backup.rename(run)
    nodes[100].mode = "silent"  # another sum
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"round 3 .* under charge .*go on with that copy"):
            engine(tmp_path, grid, aggregator(keys)).run()
    assert len(nodes[100].seen) == asked and book(tmp_path).charges(run="r") == charges
    run.rename(backup)
    first.rename(run)  # the folder that drew it goes on
    stored = len(releases(tmp_path))
    assert engine(tmp_path, grid, aggregator(keys)).run() == T
    sums = [4.0] * stored + [3.0] * (T - stored)
    assert np.array_equal(np.round(releases(tmp_path), 9), rounded(tmp_path, mechanism, sums))


def test_a_round_that_was_killed_again_and_again_goes_on_where_it_was_last(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    """Also from before a claim, when the last claim is the attempt's before."""
    grid, mechanism = loopback(nodes), aggregator(with_key(keys))
    run, behind = tmp_path / "run", tmp_path / "behind"
    kills = [die_before_the_claim, die_with_noise_drawn, die_before_the_claim, die_answering]
    for kill in [*kills, die_writing_the_release, die_before_the_claim]:
        with pytest.MonkeyPatch.context() as patch:
            kill(patch, nodes)
            with pytest.raises(KeyboardInterrupt):
                engine(tmp_path, grid, aggregator(keys)).run()
        nodes[103].before_answer = None
        if not behind.exists():
            shutil.copytree(run, behind)  # its facts name the first attempt
    shutil.copytree(run, tmp_path / "last")
    shutil.rmtree(run)
    shutil.copytree(behind, run)
    with pytest.raises(LedgerError, match="the noise of round 1 of run r was drawn under charge"):
        engine(tmp_path, grid, aggregator(keys)).run()
    shutil.rmtree(run)
    (tmp_path / "last").rename(run)
    assert engine(tmp_path, grid, aggregator(keys)).run() == T
    wanted = rounded(tmp_path, mechanism, [4.0] * T)
    assert np.array_equal(np.round(releases(tmp_path), 9), wanted)


def test_a_claim_is_on_disk_beside_the_key_and_for_its_folder_alone(keys: Path) -> None:
    mechanism = aggregator(keys)
    mechanism.begin(T, 0, fresh=True)
    mechanism.check_claim(0, "", 0)
    mechanism.claim(2, "b", 3)
    assert stat.S_IMODE((keys / "r" / "claimed.json").stat().st_mode) == 0o600
    for released, charge, attempt in [(1, "b", 3), (1, "c", 4), (2, "", 0), (3, "", 0)]:
        mechanism.check_claim(released, charge, attempt)
    for released, charge, attempt in [(1, "", 0), (1, "a", 2), (1, "x", 3), (0, "b", 3)]:
        with pytest.raises(LedgerError, match=r"noise of round 2 of run r .* under charge b"):
            mechanism.check_claim(released, charge, attempt)


def test_half_a_release_is_gone_before_the_noise_is_on_another_sum(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    """A complete temporary file beside a release of the same noise would give both sums away."""
    grid = loopback(nodes)
    with pytest.MonkeyPatch.context() as patch:
        die_writing_the_release(patch, nodes)
        with pytest.raises(KeyboardInterrupt):
            engine(tmp_path, grid, aggregator(keys)).run()
    folder = tmp_path / "run" / "releases"
    assert len(list(folder.glob(".*"))) == 1
    left: list[int] = []
    nodes[100].before_answer = lambda ticket: left.append(len(list(folder.glob(".*"))))
    engine(tmp_path, grid, aggregator(keys)).run()
    assert left == [0] * T


@pytest.mark.parametrize("lost", [["ledger.jsonl"], []], ids=["with the ledger", "alone"])
def test_a_run_folder_that_was_put_back_gets_no_noise_again(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path, lost: list[str]
) -> None:
    grid = loopback(nodes)
    strategy = Voting(T)
    strategy.crash_in = 3
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, grid, aggregator(keys), strategy).run()
    for name in ["run/releases/round-0003.npz", "run/checkpoints/round-0003-facts.json", *lost]:
        (tmp_path / name).unlink()
    if lost:
        for path in [*(tmp_path / "run").glob("*/round-*")]:
            path.unlink()
    asked = len(nodes[100].seen)
    with pytest.raises(LedgerError, match="restore the run folder"):
        engine(tmp_path, grid, aggregator(keys)).run()
    assert len(nodes[100].seen) == asked


def test_too_few_answers_draw_no_noise_and_cost_nothing(
    tmp_path: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recover(ticket: Any) -> None:
        nodes[101].mode = nodes[102].mode = "silent" if ticket.attempt == 1 else "ok"

    nodes[100].before_answer = recover
    mechanism = aggregator(with_key(keys))
    finished: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(ModularSum, "add", lambda *given: finished.append(len(nodes[100].seen)))
        run = engine(tmp_path, loopback(nodes), mechanism)
        assert run.run() == T
    assert finished == [2, 4, 6, 8, 10]  # the second attempt of each round
    states = [(c.round, c.attempt, c.state) for c in run.ledger.charges(run="r")]
    assert states[:3] == [(1, 1, "void"), (1, 2, "committed"), (2, 1, "void")]
    assert run.ledger.spent_epsilon() <= EPSILON * (1 + 1e-9)


def test_attempts_that_cost_nothing_end_all_the_same(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    for node in list(nodes.values())[1:]:
        node.mode = "refuse"
    run = engine(tmp_path, loopback(nodes), aggregator(keys), Voting(1))
    with pytest.raises(NoRelease):
        run.run()
    assert run.ledger.spent_epsilon() == 0.0 and releases(tmp_path) == []
    assert (keys / "r" / "key").exists()


def summed(source: Any = "aggregator", weight: float = 100.0) -> ModularSum:
    noise = Noise(1.0, 4096.0, 24, 75.0, source=source)
    query = Query.votes(np.eye(3), bound=1.0, model="m")
    query = replace(query, options={**query.options, **Voting.options})
    return ModularSum(np.full(3, 7 * 4096, dtype=np.uint64), query, noise, weight)


def test_finish_takes_one_bare_sum_a_round(keys: Path) -> None:
    mechanism = aggregator(keys)
    with pytest.raises(ReleaseRefused, match="not open"):
        mechanism.finish(1, summed())
    mechanism.begin(T, 0, fresh=True)
    with pytest.raises(TooFewSurvivors):
        mechanism.finish(1, summed(weight=74.0))
    with pytest.raises(ReleaseRefused, match="added by the nodes"):
        mechanism.finish(1, summed("nodes"))
    bare = summed()
    total = mechanism.finish(1, bare)
    assert (bare.residues != 7 * 4096).all()  # no copy without noise stays
    assert np.array_equal(total.vector * 4096 % 2**24, bare.residues)
    with pytest.raises(ReleaseRefused, match="one sum only"):
        mechanism.finish(1, summed())


def test_a_sum_without_noise_cannot_be_released(tmp_path: Path) -> None:
    ledger = book(tmp_path)
    charge = ledger.reserve(run="r", query="q", round=1, attempt=1, noise_multiplier=2.0)
    with pytest.raises(ReleaseRefused, match="noise_std = 0"):
        release(summed().decoded(0.0), ledger=ledger, charge_id=charge, store=lambda array: None)


def test_the_bare_sum_is_written_and_logged_nowhere(
    tmp_path: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    keys: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = loopback(nodes)
    with pytest.MonkeyPatch.context() as patch:
        die_writing_the_release(patch, nodes)
        with pytest.raises(KeyboardInterrupt):
            engine(tmp_path, grid, aggregator(keys)).run()
    engine(tmp_path, grid, aggregator(keys)).run()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 2 * T
    for path in files:
        content = path.read_bytes()
        assert np.full(2, 4.0).tobytes() not in content and b"4.0, 4.0" not in content, path
        assert np.full(2, 4 * 4096, dtype=np.uint64).tobytes() not in content, path
    assert "4.0" not in caplog.text
    assert "residues" not in repr(summed())


# The key ---------------------------------------------------------------------------------


def test_a_run_without_its_key_asks_nobody(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    grid = loopback(nodes)
    strategy = Voting(T)
    strategy.crash_in = 2
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, grid, aggregator(keys), strategy).run()
    asked = len(nodes[100].seen)
    NoiseKey.open(keys, "r").erase()
    with pytest.raises(NoiseKeyMissing, match="start a new run"):
        engine(tmp_path, grid, aggregator(keys)).run()
    assert len(nodes[100].seen) == asked and not (keys / "r").exists()


def test_two_processes_never_draw_from_one_key(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    first, second = aggregator(keys), aggregator(keys)
    first.begin(T, 0, fresh=True)
    with pytest.raises(NoiseKeyHeld, match="another process goes on with this run"):
        second.begin(T, 0, fresh=True)
    with pytest.raises(NoiseKeyHeld):
        second.close(complete=True)  # nor is it erased under the other one
    strategy = Voting(T)
    with pytest.raises(NoiseKeyHeld):
        engine(tmp_path, loopback(nodes), second, strategy).run()
    assert not any(node.seen for node in nodes.values())
    first.finish(1, summed())
    first.bind(1)
    released = keys / "r" / "released.json"
    assert stat.S_IMODE(released.stat().st_mode) == 0o600
    first.close(complete=False)
    with pytest.raises(LedgerError, match="round 1 of run r was released"):
        second.begin(T, 0, fresh=True)
    second.close(complete=False)
    second.begin(T, 1, fresh=False)
    released.write_text('{"round": 2}')  # by somebody who holds no lock
    with pytest.raises(ReleaseRefused, match="rounds up to 2 have theirs"):
        second.finish(2, summed())
    second.close(complete=True)
    assert list(keys.iterdir()) == []


def test_a_failed_run_lets_the_key_go(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    grid, strategy, mechanism = loopback(nodes), Voting(T), aggregator(keys)
    strategy.crash_in = 2
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, grid, mechanism, strategy).run()
    with NoiseKey.open(keys, "r").hold():
        pass


def test_the_key_is_erased_with_the_last_round_and_kept_before(
    tmp_path: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    keys: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Dying(Voting):
        def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
            if rnd == 3:
                raise NothingLearned("nothing")
            return super().learn(rnd, released, noise_std)

    grid = loopback(nodes)
    assert engine(tmp_path, grid, aggregator(keys), Dying(T)).run() == 2
    assert (keys / "r" / "key").exists() and "key of the noise stays" in caplog.text
    assert engine(tmp_path, grid, aggregator(keys)).run() == T
    assert list(keys.iterdir()) == []
    assert engine(tmp_path, grid, aggregator(keys)).run() == T  # complete: needs no key
    assert list(keys.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"z": 1.0},
        {"participation": Participation(T, min_separation=1, max_participations=2)},
        {"participation": Participation(T, min_separation=2, max_participations=1)},
    ],
)
def test_a_key_serves_one_size_of_noise_and_one_pattern(
    tmp_path: Path,
    loopback: Any,
    nodes: dict[int, VotingNode],
    keys: Path,
    changes: dict[str, Any],
) -> None:
    """What the releases before cost depends on both: rounds of two settings would cost more."""
    grid = loopback(nodes)
    strategy = Voting(T)
    strategy.crash_in = 2
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, grid, aggregator(keys), strategy).run()
    asked = len(nodes[100].seen)
    other = replace(aggregator(keys), **changes)
    again = Voting(T)
    again.options = {  # type: ignore[misc]
        "min-separation": other.participation.min_separation,
        "max-participations": other.participations,
    }
    (tmp_path / "run" / "queries" / "round-0003.npz").unlink(missing_ok=True)
    with pytest.raises(ValueError, match="another size of the noise or other participations"):
        engine(tmp_path, grid, other, again).run()
    assert len(nodes[100].seen) == asked
    # Where nothing binds the key any more, the noise is another one.
    (keys / "r" / "mechanism").unlink()
    key = NoiseKey.open(keys, "r")
    drawn = BANDED.stream(key, 4, keep="nothing", binding=other.binding).noise(3)
    (keys / "r" / "mechanism").unlink()
    own = BANDED.stream(key, 4, keep="nothing", binding=aggregator(keys).binding).noise(3)
    assert (drawn != own).all()


def test_settings_of_another_run_are_refused_before_asking(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    grid = loopback(nodes)
    strategy = Voting(T)
    strategy.crash_in = 2
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, grid, aggregator(keys), strategy).run()
    asked = len(nodes[100].seen)
    other = aggregator(keys, factorization("banded", T, bands=3))
    with pytest.raises(ValueError, match="another mechanism"):
        engine(tmp_path, grid, other).run()
    longer = engine(tmp_path, grid, aggregator(keys), Voting(T + 1))
    with pytest.raises(ValueError, match=r"6 rounds are asked.*made for 5"):
        longer.run()
    assert len(nodes[100].seen) == asked
    assert {c.state for c in longer.ledger.charges(run="r")} == {"committed"}


# What is asked of the nodes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "plan", "words"),
    [
        ({"max-participations": 2}, PLAN, "min-separation = 1"),
        ({"min-separation": 1, "max-participations": 2}, PLAN, "min-separation = 1"),
        ({"min-separation": 2}, PLAN, "max-participations = 0"),
        ({"min-separation": 2, "max-participations": 3}, PLAN, "max-participations = 3"),
        (Voting.options, replace(PLAN, cycle=1), "cycle = 1"),
        (Voting.options, replace(PLAN, sampling_rate=0.5), "sampling-rate = 0.5"),
    ],
)
def test_the_nodes_are_asked_to_enforce_what_the_noise_counts_on(
    keys: Path, options: dict[str, Any], plan: RoundPlan, words: str
) -> None:
    strategy = Voting(T)
    strategy.options = options  # type: ignore[misc]
    with pytest.raises(ValueError, match=words):
        aggregator(keys).noise(plan, strategy.ask(1))


def test_numbers_out_of_range_are_refused(keys: Path) -> None:
    with pytest.raises(ValueError, match="z = 0"):
        AggregatorNoise(BANDED, TWICE, 0.0, keys, "r")
    with pytest.raises(ValueError, match="rounds = 4"):
        AggregatorNoise(BANDED, Participation(4), 1.0, keys, "r")


# Noise of the nodes, and the secure sum ---------------------------------------------------


def test_noise_of_the_nodes_for_a_dense_sum() -> None:
    query = Updating(1).ask(1)
    mechanism, plan = NodeNoise(), replace(PLAN, noise_multiplier=2.5)
    noise = mechanism.noise(plan, query)
    assert noise.source == "nodes" and noise.multiplier == 2.5 and noise.sensitivity >= 4096
    assert integer_plan(query, noise).scale == noise.scale > 0
    reach = encoded_bound(query, noise)
    assert 0.5 < reach <= 0.505
    std = mechanism.released_std(1, plan, query, noise, 100)
    assert std == pytest.approx(2.5 * reach * math.sqrt(100 / 75))
    charge = mechanism.charge(query, noise, 1)
    assert charge["noise_multiplier"] == 2.5
    assert 0 < charge["total_variation"] == total_variation(query, noise) <= plan.distance


def test_a_secure_sum_gets_the_aggregators_noise(
    tmp_path: Path, loopback: Any, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privsyn_flower.strategies.engine.aggregation import SecureAggregation

    devices = {100 + i: Device(tmp_path, i) for i in range(4)}
    matrix, always = factorization("independent", 1), Participation(1)
    mechanism = aggregator(with_key(keys), matrix, always)

    class Asking(Counting):
        def ask(self, rnd: int) -> Query:
            return question()

    plan = replace(PLAN, users=20, stage_timeout=0.5, round_timeout=0.5)
    grid = loopback(devices)
    run = engine(tmp_path, grid, mechanism, Asking(1), SecureAggregation(), plan)
    assert run.run() == 1
    (released,) = releases(tmp_path, 1)
    want = expected(question(), [0, 1, 2, 3])
    (unit,) = noise_of(tmp_path, mechanism, len(want))
    assert released - mechanism.z * question().bound * unit == pytest.approx(want, abs=0.02)
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["ledger", "reserve", "commit"]  # never "sent"


# The rota --------------------------------------------------------------------------------


def asked_in(nodes: dict[int, VotingNode]) -> dict[int, list[int]]:
    return {node: [ticket.round for ticket, _ in voting.seen] for node, voting in nodes.items()}


def test_nodes_take_turns_and_keep_their_places(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    plan = replace(PLAN, cycle=2)
    strategy = Voting(T)
    strategy.crash_in = 2
    with pytest.raises(RuntimeError, match="crash"):
        engine(tmp_path, loopback(nodes), aggregator(keys), strategy, plan=plan).run()
    assert asked_in(nodes) == {100: [1], 101: [2], 102: [1], 103: [2]}
    _, noise = nodes[100].seen[0]
    assert noise.min_weight == 38  # 0.75 of the 50 users whose turn it is, rounded up
    # The first node is gone and others have come, in front of it by their ids.
    gone = nodes.pop(100)
    more = {1: VotingNode(10, 7), 2: VotingNode(10, 8)}
    run = engine(
        tmp_path, loopback({**more, **nodes}), aggregator(keys), plan=replace(plan, nodes=5)
    )
    assert run.run() == T
    assert asked_in(nodes) == {101: [2, 4], 102: [1, 3, 5], 103: [2, 4]}
    assert asked_in(more) == {1: [3, 5], 2: [4]} and len(gone.seen) == 1
    weights = [row["surviving_weight"] for row in run.folder.metrics()]
    assert weights == [50, 50, 35, 60, 35]


def test_a_turn_that_is_too_light_asks_nobody(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    plan = replace(PLAN, cycle=2, colluding_weight=0.15, node_timeout=0.2)
    with pytest.raises(TooFewNodes, match=r"cycle = 2\) stands for 50 users"):
        engine(tmp_path, loopback(nodes), aggregator(keys), plan=plan).run()
    few = replace(PLAN, cycle=5, node_timeout=0.2)
    with pytest.raises(TooFewNodes, match="4 nodes"):
        engine(tmp_path, loopback(nodes), aggregator(keys), plan=few).run()
    assert not any(node.seen for node in nodes.values())


def test_a_plan_has_a_rota_or_a_draw() -> None:
    for wrong in ({"cycle": -1}, {"cycle": 2, "cohort_nodes": 3}):
        with pytest.raises(ValueError, match=r"cycle = .* exclude each other"):
            replace(PLAN, **wrong)


def test_the_hello_travels_as_the_plan_says(
    tmp_path: Path, loopback: Any, nodes: dict[int, VotingNode], keys: Path
) -> None:
    types: list[str] = []

    def noting(node: VotingNode) -> Callable[[Message], Message | None]:
        def answer(message: Message) -> Message | None:
            if greeting.is_hello(message):
                types.append(message.metadata.message_type)
                return greeting.answer_hello(message, node.facts)
            return node(message)

        return answer

    grid = loopback({at: noting(node) for at, node in nodes.items()})
    plan = replace(PLAN, greeting="train")
    assert engine(tmp_path, grid, aggregator(keys), plan=plan).run() == T
    assert types == ["train"] * 4


@pytest.mark.parametrize("evaluations", [0, 2])
def test_a_calibrated_run_of_many_rounds_fits_its_total(keys: Path, evaluations: int) -> None:
    """To the rounding that the filter allows, the rounds that cost nothing included."""
    participation = Participation(2000, min_separation=100, max_participations=10)
    matrix = factorization("banded", 2000, bands=40)
    mechanism = aggregator(keys, matrix, participation, evaluations=evaluations)
    query, noise = Voting(1).ask(1), Noise(1.0, 1.0, 8, 1.0)
    multipliers = [
        mechanism.charge(query, noise, rnd)["noise_multiplier"] for rnd in range(1, 2001)
    ] + [mechanism.multiplier] * evaluations
    spent = math.fsum((1 / multiplier) ** 2 for multiplier in multipliers)
    budget = new_header("p", EPSILON, DELTA, False).budget
    assert budget is not None and 1 - 1e-6 < spent / budget <= 1 + SLACK
    # Ten times 40 rounds have a part of the worst user; the rest costs nothing.
    assert sum(multiplier > 1e6 for multiplier in multipliers) == 1600
