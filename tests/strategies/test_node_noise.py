"""The integers of the nodes' noise: as fine as a run's delta asks for, or refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.accounting import calibrate
from privsyn_flower.privacy.encoding.quantize import SENSITIVITY, node_noise_integers
from privsyn_flower.privacy.encoding.sizing import WrapAround, distance_each
from privsyn_flower.privacy.ledger import BudgetExceeded, Ledger
from privsyn_flower.privacy.noise.integer_noise import (
    LEAST_NODE_STD,
    LEAST_STD,
    allowed_distance,
    gaussian_delta,
)
from privsyn_flower.protocol.noise import check_range, encoded_bound, total_variation
from privsyn_flower.protocol.question import Query
from privsyn_flower.strategies.engine.cohort import RoundPlan
from privsyn_flower.strategies.engine.mechanisms import NodeNoise, integer_noise
from tests.rigs.answers import question
from tests.rigs.ledger import remaining_rounds

PLAN = RoundPlan(run="r", users=1000, noise_multiplier=2.0)
FINE = {False: 1e-25, True: 1e-19}  # 56 bits hold finer sums than the 32 of dense ones


def asked(length: int = 100, *, dense: bool = False) -> Query:
    rows, scales = np.zeros((0, 0), dtype=np.int8), np.zeros(0, dtype=np.float32)
    options = {"encoding": "dense", "rotation": "00" * 32} if dense else {}
    return Query("update" if dense else "votes", rows, scales, length, 1.5, "m", options)


@pytest.mark.parametrize("dense", [False, True])
def test_integers_are_finer_where_the_distance_asks_for_it(dense: bool) -> None:
    query, mechanism = asked(dense=dense), NodeNoise()
    usual = mechanism.noise(PLAN, query)
    assert usual.sensitivity == SENSITIVITY or (dense and usual.sensitivity > SENSITIVITY)
    strict = replace(PLAN, distance=FINE[dense])
    finer = mechanism.noise(strict, query)
    assert total_variation(query, usual) > strict.distance >= total_variation(query, finer)
    assert finer.sensitivity > usual.sensitivity
    # What is promised is the same: noise in bounds of one user, and a sum that fits.
    assert finer.multiplier == 2.0
    assert encoded_bound(query, finer) == pytest.approx(1.5, rel=0.011 if dense else 1e-12)
    check_range(query, finer, PLAN.users)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"distance": 1e-120}, ["raise noise-multiplier or delta", "data.users, cohort-nodes"]),
        ({"noise_multiplier": 1e-12}, ["multiplier 1e-12", "noise-multiplier"]),
        ({"users": 10**24}, ["raise noise-multiplier or delta", "fewer users"]),
    ],
)
def test_what_no_integers_can_carry_is_refused(
    dense: bool, change: dict[str, float], words: list[str]
) -> None:
    plan = replace(PLAN, **change)  # type: ignore[arg-type]
    with pytest.raises(WrapAround) as caught:
        NodeNoise().noise(plan, asked(dense=dense))
    for word in words:
        assert word in str(caught.value)


@given(
    multiplier=st.floats(0.05, 500),
    users=st.integers(1, 10**6),
    surviving=st.floats(0.01, 1),
    length=st.integers(1, 20_000),
    distance=st.floats(1e-25, 1.0),
    dense=st.booleans(),
)
def test_every_encoding_carries_the_noise_that_it_is_charged_as(
    multiplier: float, users: int, surviving: float, length: int, distance: float, dense: bool
) -> None:
    plan = RoundPlan("r", users, multiplier, min_surviving_weight=surviving, distance=distance)
    query, mechanism = asked(length, dense=dense), NodeNoise()
    try:
        noise = mechanism.noise(plan, query)
    except WrapAround:
        assume(False)
    s = noise.multiplier * noise.sensitivity
    assert s >= LEAST_STD
    lightest = math.sqrt((s * s + 1 / 12) / plan.min_weight)
    assert lightest >= LEAST_NODE_STD  # a node of one user
    charge = mechanism.charge(query, noise, 1)
    assert charge["total_variation"] == total_variation(query, noise) <= distance
    assert charge["noise_multiplier"] == multiplier


@given(
    epsilon=st.floats(0.05, 12),
    delta=st.floats(1e-9, 1e-3),
    releases=st.integers(1, 200),
    more=st.floats(1, 3),
)
def test_all_releases_of_a_run_fit_what_delta_keeps_for_the_integers(
    epsilon: float, delta: float, releases: int, more: float
) -> None:
    """`more`: the ledger's total over the run's epsilon; as many such runs fit as by mu^2."""
    z = calibrate(epsilon, releases, gaussian_delta(delta))
    total = more * epsilon
    each = distance_each(epsilon, delta, releases, total)
    plan = replace(PLAN, noise_multiplier=z, distance=each)
    charge = NodeNoise().charge(asked(), NodeNoise().noise(plan, asked()), 1)
    assert releases * charge["total_variation"] <= allowed_distance(delta) / 2


def test_the_ledger_takes_all_releases_and_no_coarser_ones(tmp_path: object) -> None:
    epsilon, delta, releases = 8.0, 1e-6, 20
    ledger = Ledger.open(
        f"{tmp_path}/ledger.jsonl", population="p", total_epsilon=epsilon, total_delta=delta
    )
    z = calibrate(epsilon, releases, gaussian_delta(delta))
    plan = replace(PLAN, noise_multiplier=z, distance=distance_each(epsilon, delta, releases))
    query, ticket = asked(), {"run": "r", "query": "votes", "attempt": 1}
    noise = NodeNoise().noise(plan, query)
    for rnd in range(1, releases):
        ledger.reserve(**ticket, round=rnd, **NodeNoise().charge(query, noise, rnd))  # type: ignore[arg-type]
    coarse = replace(noise, sensitivity=LEAST_STD * 1.01 / z * math.sqrt(1000 / 850))
    with pytest.raises(BudgetExceeded, match="from Gaussian noise together"):
        charge = NodeNoise().charge(query, replace(coarse, min_weight=100.0), releases)
        ledger.reserve(**ticket, round=releases, **charge)  # type: ignore[arg-type]
    ledger.reserve(**ticket, round=releases, **NodeNoise().charge(query, noise, releases))  # type: ignore[arg-type]
    assert remaining_rounds(ledger, z) == 0
    assert sum(charge.total_variation for charge in ledger.charges()) <= allowed_distance(delta)
    assert ledger.spent_epsilon() == pytest.approx(epsilon, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    log_z=st.floats(-2, 5), log_distance=st.floats(-45, -3), least=st.sampled_from([0.1, 0.5, 1.0])
)
def test_whatever_is_asked_any_node_can_draw(
    log_z: float, log_distance: float, least: float
) -> None:
    plan = RoundPlan("run", 1000, 10**log_z, min_surviving_weight=least, distance=10**log_distance)
    try:
        noise = integer_noise(plan, question())
    except WrapAround:
        return
    assert total_variation(question(), noise) <= plan.distance
    for weight in (1, plan.users):
        numbers = (weight, noise.min_weight, noise.multiplier, noise.sensitivity)
        assert len(node_noise_integers(4, *numbers)) == 4
