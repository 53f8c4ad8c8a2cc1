"""Which ledger a run is charged on, and that no copy of a run releases on its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.config import ConfigError, RunConfig
from privsyn_flower.privacy.accounting import epsilon
from privsyn_flower.privacy.ledger import Ledger, LedgerError
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta
from privsyn_flower.runs import RunFolder, read_jsonl
from privsyn_flower.strategies import DPFTRL, DPFedAvg
from privsyn_flower.strategies.averaging.app_evaluation import AppEvaluations
from privsyn_flower.strategies.engine.aggregation import PlainSum
from privsyn_flower.strategies.engine.aggregator_noise import AggregatorNoise
from privsyn_flower.strategies.engine.rounds import NoRelease, Rounds
from privsyn_flower.strategies.engine.run_ledger import (
    COPY,
    discard_if_uncharged,
    exclusive_ledger,
    ledger_path,
    open_ledger,
    run_id,
)
from tests.conftest import config_ledger
from tests.rigs import app_evaluation as evaluated
from tests.rigs.rounds import (
    Counting,
    Rig,
    nodes,
    rig,
)
from tests.rigs.synthesis import Counting as Votes
from tests.rigs.synthesis import grid_of
from tests.strategies.training_rig import ftrl, record, trainers

__all__ = ["nodes", "rig"]

DELTA = 1e-5
TERMS: dict[str, Any] = {"total_epsilon": 2.0, "total_delta": DELTA}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ledgers lie."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "privsyn-flower" / "ledgers"


def engine(path: Path, grid: Any, strategy: Counting) -> tuple[Rounds, Ledger]:
    """Rounds as every caller sets them up; mu^2 is 1 / 25 for each release."""
    folder = RunFolder(path)
    ledger = open_ledger(folder, **TERMS)
    plan = parts_plan(folder)
    return Rounds(grid, strategy, plan, folder, ledger, PlainSum()), ledger


def parts_plan(folder: RunFolder) -> Any:
    from privsyn_flower.strategies.engine.cohort import RoundPlan

    return RoundPlan(
        run=run_id(folder),
        users=100,
        noise_multiplier=5.0,
        spare_rounds=1,
        min_surviving_weight=0.75,
        nodes=4,
        round_timeout=0.3,
        node_timeout=1.0,
    )


def go(path: Path, grid: Any, strategy: Counting) -> Ledger:
    with RunFolder(path).lock():
        run, ledger = engine(path, grid, strategy)
        with exclusive_ledger(ledger, run.folder):
            run.run()
    return ledger


def interrupted(path: Path, grid: Any, after: int) -> None:
    """A run that dies when it learns from the round after `after`."""
    strategy = Counting()
    strategy.crash_in = after + 1
    with pytest.raises(RuntimeError, match="crash"):
        go(path, grid, strategy)


# Where ------------------------------------------------------------------------------------


def test_command_line_and_starts_take_the_same_ledger(
    tmp_path: Path, loopback: Any, home: Path
) -> None:
    shared: dict[str, Any] = {"population_name": "phones", "epsilon": 4.0, "delta": DELTA}
    common = shared | {"aggregation": PlainSum(), "ledger_epsilon": 9.0}
    config = RunConfig.from_flat(
        {"population-name": "phones", "epsilon": 4.0, "delta": DELTA, "ledger-epsilon": 9.0}
    )
    book = config_ledger(config, RunFolder(tmp_path / "cli"))
    assert book.path == home / "phones.jsonl"
    Votes().start(
        grid_of(loopback, [False] * 3), folder=tmp_path / "votes", users=75, nodes=3, **common
    )
    result = DPFedAvg().start(
        loopback(trainers(4)), record(), 2, folder=tmp_path / "train", users=4, **common
    )
    assert "ledger spans the runs that declared this population" in result.statement.sentence()
    assert [charge.query for charge in book.charges()] == ["votes", "update", "update"]
    assert {path.name for path in home.iterdir()} == {"phones.jsonl", "phones.jsonl.lock"}


def test_runs_of_one_population_cannot_cost_more_than_was_promised(
    tmp_path: Path, loopback: Any, home: Path
) -> None:
    """Of both kinds of `start`, without `ledger`: what the sentence says is what happens."""
    shared: dict[str, Any] = {"population_name": "phones", "epsilon": 4.0, "delta": DELTA}
    shared |= {"aggregation": PlainSum(), "spare_rounds": 0}
    grid = grid_of(loopback, [False] * 3)
    first = Votes().start(grid, folder=tmp_path / "a", users=75, nodes=3, **shared)
    assert first.statement.ledger_scope == "population" and 3.9 < first.spent <= 4.0
    for folder in ("b", "c"):
        with pytest.raises(NoRelease):
            Votes().start(grid, folder=tmp_path / folder, users=75, nodes=3, **shared)
    with pytest.raises(NoRelease):
        DPFedAvg().start(
            loopback(trainers(4)), record(), 2, folder=tmp_path / "d", users=4, **shared
        )
    (charge,) = Ledger.open(home / "phones.jsonl", population="phones", **TERMS | {
        "total_epsilon": 4.0
    }).charges()  # fmt: skip
    assert epsilon(charge.noise_multiplier, 1, gaussian_delta(DELTA)) <= 4.0
    assert 0 < charge.total_variation < allowed_distance(DELTA)


def test_a_run_without_a_population_has_a_ledger_outside_of_its_folder(
    tmp_path: Path, home: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    assert ledger_path(folder, "", "") == home / "runs" / f"{run_id(folder)}.jsonl"


@pytest.mark.parametrize(
    ("ledger", "population", "words"),
    [
        ("book.jsonl", "", "set population-name"),
        ("RUN/book.jsonl", "phones", "lies in the run folder"),
        ("RUN/deep/book.jsonl", "phones", "lies in the run folder"),
        ("", "phones/here", "population-name = 'phones/here'"),
    ],
)
def test_ledgers_that_cannot_do_are_refused(
    tmp_path: Path, ledger: str, population: str, words: str
) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=words):
        open_ledger(
            RunFolder(run),
            ledger=ledger.replace("RUN", str(run)),
            population_name=population,
            **TERMS,
        )
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("a file where the folder belongs")
    with pytest.raises(LedgerError, match=rf"{home}.*XDG_DATA_HOME"):
        open_ledger(RunFolder(tmp_path / "run"), **TERMS)


# Which ------------------------------------------------------------------------------------


def test_a_moved_folder_goes_on_and_a_put_back_one_does_not(rig: Rig) -> None:
    old, new = rig.folder / "mv1", rig.folder / "mv2"
    interrupted(old, rig.grid, after=1)
    shutil.copytree(old, rig.folder / "backup")
    old.rename(new)
    strategy = Counting()
    ledger = go(new, rig.grid, strategy)
    assert list(strategy.learned) == ["1", "2", "3"] and not old.exists()
    assert [ticket.round for ticket, _ in rig.nodes[100].seen] == [1, 2, 3]
    assert [charge.state for charge in ledger.charges()] == ["committed"] * 3
    assert len(read_jsonl(new / COPY)) == 1 + 3 * 3  # header; reserve, sent, commit

    shutil.rmtree(new)
    (rig.folder / "backup").rename(old)
    with pytest.raises(LedgerError, match=r"round 3 was released .*mv1: the folder was put back"):
        go(old, rig.grid, Counting())
    assert len(rig.nodes[100].seen) == 3


def test_two_copies_never_release_under_one_charge(rig: Rig) -> None:
    """Whichever goes on first; the other one is told, and nobody is asked."""
    one, two = rig.folder / "one", rig.folder / "two"
    interrupted(one, rig.grid, after=1)
    shutil.copytree(one, two)
    before = sorted(path.relative_to(one) for path in one.rglob("*"))
    ledger = go(two, rig.grid, Counting())
    assert sorted(path.relative_to(one) for path in one.rglob("*")) == before
    with pytest.raises(LedgerError, match="another copy of it went on"):
        go(one, rig.grid, Counting())
    released = [len(list((path / "releases").iterdir())) for path in (one, two)]
    assert released == [2, 3] and len(ledger.charges()) == len(rig.nodes[100].seen) == 3


def test_copies_at_the_same_time_wait_for_each_other(rig: Rig) -> None:
    one, two = rig.folder / "one", rig.folder / "two"
    interrupted(one, rig.grid, after=1)
    shutil.copytree(one, two)
    run, ledger = engine(one, rig.grid, Counting())
    with (
        exclusive_ledger(ledger, run.folder),
        pytest.raises(LedgerError, match="in use by the run of process"),
    ):
        go(two, rig.grid, Counting())


def test_a_release_whose_charge_another_copy_gave_back_is_not_used(rig: Rig) -> None:
    path = rig.folder / "run"
    interrupted(path, rig.grid, after=0)
    run, ledger = engine(path, rig.grid, Counting())
    charge = ledger.reserve(
        run=run.plan.run, query="votes", round=1, attempt=2, noise_multiplier=5.0
    )
    ledger.void(charge, "by another copy")
    facts = run.folder.load_value("round-0001-facts") | {"charge": charge}
    run.folder.save_value("round-0001-facts", facts)
    with pytest.raises(LedgerError, match=r"release of round 1 .* has no charge"):
        go(path, rig.grid, Counting())


def test_a_begun_run_never_gets_a_new_ledger(rig: Rig, home: Path) -> None:
    """Not where every attempt came to nothing either: those may have been revealed."""
    rig.nodes[101].mode = rig.nodes[102].mode = "silent"
    path = rig.folder / "run"
    with pytest.raises(NoRelease):
        go(path, rig.grid, Counting())
    (book,) = home.glob("runs/*.jsonl")
    rows = book.read_text()
    book.unlink()
    with pytest.raises(LedgerError, match=f"no ledger at {book}.*put it back"):
        go(path, rig.grid, Counting())
    assert not book.exists()
    Ledger.open(book, population=f"run {book.stem}", **TERMS)  # somebody makes it anew
    assert not discard_if_uncharged(
        RunFolder(path)
    )  # no start with other arguments begins anew either
    with pytest.raises(LedgerError, match="not the ledger that this run began with"):
        go(path, rig.grid, Counting())
    book.write_text(rows.splitlines(keepends=True)[0])  # as it was before the first charge
    assert not discard_if_uncharged(RunFolder(path)) and run_id(RunFolder(path)) == book.stem
    book.write_text("")
    with pytest.raises(LedgerError, match="alone knows what was spent"):
        go(path, rig.grid, Counting())
    asked = len(rig.nodes[100].seen)
    book.write_text(rows)
    with pytest.raises(NoRelease):  # the spare rounds are used up, as before
        go(path, rig.grid, Counting())
    assert len(rig.nodes[100].seen) == asked


@pytest.mark.parametrize(
    ("lost", "words"), [("run", "run.json is missing"), ("ledger", "does not say on which ledger")]
)
def test_a_folder_that_lost_its_identity_is_refused(
    rig: Rig, home: Path, lost: str, words: str
) -> None:
    path = rig.folder / "run"
    interrupted(path, rig.grid, after=1)
    (path / "checkpoints" / f"{lost}.json").unlink()
    with pytest.raises(LedgerError, match=words):
        go(path, rig.grid, Counting())
    assert len(list(home.glob("runs/*.jsonl"))) == 1 and len(rig.nodes[100].seen) == 2


def test_another_home_is_named_with_the_old_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rig.folder / "run"
    interrupted(path, rig.grid, after=1)
    monkeypatch.setenv("XDG_DATA_HOME", str(rig.folder / "elsewhere"))
    with pytest.raises(
        LedgerError, match=rf"elsewhere.*began with {rig.folder}/home.*XDG_DATA_HOME"
    ):
        go(path, rig.grid, Counting())
    assert not (rig.folder / "elsewhere").exists()


def test_the_copy_in_a_run_folder_is_no_ledger(rig: Rig, home: Path) -> None:
    """It may be older than the run's end, and holds nothing of other runs."""
    path = rig.folder / "run"
    interrupted(path, rig.grid, after=1)
    (book,) = home.glob("runs/*.jsonl")
    assert [row["kind"] for row in read_jsonl(path / COPY)] == [
        "copy", *["reserve", "sent", "commit"] * 2
    ]  # fmt: skip
    shutil.copy(path / COPY, book)
    with pytest.raises(LedgerError, match="the copy in a run folder is no ledger"):
        go(path, rig.grid, Counting())


def test_a_trusted_aggregators_run_finds_its_key_after_a_move(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key lies outside, by the run's id; a copy that fell behind gets no noise."""
    one, two, real = tmp_path / "one", tmp_path / "two", DPFTRL.learn

    def train(folder: Path) -> Any:
        options: dict[str, Any] = {"epsilon": 8.0, "delta": DELTA, "users": 4, "folder": folder}
        return ftrl().start(loopback(trainers(4)), record(), 3, aggregation=PlainSum(), **options)

    def dies(self: DPFTRL, rnd: int, *rest: Any) -> Any:
        if rnd == 2:
            raise RuntimeError("crash")
        return real(self, rnd, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(DPFTRL, "learn", dies)
        with pytest.raises(RuntimeError, match="crash"):
            train(one)
    shutil.copytree(one, tmp_path / "copy")
    one.rename(two)
    assert train(two).rounds == 3
    assert not list(tmp_path.glob("home/privsyn-flower/noise-keys/*"))
    with pytest.raises(LedgerError, match="round 3 was released"):
        train(tmp_path / "copy")


@pytest.fixture
def copied(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[], Any], Callable[[], list[int]]]:
    """Training whose run folder is copied before its evaluation; what its nodes measured."""
    real, members = AppEvaluations.after, evaluated.nodes_of()

    def after(self: AppEvaluations, *args: Any, **options: Any) -> dict[str, float]:
        if not (tmp_path / "copy").exists():
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
        return real(self, *args, **options)

    def train() -> Any:
        strategy = ftrl(mechanism="banded", min_separation=1)
        settings: dict[str, Any] = {"num_rounds": 1, "min_surviving_weight": 0.5}
        return evaluated.train(loopback(members), tmp_path, strategy, **settings)

    monkeypatch.setattr(AppEvaluations, "after", after)
    return train, lambda: [len(node.measured) for node in members.values()]


def test_an_evaluation_is_not_released_again_from_a_copy_made_before_it(
    tmp_path: Path, copied: Any
) -> None:
    """Of a trusted aggregator, whose key of that evaluation's noise is gone by then."""
    train, measured = copied
    train()
    before = measured()
    assert sum(before) > 0
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "copy").rename(tmp_path / "run")
    with pytest.raises(LedgerError, match="round 1 was released"):
        train()
    assert measured() == before


def test_an_evaluation_that_died_once_released_is_not_released_from_a_copy(
    tmp_path: Path, copied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its charge is still reserved, and the key of its noise is there; the original goes on."""
    run, copy, first = tmp_path / "run", tmp_path / "copy", tmp_path / "first"
    bind, (train, measured) = AggregatorNoise.bind, copied

    def dies(self: AggregatorNoise, rnd: int) -> None:
        if "-evaluation-" in self.run:
            raise KeyboardInterrupt
        bind(self, rnd)

    with monkeypatch.context() as patch:
        patch.setattr(AggregatorNoise, "bind", dies)
        with pytest.raises(KeyboardInterrupt):
            train()
    assert list(run.glob("evaluations/*/releases/*"))
    before = measured()
    run.rename(first)
    copy.rename(run)
    with pytest.raises(LedgerError, match=r"round 1 of run .*-evaluation-0001 was drawn"):
        train()
    shutil.rmtree(run)
    first.rename(run)
    train()
    assert measured() == before
    assert not [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
