"""Exact sums under every pattern of dropouts, and under none for all sizes and bits."""

from __future__ import annotations

import itertools
import random
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsyn_flower.secagg import Code, SecaggError, keys, node
from tests.secagg.rig import IDENTITIES, STAGES, Rig, a_session

NEVER = "never"


def has_sum(deaths: tuple[str, ...]) -> bool:
    """Whether enough nodes of weight 1 are left in every stage, with W_min = 1 and no colluders."""
    reached = [STAGES.index(d) if d != NEVER else len(STAGES) for d in deaths]
    members, sharers, masked, signers, givers = (sum(r > s for r in reached) for s in range(5))
    threshold = (members - 1) // 2 + 1
    return (
        members >= 3
        and min(sharers, masked, signers, givers) >= 3
        and 2 * signers > members
        and givers - 1 >= threshold  # everybody's secrets have as many shares as others are left
    )


def check(deaths: tuple[str, ...]) -> bool:
    rng = np.random.default_rng(zlib.crc32(repr(deaths).encode()))
    vectors = rng.integers(-(2**14), 2**14, (len(deaths), 2))
    rig = Rig(vectors, dies={i: d for i, d in enumerate(deaths) if d != NEVER})
    if has_sum(deaths):
        assert np.array_equal(rig.total(), rig.expected()), deaths
        return True
    with pytest.raises(SecaggError) as caught:
        rig.total()
    assert caught.value.code in (Code.COHORT, Code.SURVIVORS), deaths
    return False


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 4])
def test_every_pattern_of_deaths(n: int) -> None:
    outcomes = [check(deaths) for deaths in itertools.product((*STAGES, NEVER), repeat=n)]
    # 3 nodes need everybody; of 4, one may die anywhere (5 ways), of which the earliest leaves 3.
    assert sum(outcomes) == {3: 1, 4: 1 + 4 * 5}[n]


@pytest.mark.slow
def test_patterns_of_five_and_six() -> None:
    poisson_sample = random.Random(0)
    stages = (*STAGES, *[NEVER] * 10)
    for n in (5, 6):
        patterns = {tuple(poisson_sample.choice(stages) for _ in range(n)) for _ in range(60)}
        outcomes = [check(deaths) for deaths in patterns]
        assert 0 < sum(outcomes) < len(outcomes)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(3, 12),
    bits=st.sampled_from(range(8, 57, 8)),
    length=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_sums_are_exact_in_every_modulus(n: int, bits: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    session = a_session(bits=bits, length=length)
    weights = rng.integers(1, 4, n).tolist()
    rig = Rig(rng.integers(-(2**62), 2**62, (n, length)), session, weights)
    assert np.array_equal(rig.total(), rig.expected())  # of any integers, modulo 2^bits


@pytest.mark.parametrize(("n", "dead"), [(33, 3), (60, 8)])
def test_a_sparse_graph_with_dropouts_in_every_stage(n: int, dead: int) -> None:
    rng = np.random.default_rng(n)
    session = a_session(length=3, min_weight=0.8 * n)
    dies = dict(zip(rng.permutation(n)[:dead].tolist(), itertools.cycle(STAGES), strict=False))
    rig = Rig(rng.integers(0, 99, (n, 3)), session, dies=dies)
    assert np.array_equal(rig.total(), rig.expected())
    assert rig.cohort.graph.degree < n - 1 or n == 33
    assert len(rig.alive("mask")) < n


def test_w_min_counts_users_not_nodes() -> None:
    weights = [1, 1, 1, 10]
    heavy = Rig(np.ones((4, 2), int), a_session(length=2, min_weight=5.0), weights, {0: "mask"})
    assert heavy.total().tolist() == [3, 3]
    light = Rig(np.ones((4, 2), int), a_session(length=2, min_weight=5.0), weights, {3: "mask"})
    with pytest.raises(SecaggError, match="W_min"):
        light.to_survivors()


def test_colluders_are_not_counted() -> None:
    def rig(colluding: float) -> Rig:
        session = a_session(length=2, min_weight=4.0, colluding=colluding)
        return Rig(np.ones((6, 2), int), session, dies={0: "mask"})

    assert rig(1.0).total().tolist() == [5, 5]
    with pytest.raises(SecaggError, match="W_min"):
        rig(2.0).total()


@pytest.mark.parametrize(("n", "dead"), [(4, {}), (6, {5: "mask"}), (40, {7: "mask"})])
def test_one_nodes_wrong_shares_are_noticed_and_left_out(n: int, dead: dict[int, str]) -> None:
    """Seeds of survivors and mask keys of the lost: others give the secrets that were dealt."""
    rig = Rig(np.ones((n, 2), int), dies=dead)
    proof = rig.to_proof()
    there = [i for i in range(n) if i not in dead]
    given = {rig.ids[i]: rig.unmask(i, *proof) for i in there}
    for liar in there[:3]:
        rig.server.wrong.clear()
        lies = {**given, rig.ids[liar]: bytes(len(given[rig.ids[liar]]))}
        assert rig.server.total(lies).tolist() == [len(there)] * 2
        assert rig.server.wrong <= {rig.ids[liar]}
        assert liar or rig.server.wrong  # the first node's shares are among the first taken


def test_too_many_wrong_shares_are_noticed() -> None:
    rig = Rig(np.ones((4, 2), int))
    proof = rig.to_proof()
    given = {rig.ids[i]: rig.unmask(i, *proof) for i in range(4)}
    for i in (1, 2):
        given[rig.ids[i]] = bytes(len(given[rig.ids[i]]))
    with pytest.raises(SecaggError) as caught:
        rig.server.total(given)
    assert caught.value.code == Code.SEALED


def test_the_server_leaves_out_what_is_not_right() -> None:
    rig = Rig(np.arange(10).reshape(5, 2), a_session(length=2))
    adverts = {100 + i: rig.advertise(i) for i in range(5)}
    adverts[104] = adverts[103]  # under another's id
    cohort = rig.server.gather(adverts)
    assert len(rig.server.cohort.members) == 4
    dealt = {100 + i: rig.share(i, cohort) for i in range(4)}
    relayed = rig.server.relay({**dealt, 103: b"short"})
    masked: dict[int, Any] = {i: rig.mask(i - 100, *relayed[i]) for i in relayed}
    assert sorted(masked) == [100, 101, 102]
    with pytest.raises(SecaggError):
        rig.server.survive({**masked, 102: masked[102][:-1]})


def test_all_copies_of_an_identity_are_left_out_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever only names another's identity signs nothing with it, and that one stays."""
    rig = Rig(np.ones((6, 2), int), a_session(length=2, min_weight=3))
    adverts = {100 + i: rig.advertise(i) for i in range(6)}
    adverts[105] = node.advertise(rig.states[5], rig.session, 105, 1, IDENTITIES[4])
    liar = replace(rig.advertise(0), id=106, identity=adverts[100].identity)
    cohort = rig.server.gather({**adverts, 106: liar})
    assert [member.id for member in rig.server.cohort.members] == [100, 101, 102, 103]
    assert len(rig.share(1, cohort)) > 32
    assert caplog.messages == [
        "2 nodes are left out, as they share an identity key (the same cache folder, or a copied "
        "device image): 104, 105"
    ]
    adverts[103] = node.advertise(rig.states[3], rig.session, 103, 1, IDENTITIES[2])
    with pytest.raises(SecaggError, match=r"2 nodes: .*; 4 nodes .*device image") as caught:
        rig.server.gather(adverts)
    assert caught.value.code == Code.COHORT


@pytest.mark.parametrize("name", ["cipher", "mask"])
def test_one_key_of_two_identities_is_an_error(name: str) -> None:
    """No member proves that it has the secret: which of them copied is unknown."""
    rig = Rig(np.ones((6, 2), int), a_session(length=2, min_weight=3))
    adverts = {100 + i: rig.advertise(i) for i in range(6)}
    same = replace(adverts[105], **{name: getattr(adverts[104], name)})
    signature = keys.sign(IDENTITIES[5], same.signed_text(rig.session))
    with pytest.raises(SecaggError, match=f"share one {name}"):
        rig.server.gather({**adverts, 105: replace(same, signature=signature)})


@pytest.mark.parametrize("n", [7, 40])
def test_bytes_are_those_of_the_page(n: int) -> None:
    """docs/secure-sum.md, "Bytes per node"."""
    rig = Rig(np.ones((n, 9), int), a_session(length=9, bits=24, min_weight=0.8 * n))
    signers, signatures = rig.to_proof()
    degree = rig.cohort.graph.degree
    assert len(rig.adverts[100].encode()) == 176
    assert len(rig.cohort_data) == 176 * n
    assert len(rig.dealt[100]) == 32 + 82 * degree
    listed, sealed = rig.relayed[100]
    assert len(listed) == len(signers) == (n + 7) // 8
    assert len(sealed) == 82 * degree
    assert len(rig.masked[100]) == 9 * 24 // 8
    assert len(rig.signed[100]) == 64
    assert len(signatures) == 64 * ((n + 1) // 2 + 1)  # no more than the quorum
    assert len(rig.unmask(0, signers, signatures)) == 33 * degree
