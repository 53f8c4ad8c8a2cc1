"""Who adds the noise: charges, order of steps and key of a trusted aggregator.

Its noise has to be on a sum before anything else is done with it, on one sum only, from a key that
lives as long as the run; the ledger says what the released prefix has cost.
"""

from __future__ import annotations

import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privsyn_flower.privacy.correlated import (
    NoiseKey,
    NoiseKeyHeld,
    NoiseKeyMissing,
    Participation,
    factorization,
)
from privsyn_flower.privacy.ledger import Ledger, LedgerError
from privsyn_flower.privacy.release import ReleaseRefused, TooFewSurvivors, release
from privsyn_flower.protocol.noise import Noise
from privsyn_flower.protocol.question import Query
from privsyn_flower.runs import RunFolder
from privsyn_flower.strategies.engine import aggregator_noise
from privsyn_flower.strategies.engine.aggregation import ModularSum
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.rounds import NoRelease, NothingLearned
from tests.rigs.mechanisms import (
    BANDED,
    EPSILON,
    KeyRig,
    Kill,
    T,
    Voting,
    aggregator,
    book,
    keys,
    releases,
    rig,
    rounded,
    with_key,
)
from tests.rigs.rounds import VotingNode, crash_in, nodes

__all__ = ["keys", "nodes", "rig"]


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
def test_a_killed_run_goes_on_with_the_same_bits(rig: KeyRig, kill: Kill) -> None:
    mechanism = aggregator(with_key(rig.keys))
    crash_in(2, rig.engine(Voting(T), mechanism))  # learned from once it goes on
    rig.die(kill)
    states = [(c.round, c.state, c.sent) for c in book(rig.folder).charges(run="r")]
    assert not any(sent for _, _, sent in states)
    asked, stored = len(rig.nodes[100].seen), len(releases(rig.folder))
    rig.nodes[103].before_answer = None
    rig.nodes[100].mode = "silent"  # another sum, should a released round be asked again
    run = rig.engine()
    assert run.run() == T
    sums = [4.0] * stored + [3.0] * (T - stored)
    assert np.array_equal(np.round(releases(rig.folder), 9), rounded(rig.folder, mechanism, sums))
    assert len(rig.nodes[100].seen) == asked + T - stored
    committed = [c.round for c in run.ledger.charges(run="r") if c.state == "committed"]
    assert committed == list(range(1, T + 1))
    assert {c.state for c in run.ledger.charges(run="r")} <= {"committed", "void"}
    assert not list((rig.folder / "run" / "releases").glob(".*"))
    assert list(rig.keys.iterdir()) == []


@pytest.mark.parametrize("kill", [*CLAIMED, *UNBOUND])
def test_a_copy_made_before_a_killed_round_gets_no_noise_of_it(rig: KeyRig, kill: Kill) -> None:
    """Its charge is reserved and never sent; the difference of two such releases is exact."""
    mechanism = aggregator(with_key(rig.keys))
    run, backup, first = rig.folder / "run", rig.folder / "backup", rig.folder / "first"
    crash_in(2, rig.engine(Voting(T), mechanism))
    shutil.copytree(run, backup)
    rig.die(kill)
    asked, charges = len(rig.nodes[100].seen), book(rig.folder).charges(run="r")
    assert [(charge.round, charge.state) for charge in charges][-1] == (3, "reserved")
    run.rename(first)
    backup.rename(run)
    rig.nodes[100].mode = "silent"  # another sum
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"round 3 .* under charge .*go on with that copy"):
            rig.engine().run()
    assert len(rig.nodes[100].seen) == asked and book(rig.folder).charges(run="r") == charges
    run.rename(backup)
    first.rename(run)  # the folder that drew it goes on
    stored = len(releases(rig.folder))
    assert rig.engine().run() == T
    sums = [4.0] * stored + [3.0] * (T - stored)
    assert np.array_equal(np.round(releases(rig.folder), 9), rounded(rig.folder, mechanism, sums))


def test_a_round_that_was_killed_again_and_again_goes_on_where_it_was_last(rig: KeyRig) -> None:
    """Also from before a claim, when the last claim is the attempt's before."""
    mechanism = aggregator(with_key(rig.keys))
    run, behind = rig.folder / "run", rig.folder / "behind"
    kills = [die_before_the_claim, die_with_noise_drawn, die_before_the_claim, die_answering]
    for kill in [*kills, die_writing_the_release, die_before_the_claim]:
        rig.die(kill)
        rig.nodes[103].before_answer = None
        if not behind.exists():
            shutil.copytree(run, behind)  # its facts name the first attempt
    shutil.copytree(run, rig.folder / "last")
    shutil.rmtree(run)
    shutil.copytree(behind, run)
    with pytest.raises(LedgerError, match="the noise of round 1 of run r was drawn under charge"):
        rig.engine().run()
    shutil.rmtree(run)
    (rig.folder / "last").rename(run)
    assert rig.engine().run() == T
    wanted = rounded(rig.folder, mechanism, [4.0] * T)
    assert np.array_equal(np.round(releases(rig.folder), 9), wanted)


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


def test_half_a_release_is_gone_before_the_noise_is_on_another_sum(rig: KeyRig) -> None:
    """A complete temporary file beside a release of the same noise would give both sums away."""
    rig.die(die_writing_the_release)
    folder = rig.folder / "run" / "releases"
    assert len(list(folder.glob(".*"))) == 1
    left: list[int] = []
    rig.nodes[100].before_answer = lambda ticket: left.append(len(list(folder.glob(".*"))))
    rig.engine().run()
    assert left == [0] * T


@pytest.mark.parametrize("lost", [["ledger.jsonl"], []], ids=["with the ledger", "alone"])
def test_a_run_folder_that_was_put_back_gets_no_noise_again(rig: KeyRig, lost: list[str]) -> None:
    crash_in(3, rig.engine())
    for name in ["run/releases/round-0003.npz", "run/checkpoints/round-0003-facts.json", *lost]:
        (rig.folder / name).unlink()
    if lost:
        for path in [*(rig.folder / "run").glob("*/round-*")]:
            path.unlink()
    asked = len(rig.nodes[100].seen)
    with pytest.raises(LedgerError, match="restore the run folder"):
        rig.engine().run()
    assert len(rig.nodes[100].seen) == asked


def test_too_few_answers_draw_no_noise_and_cost_nothing(
    rig: KeyRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recover(ticket: Any) -> None:
        rig.nodes[101].mode = rig.nodes[102].mode = "silent" if ticket.attempt == 1 else "ok"

    rig.nodes[100].before_answer = recover
    mechanism = aggregator(with_key(rig.keys))
    finished: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(ModularSum, "add", lambda *given: finished.append(len(rig.nodes[100].seen)))
        run = rig.engine(mechanism=mechanism)
        assert run.run() == T
    assert finished == [2, 4, 6, 8, 10]  # the second attempt of each round
    states = [(c.round, c.attempt, c.state) for c in run.ledger.charges(run="r")]
    assert states[:3] == [(1, 1, "void"), (1, 2, "committed"), (2, 1, "void")]
    assert run.ledger.spent_epsilon() <= EPSILON * (1 + 1e-9)


def test_attempts_that_cost_nothing_end_all_the_same(rig: KeyRig) -> None:
    for node in list(rig.nodes.values())[1:]:
        node.mode = "refuse"
    run = rig.engine(Voting(1))
    with pytest.raises(NoRelease):
        run.run()
    assert run.ledger.spent_epsilon() == 0.0 and releases(rig.folder) == []
    assert (rig.keys / "r" / "key").exists()


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
    rig: KeyRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.die(die_writing_the_release)
    rig.engine().run()
    files = [path for path in rig.folder.rglob("*") if path.is_file()]
    assert len(files) > 2 * T
    for path in files:
        content = path.read_bytes()
        assert np.full(2, 4.0).tobytes() not in content and b"4.0, 4.0" not in content, path
        assert np.full(2, 4 * 4096, dtype=np.uint64).tobytes() not in content, path
    assert "4.0" not in caplog.text
    assert "residues" not in repr(summed())


# The key ---------------------------------------------------------------------------------


def test_a_run_without_its_key_asks_nobody(rig: KeyRig) -> None:
    crash_in(2, rig.engine())
    asked = len(rig.nodes[100].seen)
    NoiseKey.open(rig.keys, "r").erase()
    with pytest.raises(NoiseKeyMissing, match="start a new run"):
        rig.engine().run()
    assert len(rig.nodes[100].seen) == asked and not (rig.keys / "r").exists()


def test_two_processes_never_draw_from_one_key(rig: KeyRig) -> None:
    first, second = aggregator(rig.keys), aggregator(rig.keys)
    first.begin(T, 0, fresh=True)
    with pytest.raises(NoiseKeyHeld, match="another process goes on with this run"):
        second.begin(T, 0, fresh=True)
    with pytest.raises(NoiseKeyHeld):
        second.close(complete=True)  # nor is it erased under the other one
    strategy = Voting(T)
    with pytest.raises(NoiseKeyHeld):
        rig.engine(strategy, second).run()
    assert not any(node.seen for node in rig.nodes.values())
    first.finish(1, summed())
    first.bind(1)
    released = rig.keys / "r" / "released.json"
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
    assert list(rig.keys.iterdir()) == []


def test_a_failed_run_lets_the_key_go(rig: KeyRig) -> None:
    strategy, mechanism = Voting(T), aggregator(rig.keys)
    strategy.crash_in = 2
    with pytest.raises(RuntimeError, match="crash"):
        rig.engine(strategy, mechanism).run()
    with NoiseKey.open(rig.keys, "r").hold():
        pass


def test_the_key_is_erased_with_the_last_round_and_kept_before(
    rig: KeyRig, caplog: pytest.LogCaptureFixture
) -> None:
    class Dying(Voting):
        def learn(self, rnd: int, released: Any, noise_std: float) -> dict[str, Any]:
            if rnd == 3:
                raise NothingLearned("nothing")
            return super().learn(rnd, released, noise_std)

    assert rig.engine(Dying(T)).run() == 2
    assert (rig.keys / "r" / "key").exists() and "key of the noise stays" in caplog.text
    assert rig.engine().run() == T
    assert list(rig.keys.iterdir()) == []
    assert rig.engine().run() == T  # complete: needs no key
    assert list(rig.keys.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"z": 1.0},
        {"participation": Participation(T, min_separation=1, max_participations=2)},
        {"participation": Participation(T, min_separation=2, max_participations=1)},
    ],
)
def test_a_key_serves_one_size_of_noise_and_one_pattern(
    rig: KeyRig, changes: dict[str, Any]
) -> None:
    """What the releases before cost depends on both: rounds of two settings would cost more."""
    crash_in(2, rig.engine())
    asked = len(rig.nodes[100].seen)
    other = replace(aggregator(rig.keys), **changes)
    again = Voting(T)
    again.options = {  # type: ignore[misc]
        "min-separation": other.participation.min_separation,
        "max-participations": other.participations,
    }
    (rig.folder / "run" / "queries" / "round-0003.npz").unlink(missing_ok=True)
    with pytest.raises(ValueError, match="another size of the noise or other participations"):
        rig.engine(again, other).run()
    assert len(rig.nodes[100].seen) == asked
    # Where nothing binds the key any more, the noise is another one.
    (rig.keys / "r" / "mechanism").unlink()
    key = NoiseKey.open(rig.keys, "r")
    drawn = BANDED.stream(key, 4, keep="nothing", binding=other.binding).noise(3)
    (rig.keys / "r" / "mechanism").unlink()
    own = BANDED.stream(key, 4, keep="nothing", binding=aggregator(rig.keys).binding).noise(3)
    assert (drawn != own).all()


def test_settings_of_another_run_are_refused_before_asking(rig: KeyRig) -> None:
    crash_in(2, rig.engine())
    asked = len(rig.nodes[100].seen)
    other = aggregator(rig.keys, factorization("banded", T, bands=3))
    with pytest.raises(ValueError, match="another mechanism"):
        rig.engine(mechanism=other).run()
    longer = rig.engine(Voting(T + 1))
    with pytest.raises(ValueError, match=r"6 rounds are asked.*made for 5"):
        longer.run()
    assert len(rig.nodes[100].seen) == asked
    assert {c.state for c in longer.ledger.charges(run="r")} == {"committed"}
