"""A ledger for releases with sampling: so many of one kind, whatever else the rounds do."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.config import RunConfig
from privsyn_flower.privacy import BudgetExceeded, Ledger, LedgerError, calibrate, epsilon
from privsyn_flower.privacy.accounting import most_releases
from privsyn_flower.privacy.accounting.calibration import sampled_plan
from privsyn_flower.privacy.ledger import Charge
from privsyn_flower.privacy.ledger.filters import (
    PLAN,
    Kind,
    Plan,
    charged_epsilon,
    fits,
    new_header,
    places,
)
from privsyn_flower.privacy.ledger.refusals import why_refused
from privsyn_flower.privacy.ledger.usage import affordable_charges
from privsyn_flower.privacy.noise.integer_noise import allowed_distance, gaussian_delta
from privsyn_flower.server_apps.privacy_plan import ledger_terms, privacy_plan
from tests.rigs.ledger import remaining_rounds

DELTA, TOTAL, RATE, ROUNDS = 1e-5, 2.0, 0.1, 20
LEFT = gaussian_delta(DELTA)
Z = 1.4  # of these rounds at this rate: epsilon 1.92
PLANNED = (Kind(Z, RATE, ROUNDS),)
numbers = count(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "phones.jsonl"


def make(path: Path, plan: Plan | None = PLANNED, total: float = TOTAL, **options: Any) -> Ledger:
    terms: dict[str, Any] = {
        "population": "phones",
        "total_epsilon": total,
        "total_delta": DELTA,
    } | options
    return Ledger.open(path, plan=plan, **terms)


def reserve(ledger: Ledger, z: float = Z, rate: float = RATE, **options: Any) -> str:
    options = {"run": "a", "query": "votes", "round": next(numbers), "attempt": 1} | options
    return ledger.reserve(noise_multiplier=z, sampling_rate=rate, **options)


def charged(z: float, rate: float) -> Charge:
    return Charge("", "", "", 0, 0, z, "reserved", sampling_rate=rate)


@pytest.mark.slow
def test_exactly_the_plans_releases_fit(path: Path) -> None:
    """Which cost far less than without sampling."""
    ledger = make(path)
    assert ledger.is_guarantee and ledger.header.filter == PLAN
    assert calibrate(TOTAL, ROUNDS, LEFT) > 1.4 * Z
    assert remaining_rounds(ledger, Z, sampling_rate=RATE) == ROUNDS
    for done in range(ROUNDS):
        charge = reserve(ledger)
        if done % 2:
            ledger.commit(charge)
    assert ledger.spent_epsilon() == epsilon(Z, ROUNDS, LEFT, sampling_rate=RATE)
    assert 1.9 < ledger.spent_epsilon() <= TOTAL
    assert remaining_rounds(ledger, Z, sampling_rate=RATE) == 0
    content = path.read_bytes()
    with pytest.raises(BudgetExceeded, match=r"of 2 .*noise-multiplier.*key ledger"):
        reserve(ledger)
    with pytest.raises(BudgetExceeded):  # noise so large that it costs nothing is a release too
        reserve(ledger, 1e4)
    assert path.read_bytes() == content


@pytest.mark.slow
def test_what_is_calibrated_is_what_its_ledger_is_made_for(path: Path) -> None:
    z = calibrate(TOTAL, ROUNDS, LEFT, sampling_rate=RATE)
    plan = sampled_plan((Kind(z, RATE, ROUNDS),), TOTAL, DELTA, TOTAL)
    assert plan == (Kind(z, RATE, ROUNDS),)
    ledger = make(path, plan)
    assert remaining_rounds(ledger, z, sampling_rate=RATE) == ROUNDS
    with pytest.raises(ValueError, match=r"Kind.* costs epsilon = 2\.0.*, the total is 2"):
        make(path.with_name("more.jsonl"), (Kind(z, RATE, ROUNDS + 1),))


@pytest.mark.slow
def test_what_costs_less_is_covered(path: Path) -> None:
    ledger = make(path)
    for z, rate in ((Z, RATE), (Z * (1 - 1e-12), RATE), (2 * Z, RATE), (Z, RATE / 2), (9.0, 1e-3)):
        reserve(ledger, z, rate)
    assert remaining_rounds(ledger, 5.0, sampling_rate=0.01) == ROUNDS - 5
    assert places(PLANNED, ledger.charges()) == [5]
    assert ledger.spent_epsilon() < ledger.header.epsilon_of(ledger.charges())
    wanted = [{"noise_multiplier": 3.0, "sampling_rate": RATE}] * 30
    assert affordable_charges(ledger, wanted) == ROUNDS - 5
    wanted[3] = {"noise_multiplier": 3.0, "sampling_rate": 0.11}
    assert affordable_charges(ledger, wanted) == 3


@pytest.mark.parametrize(("z", "rate"), [(Z * 0.999, RATE), (Z, RATE * 1.001), (50.0, 1.0)])
def test_what_costs_more_is_refused_with_its_keys(path: Path, z: float, rate: float) -> None:
    ledger = make(path)
    content = path.read_bytes()
    with pytest.raises(BudgetExceeded) as refused:
        reserve(ledger, z, rate)
    for words in (
        f"noise multiplier {z:.6g}",
        f"probability {rate:g}",
        "at least 1.4, at most 0.1",
        "raise noise-multiplier, lower sampling-rate",
        "key ledger",
    ):
        assert words in str(refused.value), words
    assert path.read_bytes() == content
    assert remaining_rounds(ledger, z, sampling_rate=rate) == 0
    with pytest.raises(LedgerError, match=r"raise noise-multiplier|sampler = 'poisson'"):
        make(path, (Kind(z, rate, 3),) if rate < 1 else None)
    assert make(path, (Kind(2 * Z, RATE / 2, 500),)).header == ledger.header


def test_sampled_and_unsampled_runs_have_ledgers_of_their_own(path: Path) -> None:
    make(path)
    with pytest.raises(LedgerError, match=r"at most 0\.1, .*set sampler = 'poisson'.*key ledger"):
        make(path, None)
    other = path.with_name("all.jsonl")
    unsampled = make(other, None)
    with pytest.raises(LedgerError, match=r"without sampling .*sampling-rate = 0\.1: set sampler"):
        make(other)
    # Sampling is worth nothing to a sum of mu^2.
    reserve(unsampled, 5.0)
    assert [charge.mu_squared for charge in unsampled.charges()] == pytest.approx([1 / 25])


def test_without_a_total_to_keep_a_ledger_is_opened_as_it_is(path: Path) -> None:
    """Of whichever kind: somebody reads it. What it covers is still all that it takes."""
    reserve(make(path))
    found = Ledger.open(path, population="phones")
    assert found.header.plan == PLANNED and len(found.charges()) == 1
    with pytest.raises(BudgetExceeded, match="not covered"):
        reserve(found, Z, 1.0)
    with pytest.raises(ValueError, match="needs total_epsilon"):
        Ledger.open(path.with_name("new.jsonl"), population="p", plan=PLANNED)


def test_a_larger_total_has_room_for_as_many_as_fit(path: Path) -> None:
    z, total = 6.0, 0.32
    planned = (Kind(z, RATE, ROUNDS),)
    [plan] = sampled_plan(planned, 0.27, DELTA, total)
    assert plan.releases == most_releases(z, RATE, total, LEFT) > ROUNDS
    assert epsilon(z, plan.releases, LEFT, sampling_rate=RATE) <= total
    assert epsilon(z, plan.releases + 1, LEFT, sampling_rate=RATE) > total
    assert remaining_rounds(make(path, (plan,), total), z, sampling_rate=RATE) == plan.releases
    assert sampled_plan(planned, 0.27, DELTA, 0.27) == planned


@pytest.mark.parametrize("releases", [1, 143])
def test_a_ledgers_distance_lasts_as_long_as_its_releases(
    monkeypatch: pytest.MonkeyPatch, releases: int
) -> None:
    """Sampled releases may be many more than the total's mu^2 has of the run's: 24 here."""
    plan = (Kind(1.02, 0.05, releases),)
    monkeypatch.setattr("privsyn_flower.privacy.plan.sampled_plan", lambda *_: plan)
    config = RunConfig.from_flat(
        {
            "epsilon": 1.0,
            "delta": DELTA,
            "rounds": 1,
            "spare-rounds": 0,
            "sampler": "poisson",
            "sampling-rate": 0.05,
            "noise-multiplier": 1.02,
            "ledger-epsilon": 4.0,
        }
    )
    assert ledger_terms(config)["plan"] == plan
    together = releases * privacy_plan(config).distance
    assert together == pytest.approx(allowed_distance(DELTA) / 20)


def test_distance_is_limited_by_itself(path: Path) -> None:
    ledger = make(path)
    apart = allowed_distance(DELTA)
    assert ledger.header.total_variation == apart
    reserve(ledger, total_variation=0.6 * apart)
    content = path.read_bytes()
    with pytest.raises(BudgetExceeded, match=r"from Gaussian noise together.*raise delta"):
        reserve(ledger, total_variation=0.5 * apart)
    assert path.read_bytes() == content
    reserve(ledger, total_variation=0.4 * apart)
    assert ledger.spent_epsilon() <= TOTAL
    noise = {"noise_multiplier": Z, "sampling_rate": RATE}
    assert affordable_charges(ledger, [noise | {"total_variation": 0.1 * apart}]) == 0
    assert affordable_charges(ledger, [noise] * 3) == 3


def test_void_gives_a_release_back_and_sent_does_not(path: Path) -> None:
    ledger = make(path, (PLANNED[0]._replace(releases=2),))
    first = reserve(ledger)
    second = reserve(ledger)
    ledger.mark_sent(first)
    with pytest.raises(BudgetExceeded):
        reserve(ledger)
    ledger.void(second, "no node was asked")
    assert remaining_rounds(make(path), Z, sampling_rate=RATE) == 1
    with pytest.raises(LedgerError, match="was sent"):
        ledger.void(first, "too few")


RELEASES = st.lists(
    st.tuples(st.sampled_from([3.5, 4.0, 6.0]), st.sampled_from([0.3, 0.1, 0.04])), max_size=9
)


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(asked=RELEASES)
def test_whatever_is_taken_costs_at_most_the_plan(asked: list[tuple[float, float]]) -> None:
    """By a calculation of its own for the mixture, in any order."""
    header = new_header("phones", TOTAL, DELTA, False, (Kind(4.0, RATE, 5),))
    taken: list[Charge] = []
    for z, rate in asked:
        charge = charged(z, rate)
        admitted = fits(header, [*taken, charge])  # what `Ledger.reserve` decides by
        assert admitted == (why_refused(header, taken, charge) is None)
        taken += [charge] if admitted else []
    assert len(taken) == min(5, len([z for z, rate in asked if z >= 4 and rate <= RATE]))
    alike = [charged(4.0, RATE)] * 5
    assert charged_epsilon(taken, DELTA) <= header.epsilon_of(alike) <= TOTAL
    # For one kind they meet.
    assert charged_epsilon(alike, DELTA) == header.epsilon_of(alike)


@pytest.mark.slow
def test_a_charge_that_no_plan_covers_ends_the_ledger(path: Path) -> None:
    """Written by nobody: it counts as everything, and is not an overflow."""
    ledger = make(path)
    reserve(ledger)
    header, row = path.read_text().splitlines()
    foreign = json.loads(row) | {"id": "2", "round": 99, "sampling_rate": 0.9}
    path.write_text("\n".join([header, row, json.dumps(foreign), ""]))
    assert remaining_rounds(ledger, Z, sampling_rate=RATE) == 0
    assert affordable_charges(ledger, [{"noise_multiplier": Z, "sampling_rate": RATE}]) == 0
    with pytest.raises(BudgetExceeded, match="has spent epsilon = inf"):
        reserve(ledger)


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_rate": None},
        {"noise_multiplier": None},
        {"filter": "sum of mu^2 (Smith and Thakurta 2022)"},
        {"budget": None},
    ],
)
def test_a_header_without_its_plan_is_not_guessed(path: Path, change: dict[str, Any]) -> None:
    make(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(LedgerError, match="unreadable header"):
        make(path)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Kind(0.0, RATE, 3), "costs epsilon = inf"),
        (Kind(Z, 0.0, 3), r"sampling_rate = 0\.0"),
        (Kind(math.nan, RATE, 3), "noise_multiplier = nan"),
        (Kind(Z, RATE, -1), "releases = -1"),
    ],
)
def test_bad_plans(path: Path, plan: Kind, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(path, (plan,))
    with pytest.raises(ValueError, match=words):
        make(path, (*PLANNED, plan))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"budget": 1.0},  # fewer than beside it
        {"budget": float("nan")},
        {"beside": [[2.0, 0.1, -3]]},
        {"beside": [[0.0, 0.1, 2]]},
        {"beside": [[2.0, 1.5, 2]]},
        {"beside": [["2", 0.1, 2]]},
        {"beside": 7},
        {"budget": 2e7},  # more than the total pays for
        {"noise_multiplier": 0.1},
        {"total_epsilon": 0.5},
    ],
)
def test_a_header_that_no_version_wrote_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    plan = (Kind(2.0, 0.1, 3), Kind(4.0, 1.0, 2))
    Ledger.open(path, population="p", total_epsilon=50.0, total_delta=1e-5, plan=plan)
    header = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(header | changed) + "\n", "utf-8")
    with pytest.raises(LedgerError, match=r"unreadable header|contradicts itself"):
        Ledger.open(path, population="p")
