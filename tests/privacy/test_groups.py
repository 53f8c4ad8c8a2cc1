"""Groups of users under one promise: what each pays, the larger of both, and the ledger's part."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from pathlib import Path

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.accounting.sampling import Sampler
from privsyn_flower.privacy.ledger import BudgetExceeded, Charge, LedgerError
from privsyn_flower.privacy.ledger.filters import charged_epsilon, of_one_user
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta
from privsyn_flower.privacy.plan import ROUNDS, Phase
from privsyn_flower.privacy.planning import plan_privacy, statement_of
from tests.rigs.ledger import DELTA, make, path, reserve

__all__ = ["path"]

STRONG = [Phase("topics", 1, 1, share=0.1, group="strong"), Phase(ROUNDS, 8, 1, group="strong")]
VOTE = Phase("votes", 1, 1, group="weak")


def exact(multipliers: list[float], delta: float = DELTA) -> float:
    """Of independent Gaussian releases, by another implementation."""
    sigma = 1 / math.sqrt(sum(z**-2 for z in multipliers))
    return float(get_epsilon_gaussian(sigma, gaussian_delta(delta)))


@settings(max_examples=20, deadline=None)
@given(st.floats(0.3, 20.0), st.integers(1, 12), st.integers(0, 2))
def test_a_user_of_either_group_is_protected_at_the_claim(
    target: float, rounds: int, spare: int
) -> None:
    """Every release that one user can be in, spare ones too: by brute force over the phases."""
    strong = [STRONG[0], Phase(ROUNDS, rounds, spare, group="strong")]
    plan = plan_privacy(target, DELTA, [*strong, VOTE])
    by_group = defaultdict(list)
    for phase in plan.phases:
        by_group[phase.group] += [phase.multiplier] * (phase.rounds + phase.spare)
    paid = {group: exact(noise) for group, noise in by_group.items()}
    assert set(paid) == {"strong", "weak"}
    assert all(own <= plan.epsilon * (1 + 1e-9) <= target * (1 + 1e-6) for own in paid.values())
    assert plan.epsilon == pytest.approx(max(paid.values()), rel=1e-6)
    # A user in both would have paid more than the claim: so nobody may be.
    assert exact(list(itertools.chain(*by_group.values()))) > 1.2 * target
    said = statement_of(plan, min_surviving_weight=0.85)
    assert [name for name, *_ in said.groups] == ["strong", "weak"]
    assert said.epsilon == plan.epsilon and "not their sum" in said.sentence()


def test_noise_that_is_given_costs_the_larger_of_both() -> None:
    noisy = [Phase(ROUNDS, 4, group="strong", multiplier=20.0), VOTE]
    plan = plan_privacy(1.0, DELTA, noisy)
    assert plan.epsilon == pytest.approx(exact([plan["votes"].multiplier] * 2))
    assert plan.epsilon > exact([20.0] * 4)
    assert [phase.group for phase in plan.costliest] == ["weak"]
    assert plan.rho == pytest.approx(1 / plan["votes"].multiplier ** 2)
    with pytest.raises(ValueError, match=r"noise-multiplier = 0\.1"):
        plan_privacy(1.0, DELTA, [Phase(ROUNDS, 4, group="strong", multiplier=0.1), VOTE])


@pytest.mark.parametrize(
    "other",
    [
        Phase(ROUNDS, 2),
        Phase(ROUNDS, 2, sampler=Sampler("poisson", 0.5), group="strong"),
        Phase(ROUNDS, 2, source="aggregator", group="strong"),
    ],
)
def test_what_no_group_pays_for_is_refused(other: Phase) -> None:
    with pytest.raises(ValueError, match="every question to one group"):
        plan_privacy(2.0, DELTA, [other, VOTE])
    with pytest.raises(ValueError, match="without sampling"):
        Charge("", "", "", 1, 1, 1.0, "reserved", sampling_rate=0.5, group="r/weak")


charges = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from(["", "strong", "weak"]), st.floats(0.5, 9.0),
        st.sampled_from(["reserved", "committed", "void"]),
    ),
    max_size=9,
)  # fmt: skip


@settings(deadline=None)
@given(charges)
def test_the_ledger_counts_what_the_unluckiest_user_paid(
    rows: list[tuple[str, str, float, str]],
) -> None:
    """Over all ways in which a user can be in a group of each run; between runs it may change."""
    made = [
        Charge(str(at), run, "votes", at, 1, z, state, group=group and f"{run}/{group}")  # type: ignore[arg-type]
        for at, (run, group, z, state) in enumerate(rows)
    ]
    ways = itertools.product(["strong", "weak"], repeat=2)
    worst = max(
        math.fsum(
            c.mu_squared
            for c in made
            if c.state != "void" and c.group in ("", f"a/{one}", f"b/{other}")
        )
        for one, other in ways
    )
    assert math.fsum(c.mu_squared for c in of_one_user(made)) == pytest.approx(worst)
    if worst:
        assert charged_epsilon(made, DELTA) == pytest.approx(exact([worst**-0.5]), rel=1e-6)


def test_both_groups_of_a_run_fit_into_the_total_and_nobody_else(path: Path) -> None:
    plan = plan_privacy(7.58, DELTA, [*STRONG, VOTE])
    ledger = make(path)
    for phase in plan.phases:
        for _ in range(phase.releases):
            charge = reserve(ledger, phase.multiplier, group=f"a/{phase.group}")
            ledger.mark_sent(charge)
    assert ledger.spent_epsilon() == pytest.approx(plan.epsilon) and plan.epsilon <= 7.58
    for group in ("a/strong", "a/weak", "b/weak", ""):  # another run may ask the same users again
        with pytest.raises(BudgetExceeded):
            reserve(ledger, 2.0, run=group[:1] or "a", group=group)
    again = make(path)  # from the disk
    assert [c.group for c in again.charges()] == ["a/strong"] * 11 + ["a/weak"] * 2
    assert again.spent_epsilon() == ledger.spent_epsilon()


@pytest.mark.parametrize("group", ["b/strong", "strong", "a/", "/strong", "aa/strong"])
def test_a_group_is_of_its_charges_own_run(path: Path, group: str) -> None:
    """Charges of other runs under one name would hide each other."""
    ledger = make(path)
    with pytest.raises(ValueError, match="must be RUN/NAME"):
        reserve(ledger, 2.0, run="a", group=group)
    reserve(ledger, 2.0, run="a-topics", group="a/strong")  # a question beside the run's rounds
    text = path.read_text("utf-8").replace('"a/strong"', f'"{group}"')
    path.write_text(text, "utf-8")
    with pytest.raises(LedgerError, match="line 2"):
        make(path).charges()


def test_questions_to_everybody_hide_no_group() -> None:
    everybody = Charge("1", "b", "votes", 1, 1, 0.5, "committed")
    begun = Charge("2", "", "votes", 1, 1, 2.0, "reserved", group="new/strong")
    assert of_one_user([everybody, begun]) == [everybody, begun]
