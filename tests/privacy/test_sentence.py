"""The privacy sentence says everything that the number depends on."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from privsyn_flower.privacy import PrivacyStatement
from privsyn_flower.privacy.noise.integer_noise import gaussian_delta

PLAIN = PrivacyStatement(
    epsilon=7.5799999,
    delta=3e-6,
    noise_multiplier=2.18051,
    rounds=10,
    spare_rounds=1,
    min_surviving_weight=0.85,
    colluding_weight=0.1,
)
SECURE = PrivacyStatement(
    epsilon=7.58,
    delta=3e-6,
    noise_multiplier=2.18051,
    rounds=10,
    spare_rounds=1,
    min_surviving_weight=0.85,
    colluding_weight=0.1,
    aggregation="secure",
)


def test_all_parts_are_there():
    text = PLAIN.sentence()
    for words in (
        "Epsilon = 7.58 at delta = 3e-06",
        "by the exact privacy curve of the composed Gaussian noise, over",
        "10 rounds and 1 spare",
        "integer (discrete Gaussian) noise of at least 2.1805 times",
        "Of delta, 3e-09 pays for the integers",
        "two devices counts twice",
        "zero-out",
        "the aggregator is trusted",
        "claims nothing against the server",
        "85 % of the declared",
        "10 % of the declared users' weight",
        "fresh ledger",
        "tuned",
    ):
        assert words in text, words
    assert "benchmark" not in text and "NO PRIVACY" not in text
    assert "floating-point" not in text and "PLD" not in text
    assert "trusted aggregator" in PLAIN.threat_model


def test_what_users_have_need_not_be_text():
    assert "all its texts" in PLAIN.sentence() and "these users' texts" in PLAIN.sentence()
    text = replace(SECURE, data="data").sentence()
    assert "one node's user with all its data, so" in text and "text" not in text
    with pytest.raises(ValueError, match="data = 'pictures'"):
        replace(PLAIN, data="pictures")


def test_secure_aggregation_says_what_it_assumes():
    text = SECURE.sentence()
    for words in (
        "by the exact privacy curve of the composed Gaussian noise",
        "integer (discrete Gaussian) noise of at least 2.1805 times",
        "Aggregation is secure",
        "holds against the server",
        "the server follows the protocol, apart from what the nodes check",
        "at most 10 % of the declared users' weight",
        "Shamir threshold exceeds half of neighbours plus colluders",
        "on first use",
        "85 % of the declared",
    ):
        assert words in text, words
    for words in ("trusted:", "floating-point", "Skellam", "simulation:", "PLD", "  ", ".."):
        assert words not in text, words
    assert SECURE.threat_model == (
        "honest-but-curious server with at most 10 % of the weight colluding: holds against the "
        "server and readers of the released sums"
    )
    roster = replace(SECURE, keys="roster").sentence()
    assert "against a roster" in roster and "first use" not in roster


def test_integer_noise_under_a_trusted_aggregator():
    text = replace(SECURE, aggregation="plain").sentence()
    assert "discrete Gaussian" in text and "the aggregator is trusted" in text
    assert "floating-point" not in text and "Shamir" not in text and "roster" not in text


@pytest.mark.parametrize(
    ("delta", "share"), [(3e-6, "3e-09"), (1e-5, "1e-08"), (1.23456e-7, "1.23e-10")]
)
def test_what_of_delta_is_for_the_integers(delta, share):
    """A thousandth, at any epsilon: the rest is what the run was calibrated for."""
    text = replace(SECURE, delta=delta).sentence()
    assert (
        f"Of delta, {share} pays for the integers: but for less than that, the noise is "
        "Gaussian noise rounded to integers, or more." in text
    )
    assert float(share) == pytest.approx(delta - gaussian_delta(delta), rel=5e-3)
    assert "for the integers" not in replace(SECURE, noise_source="aggregator").sentence()


def test_a_simulation_says_that_one_machine_played_all_parties():
    for statement in (PLAIN, SECURE):
        assert "one machine played" not in statement.sentence()
        assert "one machine played" in replace(statement, simulated=True).sentence()


def test_how_a_simulation_was_split():
    simulated = replace(SECURE, simulated=True)
    assert "the preparation of a simulated split" in simulated.sentence()  # whoever made it
    assert "split" not in replace(simulated, split="own").sentence()
    for one in (PLAIN, SECURE):
        chosen = replace(one, simulated=True, benchmark=True, split="private")
        text = chosen.sentence()
        assert chosen.threat_model == f"{one.threat_model}; the split was chosen by private text"
        assert "EPSILON DOES NOT COVER THE SPLIT" in text and "by reading private text" in text
        assert "the preparation" not in text
    rows = replace(simulated, split="rows")
    assert "each user (a share of the rows, not a person) with all" in rows.short()
    assert "a person who wrote several rows: they may be several users" in rows.sentence()
    with pytest.raises(ValueError, match="split = 'public'"):
        replace(SECURE, split="public")


def test_samplers():
    assert "no amplification" in SECURE.sentence()
    fixed = replace(SECURE, sampler="fixed").sentence()
    assert "fixed number of nodes" in fixed and "no amplification" in fixed
    poisson = {"sampler": "poisson", "sampling_rate": 0.1}
    assert "probability 0.1" in replace(SECURE, **poisson).sentence()
    assert "who takes part," not in replace(SECURE, **poisson).sentence()  # sampling is secret
    assert "against the server, which sees only sums" in replace(SECURE, **poisson).sentence()
    assert "which sees only sums" not in replace(PLAIN, **poisson).sentence()
    for one in (PLAIN, SECURE):
        text = replace(one, **poisson).sentence()
        assert "by the privacy loss distribution (PLD) of the composed, sampled Gaussian" in text
        assert "exact privacy curve" not in text
    names = [replace(SECURE, **change).accountant for change in ({}, {"sampler": "fixed"}, poisson)]
    assert names == ["exact", "exact", "pld"]


def test_variants():
    assert "`benchmark`" in replace(PLAIN, benchmark=True).sentence()
    for one in (PLAIN, SECURE):
        assert "nodes take to answer, and whether they answer in time" in one.sentence()
    assert "spans the runs" in replace(PLAIN, ledger_scope="population").sentence()
    assert " spare" not in replace(PLAIN, spare_rounds=0).sentence()
    seeded = replace(PLAIN, simulation_seeded=True)
    assert seeded.sentence().startswith("NO PRIVACY IS CLAIMED")
    assert seeded.threat_model.startswith("none")


def test_printed_numbers_err_on_the_safe_side():
    assert "Epsilon = 1.0001 " in replace(PLAIN, epsilon=1.00000001).sentence()
    assert "Epsilon = 1 " in replace(PLAIN, epsilon=1.0).sentence()
    assert "Epsilon = 1000 " in replace(PLAIN, epsilon=1000.0).sentence()
    assert "Epsilon = infinity" in replace(PLAIN, epsilon=float("inf")).sentence()
    assert "at least 1.9999 times" in replace(PLAIN, noise_multiplier=1.99999).sentence()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"aggregation": "open"}, "aggregation = 'open'"),
        ({"keys": "none"}, "keys = 'none'"),
        ({"consistency": "none"}, "consistency = 'none'"),
        ({"sampler": "some"}, "sampler = 'some'"),
        ({"sampling_rate": 0.1}, "sampling rate = 0.1"),
        ({"unit": "sample"}, "unit = 'sample'"),
        ({"epsilon": -29.87}, "epsilon = -29.87"),
        ({"delta": 0.0}, "delta = 0.0"),
    ],
)
def test_no_words_for_it(change, words):
    with pytest.raises(ValueError, match=words):
        replace(PLAIN, **change)


@pytest.mark.parametrize("name", ["accountant", "mechanism"])
def test_all_noise_has_one_accounting(name):
    with pytest.raises(TypeError, match=name):
        replace(PLAIN, **{name: "rdp"})


def test_evaluations_rival_and_private_selection_are_said():
    more = replace(SECURE, evaluations=1, benchmark=True, rival=True)
    text = more.sentence()
    assert "10 rounds and 1 spare and 1 evaluation of models on the nodes" in text
    assert "files of the rival method" in text and "SELECTION" not in text
    chosen = replace(more, private_selection=True)
    assert "EPSILON DOES NOT COVER THE SELECTION" in chosen.sentence()
    assert chosen.threat_model.startswith("none: checkpoints were chosen by private text")


AGGREGATOR = replace(
    PLAIN,
    rounds=32,
    noise_source="aggregator",
    correlated="banded Toeplitz",
    min_separation=4,
    aggregation="secure",
)


def test_noise_of_a_trusted_aggregator():
    text = AGGREGATOR.sentence()
    for words in (
        "the exact privacy curve of the composed Gaussian noise, over 32 rounds, with noise "
        "that is correlated across rounds (banded Toeplitz)",
        "as much as independent Gaussian noise of at least 2.1805 times the L2 bound of one user's "
        "answer in each of 8 rounds",
        "Every user takes part in at most 8 rounds, 4 or more apart, which each node enforces",
        "The aggregator is TRUSTED",
        "learns each round's sum without noise",
        "claims nothing against the server",
        "single answers stay hidden from the server, as long as the server follows the protocol",
        "Shamir threshold",
        "suffices whoever answers",
        "Gaussian noise made in floating-point arithmetic",
        "whoever reads the key of the noise, which is on the aggregator's disk while the run lasts",
    ):
        assert words in text, words
    unsaid = ("spare", "against the server and", "know their own noise", "for the integers")
    for words in (*unsaid, "  ", ".."):
        assert words not in text, words
    assert AGGREGATOR.threat_model == (
        "trusted aggregator: it has the sums without noise, single answers stay hidden from it; "
        "holds against readers of the released sums, not the server"
    )
    plain = replace(AGGREGATOR, aggregation="plain")
    assert "so the server learns each node's own answer" in plain.sentence()
    assert "hidden" not in plain.sentence() + plain.threat_model
    assert "trusted aggregator" in plain.threat_model


def test_correlated_noise_of_the_nodes_trusts_nobody():
    """The words of correlated noise, and of an honest-but-curious server."""
    nodes = replace(AGGREGATOR, noise_source="nodes", spare_rounds=2)
    text = nodes.sentence()
    for words in (
        "over 32 rounds and 2 spare, with noise that is correlated across rounds",
        "as much as independent integer (discrete Gaussian) noise of at least 2.1805 times",
        "answer in each of 8 rounds",
        "at most 8 rounds, 4 or more apart, which each node enforces",
        "Each node's answer holds what its users said in earlier rounds, too",
        "claim holds against the server and everyone who sees",
        "pays for the integers",
    ):
        assert words in text, words
    for words in ("TRUSTED", "key of the noise", "floating-point"):
        assert words not in text
    assert nodes.threat_model.startswith("honest-but-curious server")
    assert "honest-but-curious" in nodes.short()


def test_an_aggregator_sees_evaluations_too():
    text = replace(AGGREGATOR, aggregation="secure", evaluations=2).sentence()
    assert "each round's and evaluation's sum without noise" in text
    assert "rounds and in each evaluation" in text
    assert "evaluation" not in AGGREGATOR.sentence()


def test_independent_noise_of_a_trusted_aggregator():
    each_round = replace(AGGREGATOR, correlated="", min_separation=1)
    text = each_round.sentence()
    assert "over 32 rounds, each with Gaussian noise of at least 2.1805 times" in text
    assert "takes part in at most" not in text and "correlated" not in text


def test_how_often_a_user_takes_part():
    def most(**change):
        return replace(AGGREGATOR, **change).most_participations

    assert (most(), most(min_separation=5), most(max_participations=3)) == (8, 7, 3)
    assert most(participations=2, max_participations=3) == 2
    assert most(max_participations=100) == 8
    text = replace(AGGREGATOR, min_separation=1, max_participations=1).sentence()
    assert "in at most 1 round, which each node" in text


def test_adaptive_clipping_is_said():
    assert "was shortened is one more coordinate of the same" not in SECURE.sentence()
    text = replace(SECURE, adaptive_clipping=True).sentence()
    assert "was shortened is one more coordinate of the same answer under the same L2 bound" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampler": "poisson", "sampling_rate": 0.1}, "sampler = 'poisson'"),
        ({"simulation_seeded": True}, "simulation_seeded = True"),
        ({"noise_source": "nodes", "sampler": "fixed"}, "'banded Toeplitz', sampler = 'fixed'"),
        ({"noise_source": "nodes", "correlated": ""}, "participations = 8 of 32 rounds"),
        ({"noise_source": "cloud"}, "noise_source = 'cloud'"),
        ({"min_separation": 0}, "min_separation = 0"),
        ({"max_participations": -1}, "max_participations = -1"),
    ],
)
def test_no_words_for_such_noise(change, words):
    with pytest.raises(ValueError, match=words):
        replace(AGGREGATOR, **change)


def every_statement() -> list[PrivacyStatement]:
    """Every trust model and sampler, simulated or not, with what epsilon leaves out."""
    trust: list[dict[str, Any]] = [
        {"aggregation": "secure", "colluding_weight": 0.123},
        {"aggregation": "plain"},
        {"aggregation": "secure", "noise_source": "aggregator"},
        {"aggregation": "plain", "noise_source": "aggregator", "correlated": "blt"},
    ]
    samplers = [{}, {"sampler": "fixed"}, {"sampler": "poisson", "sampling_rate": 0.125}]
    said: list[dict[str, Any]] = [
        {},
        {"benchmark": True, "rival": True, "evaluations": 2, "data": "data"},
        {"split": "private"},
        {"private_selection": True},
        {"split": "private", "private_selection": True, "ledger_scope": "population"},
        {"simulation_seeded": True, "split": "private", "private_selection": True},
    ]
    simulated = ({}, {"simulated": True}, {"simulated": True, "cluster": True})
    base = replace(PLAIN, epsilon=1234.56789, delta=1.23456e-10)
    found = []
    for changes in itertools.product(trust, samplers, said, simulated):
        try:
            found.append(replace(base, **{k: v for part in changes for k, v in part.items()}))
        except ValueError:  # a trusted aggregator claims no sampling and has no seed
            assert changes[0].get("noise_source") == "aggregator"
    return found


def test_the_short_form_claims_nothing_that_the_long_one_does_not():
    statements = every_statement()
    assert len(statements) > 100
    for one in statements:
        short, long = one.short(), one.sentence()
        assert len(short.split()) <= 60, short
        assert "Epsilon = 1234.5679 at delta = 1.23456e-10 for each user" in short
        assert "Epsilon = 1234.5679 at delta = 1.23456e-10 for each user" in long
        assert f"with all its {one.data}" in short and f"with all its {one.data}" in long
        assert "zero-out" in short and short.endswith("privacy.md.")
        void = one.simulation_seeded or one.private_selection
        assert ("NO PRIVACY IS CLAIMED" in short) is void
        assert ("Holds against" in short or "holds against" in short) is not void
        # Each of these in the short form exactly where the long one says the same.
        server = "The claim holds against the server and everyone" in long
        assert ("an honest-but-curious server" in short) is (server and not void)
        assert ("sums, not the server" in short) is (not server and not void)
        assert ("TRUSTED" in short) is ("claims nothing against the server" in long and not void)
        assert ("it sees sums without noise" in short) <= ("sum without noise" in long)
        assert ("it sees each node's answer" in short) <= ("each node's own answer" in long)
        for who in ("one machine", "its machines"):
            assert (f"{who} saw everything" in short) is (f"{who} played the server" in long)
        assert ("the split" in short) is ("EPSILON DOES NOT COVER THE SPLIT" in long)
        chosen = "EPSILON DOES NOT COVER THE SELECTION" in long
        assert ("checkpoints" in short.partition("Not covered")[2]) is chosen
        own = "never against a user's own node" in long
        assert ("never a user's own node" in short) is (own and not void)
        for share in re.findall(r"at most (\S+) % of the weight", short):
            assert f"at most {share} % of the declared users' weight" in long
        assert "amplif" not in short and "  " not in short and ".." not in short
        begin = short.rpartition(" privacy.md.")[0].removesuffix(" in")
        assert one.page() == f"# Privacy of this run\n\n{begin} below.\n\n{long}\n"


def test_settings_that_were_changed_later_cover_no_choice_that_looked_at_users() -> None:
    text = replace(PLAIN, changed=("benchmark", "expand.temperature")).sentence()
    assert "were changed (benchmark, expand.temperature)" in text
    assert "Epsilon does not cover a setting that was found by looking at these users' data" in text
