"""One promise: what phases cost, what their ledger takes, and what is said of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from privsyn_flower.privacy.accounting.sampling import Sampler
from privsyn_flower.privacy.correlated import Participation, factorization
from privsyn_flower.privacy.correlated.integer_matrix import IntegerMatrix
from privsyn_flower.privacy.encoding.sizing import distance_each
from privsyn_flower.privacy.ledger import BudgetExceeded, Ledger
from privsyn_flower.privacy.ledger.usage import affordable_charges
from privsyn_flower.privacy.noise.integer_noise import allowed_distance
from privsyn_flower.privacy.plan import ROUNDS, Phase, PrivacyPlan
from privsyn_flower.privacy.planning import (
    PrivacyPlanError,
    evaluation_phases,
    plan_privacy,
    statement_of,
)
from privsyn_flower.strategies.engine.session import trusted_noise

DELTA = 1e-5
LEFT = 0.999 * DELTA  # a thousandth is the integers'
POISSON = Sampler("poisson", 0.1)
TURNS = Participation(6, 2)
ROWS = IntegerMatrix((64, 40, 10), TURNS, "banded")


def rows(spare: int = 0, **options: Any) -> Phase:
    """Nodes answer rows of a matrix."""
    return Phase(ROUNDS, 6, spare, correlation=ROWS, participation=TURNS, **options)


def correlated(rounds: int, **options: Any) -> Phase:
    pattern = Participation(rounds, 2)
    tree = factorization("tree", rounds, participation=pattern)
    return Phase(
        "ftrl", rounds, source="aggregator", correlation=tree, participation=pattern, **options
    )


@st.composite
def unsampled(draw: st.DrawFn) -> list[Phase]:
    """One to four phases; all but the last have noise or a share, and leave room."""
    phases = []
    for number in range(draw(st.integers(1, 4))):
        rounds = draw(st.integers(1, 8))
        how = draw(st.sampled_from(["multiplier", "share", "rest"])) if number else "rest"
        own: dict[str, float] = {}
        if how == "multiplier":
            own["multiplier"] = draw(st.floats(20, 400))
        elif how == "share":
            own["share"] = draw(st.floats(0.01, 0.25))
        if draw(st.booleans()):
            spare = draw(st.integers(0, 2))
            phases.append(Phase(f"phase-{number}", rounds, spare, **own))
        else:
            kind = correlated(rounds, **own) if draw(st.booleans()) else None
            apart = Phase(f"phase-{number}", rounds, source="aggregator", **own)
            phases.append(apart if kind is None else replace(kind, name=f"phase-{number}"))
    draw(st.randoms()).shuffle(phases)
    return phases


def cost(phase: Phase) -> float:
    """mu^2 of a user in everything that a phase releases, from the noise itself."""
    if phase.correlation is None or phase.participation is None:
        return phase.most / phase.multiplier**2
    return (float(phase.correlation.sensitivity(phase.participation)) / phase.multiplier) ** 2


def charges(made: PrivacyPlan) -> list[dict[str, float]]:
    """Every release that the phases pay for, in the words of `Ledger.reserve`."""
    found: list[dict[str, float]] = []
    for phase in made.phases:
        if phase.source == "aggregator":
            times = phase.rounds if phase.correlation is None else 1
            found += [{"noise_multiplier": z} for z in trusted_noise(phase).charged() * times]
            continue
        one = {"noise_multiplier": phase.equivalent, "sampling_rate": phase.rate}
        found += [one | {"total_variation": made.distance}] * phase.most
    return found


def spend(made: PrivacyPlan, path: Path, wanted: list[dict[str, float]]) -> Ledger:
    book = Ledger.open(path, population="p", **made.ledger_terms())
    for number, charge in enumerate(wanted):
        book.reserve(run="r", query="q", round=number + 1, attempt=1, **charge)  # type: ignore[arg-type]
    return book


@settings(max_examples=30, deadline=None)
@given(unsampled(), st.floats(0.5, 20))
def test_the_rest_takes_all_that_is_left_and_no_more(phases: list[Phase], epsilon: float) -> None:
    try:
        made = plan_privacy(epsilon, DELTA, phases)
    except ValueError as error:
        assume("nothing is left" not in str(error))
        raise
    exact = get_epsilon_gaussian(1 / math.sqrt(sum(map(cost, made.phases))), LEFT)
    assert made.epsilon == pytest.approx(exact, abs=1e-9)
    assert made.rho == pytest.approx(sum(map(cost, made.phases)) / 2)
    assert made.epsilon <= epsilon
    assert made.epsilon == pytest.approx(epsilon, rel=1e-6)
    for asked, got in zip(phases, made.phases, strict=True):
        assert not asked.multiplier or got.multiplier == asked.multiplier
    total = sum(phase.most for phase in made.phases if phase.source == "nodes")
    assert total * made.distance <= allowed_distance(DELTA)


@settings(max_examples=8, deadline=None)
@given(phases=unsampled(), order=st.randoms(use_true_random=False))
def test_the_ledger_takes_the_phases_in_any_order_and_nothing_more(
    phases: list[Phase], order: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        made = plan_privacy(3.0, DELTA, phases)
    except ValueError:
        assume(False)
    wanted = charges(made)
    order.shuffle(wanted)
    book = spend(made, tmp_path_factory.mktemp("ledger") / "p.jsonl", wanted)
    with pytest.raises(BudgetExceeded):
        book.reserve(run="r", query="q", round=999, attempt=1, noise_multiplier=1e3)


SAMPLED = [  # to find the rest's noise takes seconds
    [Phase(ROUNDS, 3, 1, POISSON), Phase("histogram", 1, share=0.2)],
    [
        Phase(ROUNDS, 3, 1, POISSON, multiplier=1.5),
        Phase("evaluation", 2, 0, POISSON, multiplier=2.0),
    ],
    [
        Phase("histogram", 1, source="aggregator", multiplier=12.0),
        Phase(ROUNDS, 3, 0, POISSON, multiplier=2.0),
    ],
]


@pytest.mark.slow
@pytest.mark.parametrize("phases", SAMPLED)
def test_sampled_mixtures(phases: list[Phase], tmp_path: Path) -> None:
    made = plan_privacy(2.0, DELTA, phases)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    for phase in made.phases:
        event: Any = GaussianDpEvent(phase.multiplier)
        if phase.rate < 1:
            event = PoissonSampledDpEvent(phase.rate, event)
        accountant.compose(event, phase.most)
    assert made.epsilon == pytest.approx(accountant.get_epsilon(LEFT), rel=1e-6)
    calibrated = any(not phase.multiplier and not phase.share for phase in phases)
    assert (2.0 - 2e-3 if calibrated else 0) < made.epsilon <= 2.0

    wanted = charges(made)
    assert made.plan is not None and sum(kind.releases for kind in made.plan) == len(wanted)
    random.Random(7).shuffle(wanted)
    book = spend(made, tmp_path / "p.jsonl", wanted)
    assert [affordable_charges(book, [charge]) for charge in wanted] == [0] * len(wanted)
    again = Ledger.open(book.path, population="p", **made.ledger_terms())
    assert again.header == book.header


def test_correlated_rounds_beside_sampling_are_refused() -> None:
    """Their charges are not alike: the plan of the ledger would refuse the run's own rounds."""
    with pytest.raises(
        ValueError, match=r"ftrl: noise that is correlated .* sampling-rate below 1"
    ):
        plan_privacy(2.0, DELTA, [correlated(6), Phase("histogram", 1, 0, POISSON)])


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("evaluations", [0, 2])
def test_rows_of_the_nodes_are_paid_for_with_their_spare_ones(spare: int, evaluations: int) -> None:
    """mu by hand, from the worst user's rows and from rows that are asked once more."""
    main = rows(spare)
    made = plan_privacy(2.0, DELTA, [main, *evaluation_phases(main, evaluations)])
    c = [1.0, 40 / 64, 10 / 64, 0, 0, 0]
    worst = [sum(c[t - s] for s in (0, 2, 4) if s <= t) for t in range(6)]
    again = c[0] + c[2]  # two rounds of one user are in one row
    squares = sum(one**2 for one in worst) + spare * again**2
    z = made.main.multiplier
    assert made.main.sensitivity**2 == pytest.approx(squares)
    each = squares / z**2 / 3  # of three participations, and of an evaluation
    mu = math.sqrt(each * (3 + evaluations))
    assert get_epsilon_gaussian(1 / mu, LEFT) == pytest.approx(2.0, rel=1e-6)
    assert made.epsilon <= 2.0 and made.rho == pytest.approx(mu**2 / 2)
    assert made.main.equivalent == pytest.approx(each**-0.5)
    assert made.releases == 6 + spare + evaluations
    assert made.distance == distance_each(2.0, DELTA, made.releases, 2.0)
    said = statement_of(made, min_surviving_weight=0.5, aggregation="secure")
    assert (said.rounds, said.spare_rounds, said.evaluations) == (6, spare, evaluations)
    assert (said.noise_source, said.correlated) == ("nodes", "banded")
    assert (said.most_participations, said.min_separation) == (3, 2)
    assert said.noise_multiplier == made.main.equivalent and said.accountant == "exact"
    assert "at most 3 rounds, 2 or more apart" in said.sentence()
    assert "trusted" not in said.sentence() and said.threat_model.startswith("honest-but")


def test_a_share_or_a_multiplier_buys_rows_what_it_says() -> None:
    made = plan_privacy(3.0, DELTA, [Phase("a"), rows(1, share=0.25)])
    squares = made.main.sensitivity**2 / made.main.multiplier**2
    assert squares / (squares + made["a"].multiplier ** -2) == pytest.approx(0.25, rel=1e-6)
    with pytest.raises(PrivacyPlanError, match=r"6 rounds and 1 spare, above .* raise it"):
        plan_privacy(1.0, DELTA, [rows(1, multiplier=1.0)])
    with pytest.raises(ValueError, match="not accounted beside"):
        plan_privacy(2.0, DELTA, [rows(), Phase("histogram", 1, 0, POISSON)])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rounds": 0}, "p: rounds = 0 "),
    ({"spare": -1}, "spare-rounds = -1 "),
    ({"share": 1.0}, "share = 1.0 "),
    ({"multiplier": math.nan}, "noise-multiplier = nan"),
    ({"source": "aggregator", "sampler": POISSON}, "sampling-rate = 0.1"),
    ({"participation": Participation(1)}, "p: give correlation and"),
    (
        {"correlation": factorization("independent", 1), "participation": Participation(1)},
        "p: noise of the nodes cannot be correlated by Toeplitz",
    ),
    (
        {"source": "aggregator", "correlation": ROWS, "rounds": 6, "participation": TURNS},
        "p: noise of the aggregator cannot be correlated by IntegerMatrix",
    ),
    (
        {"correlation": ROWS, "rounds": 6, "participation": Participation(6)},
        "cannot be correlated by IntegerMatrix for this participation",
    ),
    (
        {"correlation": ROWS, "rounds": 6, "participation": TURNS, "sampler": POISSON},
        "sampler = 'poisson', cycle = 0: all nodes answer rows in every round",
    ),
    (
        {"correlation": ROWS, "rounds": 6, "participation": TURNS, "cycle": 2},
        "cycle = 2: .*ftrl.schedule = 'users'",
    ),
    ({"source": "aggregator", "participation": Participation(1)}, "p: give correlation and"),
    (
        {
            "source": "aggregator",
            "rounds": 3,
            "correlation": factorization("independent", 3),
            "participation": Participation(2),
        },
        "rounds = 2, the mechanism for rounds = 3",
    ),
]


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_a_phase_names_what_cannot_be_accounted(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Phase("p", **fields)


def test_a_promise_names_what_it_cannot_keep() -> None:
    with pytest.raises(ValueError, match=r"phases = \['a', 'a'\] must have distinct names"):
        plan_privacy(1.0, DELTA, [Phase("a"), Phase("a")])
    with pytest.raises(
        PrivacyPlanError, match=r"noise-multiplier = 1\.0 costs epsilon .* raise it to"
    ):
        plan_privacy(1.0, DELTA, [Phase("a", multiplier=1.0)])
    with pytest.raises(PrivacyPlanError, match=r"ledger-epsilon = 1 .* below epsilon = 2"):
        plan_privacy(2.0, DELTA, [Phase("a")], ledger_epsilon=1.0)
    with pytest.raises(ValueError, match="nothing is left for the rest"):
        plan_privacy(1.0, DELTA, [Phase("a", multiplier=1.0), Phase("b")])


# What is said ---------------------------------------------------------------------------------


def said(*phases: Phase, **facts: Any) -> tuple[str, str]:
    facts = {"min_surviving_weight": 0.85, "aggregation": "secure"} | facts
    noisy = [phase.with_multiplier(3.0) for phase in phases]
    statement = statement_of(plan_privacy(3.0, DELTA, noisy, checked=False), **facts)
    return statement.sentence(), statement.short()


@pytest.mark.parametrize("noise", [0.0, 9.0])
def test_an_evaluation_like_the_rounds_is_said_with_them(noise: float) -> None:
    """Noise before it is correlated and noise of independent rounds are equal but for rounding."""
    for rounds in range(1, 40):
        independent, always = factorization("independent", rounds), Participation(rounds)
        main = Phase(
            ROUNDS, rounds, source="aggregator", correlation=independent, participation=always
        ).with_multiplier(noise)
        made = plan_privacy(30.0, DELTA, [main, *evaluation_phases(main, 2)])
        statement = statement_of(made, min_surviving_weight=0.85)
        assert (statement.evaluations, statement.others) == (2, ())


def test_one_phase_of_a_trusted_aggregator_takes_the_server_out_of_the_claim() -> None:
    """Epsilon is of all phases together, and the server has the sums of one without noise."""
    long, short = said(Phase(ROUNDS, 3), Phase("histogram", 1, source="aggregator"))
    assert "holds against the server" not in long
    assert "TRUSTED: the nodes add no noise to 'histogram', so the server learns" in long
    assert "claims nothing against the server" in long
    assert "pays for the integers" in long and "85 % of the declared" in long
    assert "The server is TRUSTED" in short and "honest-but-curious" not in short

    long, short = said(Phase(ROUNDS, 3, source="aggregator"), Phase("histogram", 1))
    assert "add no noise to the rounds, so" in long and "pays for the integers" in long
    assert "The noise suffices as long as 85 %" in long
    assert "The server is TRUSTED" in short


def test_sampling_of_one_phase_is_in_the_sentence() -> None:
    long, short = said(Phase(ROUNDS, 3), Phase("histogram", 1, 0, POISSON))
    assert "privacy loss distribution (PLD)" in long and "exact privacy curve" not in long
    assert "in which each user takes part with probability 0.1" in long
    assert "for 'histogram', each user takes part in a round with probability 0.1" in long
    assert "no amplification by sampling is claimed" not in long
    assert "never a user's own node" in short

    long, short = said(Phase(ROUNDS, 3, 0, POISSON), Phase("histogram", 1))
    assert "of 'histogram'" in long and "takes part with probability 1" in long
    assert "never a user's own node" in short


def test_rho_is_of_gaussians_without_sampling() -> None:
    rounds = Phase(ROUNDS, 3, source="aggregator").with_multiplier(2.0)  # mu^2 = 3 / 4
    alone = plan_privacy(9.0, DELTA, [rounds])
    assert alone.rho == 0.375
    statement = statement_of(alone, min_surviving_weight=0.85)
    assert statement.rho_zcdp == 0.375
    assert "it is 0.375-zCDP (rho = mu^2 / 2)." in statement.sentence()

    noisy = Phase("histogram", 2, 1).with_multiplier(4.0)  # 3 / 16 more, with integers
    both = plan_privacy(9.0, DELTA, [rounds, noisy])
    assert both.rho == 0.46875
    said = statement_of(both, min_surviving_weight=0.85).sentence()
    assert "0.4688-zCDP (rho = mu^2 / 2), but for that part of delta." in said  # rounded up

    tossed = plan_privacy(
        9.0, DELTA, [rounds, Phase("histogram", 1, 0, POISSON).with_multiplier(4.0)]
    )
    assert tossed.rho is None
    said = statement_of(tossed, min_surviving_weight=0.85).sentence()
    assert "No rho-zCDP is claimed" in said and "-zCDP (rho" not in said


def test_an_evaluation_of_other_users_is_not_said_with_the_rounds() -> None:
    beside = Phase("evaluation", 1, 0, evaluates=True)
    noisy = [Phase(ROUNDS, 3, 0, POISSON).with_multiplier(3.0), beside.with_multiplier(3.0)]
    statement = statement_of(plan_privacy(3.0, DELTA, noisy), min_surviving_weight=0.85)
    assert statement.evaluations == 0
    assert [(other[0], other[-1]) for other in statement.others] == [("evaluation", 1.0)]
