"""Each way in which a server, or the cohort it names, is refused by the nodes themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privsyn_flower.secagg import Code, Cohort, SecaggError, keys, node
from privsyn_flower.secagg.cohort import pack_list
from tests.secagg.rig import IDENTITIES, Rig, a_session


def refused(code: Code, act: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(SecaggError) as caught:
        act(*arguments)
    assert caught.value.code == code, caught.value


def a_rig(n: int = 6, **session: Any) -> Rig:
    return Rig(
        np.arange(2 * n).reshape(n, 2), a_session(**{"length": 2, "min_weight": 3, **session})
    )


def re_encoded(rig: Rig, change: Callable[[list[Any]], list[Any]]) -> bytes:
    members = change(list(rig.cohort.members))
    return Cohort(rig.session, tuple(members)).encode()


def changed(at: int, **values: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda ms: [replace(m, **values) if i == at else m for i, m in enumerate(ms)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda ms: ms[1:], Code.PEER),  # this node is not among the members
        (lambda ms: ms[:2], Code.COHORT),
        (changed(0, weight=5), Code.PEER),  # this node's own entry
        (changed(0, mask=bytes(32)), Code.PEER),
        (changed(1, weight=5), Code.SIGNATURE),
        (changed(1, mask=keys.public_key(keys.new_secret())), Code.SIGNATURE),
        (changed(1, signature=bytes(64)), Code.SIGNATURE),
        (changed(1, identity=IDENTITIES[50].public_key().public_bytes_raw()), Code.SIGNATURE),
        (changed(1, id=99999), Code.MALFORMED),  # out of order
        (lambda ms: [*ms, ms[-1]], Code.PEER),
    ],
)
def test_a_cohort_that_is_not_right(change: Any, code: Code) -> None:
    rig = a_rig()
    rig.to_cohort()
    refused(code, rig.share, 0, re_encoded(rig, change))
    assert not any(stage == "share" for _, stage, _ in rig.marks)


def test_keys_signed_for_another_session() -> None:
    rig, other = a_rig(), a_rig(round=2)
    rig.to_cohort()
    foreign = other.advertise(1)
    refused(Code.SIGNATURE, rig.share, 0, re_encoded(rig, lambda ms: [ms[0], foreign, *ms[2:]]))


@pytest.mark.parametrize("session", [{"min_weight": 7}, {"min_weight": 3, "colluding": 4}])
def test_a_cohort_below_w_min(session: dict[str, Any]) -> None:
    rig = a_rig(**session)
    members = [rig.advertise(i) for i in range(6)]
    refused(Code.COHORT, rig.share, 0, Cohort(rig.session, tuple(members)).encode())


def test_low_order_keys() -> None:
    """A member may sign a key that fixes what others agree with it."""
    rig = a_rig()
    members = [rig.advertise(i) for i in range(6)]
    bad = replace(members[3], cipher=bytes(32))
    bad = replace(bad, signature=keys.sign(IDENTITIES[3], bad.signed_text(rig.session)))
    cohort = rig.server.gather({m.id: m for m in [*members[:3], bad, *members[4:]]})
    refused(Code.PEER, rig.share, 0, cohort)


def test_a_node_deals_to_one_cohort() -> None:
    rig = a_rig()
    cohort = rig.to_cohort()
    copy = dict(rig.states[0])
    rig.share(0, cohort)
    refused(Code.SESSION, rig.share, 0, cohort)
    rig.states[0] = copy  # a second message in flight, with the state of before
    refused(Code.REPEATED, rig.share, 0, re_encoded(rig, lambda ms: ms[:-1]))


# --- stage 3: the list of sharers and what they sealed --------------------------------------


def test_sealed_shares_that_are_not_this_nodes() -> None:
    rig = a_rig()
    relayed = rig.to_relay()
    listed, own = relayed[100]
    size = node.SEALED
    swapped = own[size : 2 * size] + own[:size] + own[2 * size :]
    flipped = bytes([own[0] ^ 1]) + own[1:]
    for bad, code in (
        (swapped, Code.SEALED),
        (flipped, Code.SEALED),
        (relayed[101][1], Code.SEALED),
        (own[:-1], Code.MALFORMED),
        (own[:-size], Code.MALFORMED),
    ):
        refused(code, rig.mask, 0, listed, bad)
    assert not any(stage == "mask" for _, stage, _ in rig.marks)  # no private text was opened


def test_lists_of_sharers_that_are_not_right() -> None:
    rig = a_rig(min_weight=4)
    relayed = rig.to_relay()
    sealed = relayed[100][1]
    refused(Code.LIST, rig.mask, 0, rig.listing(1, 2, 3, 4, 5), sealed)  # itself left out
    refused(Code.SURVIVORS, rig.mask, 0, rig.listing(0, 1, 2), sealed)  # below W_min
    refused(Code.MALFORMED, rig.mask, 0, b"\xff", sealed)  # more members than there are
    refused(Code.MALFORMED, rig.mask, 0, b"", sealed)
    refused(Code.SEALED, rig.mask, 0, rig.listing(0, 1, 2, 3, 4), sealed[node.SEALED :])


def test_a_vector_is_masked_once() -> None:
    rig = a_rig()
    relayed = rig.to_relay()
    copy = dict(rig.states[0])
    rig.mask(0, *relayed[100])
    refused(Code.SESSION, rig.mask, 0, *relayed[100])
    rig.states[0] = copy
    refused(Code.REPEATED, rig.mask, 0, *relayed[100])


@pytest.mark.parametrize(
    "vector", [np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2), np.zeros(2, bool)]
)
def test_vectors_of_another_shape_or_type(vector: Any) -> None:
    rig = a_rig()
    relayed = rig.to_relay()
    rig.vectors = [vector]
    refused(Code.MALFORMED, rig.mask, 0, *relayed[100])


# --- stages 4 and 5: the list of survivors --------------------------------------------------


def test_lists_of_survivors_that_are_not_right() -> None:
    rig = Rig(np.ones((6, 2), int), a_session(length=2, min_weight=4), dies={5: "share"})
    rig.to_survivors()
    refused(Code.LIST, rig.confirm, 0, rig.listing(1, 2, 3, 4))  # itself left out
    refused(Code.LIST, rig.confirm, 0, rig.listing(0, 1, 2, 3, 5))  # dealt no shares
    refused(Code.SURVIVORS, rig.confirm, 0, rig.listing(0, 1, 2))  # below W_min
    refused(Code.MALFORMED, rig.confirm, 0, b"\xff\xff")
    assert not any(stage == "confirm" for _, stage, _ in rig.marks)


def test_a_neighbourhood_below_the_threshold() -> None:
    rig = a_rig(min_weight=1)
    rig.to_survivors()
    assert rig.cohort.graph.threshold == 3
    refused(Code.SURVIVORS, rig.confirm, 0, rig.listing(0, 1, 2))


def test_one_list_a_session_whatever_is_in_flight() -> None:
    rig = a_rig()
    rig.to_survivors()
    copy = dict(rig.states[0])
    rig.confirm(0, rig.listing(0, 1, 2, 3, 4))
    refused(Code.SESSION, rig.confirm, 0, rig.listing(0, 1, 2, 3, 5))
    rig.states[0] = copy
    refused(Code.REPEATED, rig.confirm, 0, rig.listing(0, 1, 2, 3, 5))


def test_both_kinds_of_share_by_two_lists() -> None:
    """Member 5's seed from some and mask key from others: the lists have no common quorum."""
    rig = a_rig()
    rig.to_survivors()
    everybody, without = rig.listing(*range(6)), rig.listing(*range(5))
    signed = {i: rig.confirm(i, everybody if i < 3 else without) for i in range(5)}
    for who in range(5):
        refused(Code.LIST, rig.unmask, who, rig.listing(*range(5)), b"".join(signed.values()))
    three = b"".join(signed[i] for i in range(3))
    refused(Code.SURVIVORS, rig.unmask, 0, rig.listing(0, 1, 2), three)
    assert not any(stage == "unmask" for _, stage, _ in rig.marks)


def test_different_lists_never_unmask_a_sum_below_w_min() -> None:
    """Each list is heavy enough, and every dropped member is dropped by a threshold of nodes:
    without a quorum for one list, seeds and keys of a smaller sum would be had."""
    n = 40
    rig = Rig(np.ones((n, 1), int), a_session(length=1, min_weight=20, bits=8))
    rig.to_survivors()
    threshold = rig.cohort.graph.threshold
    signed: dict[int, bytes] = {}
    lists: dict[int, bytes] = {}
    for i in range(n):
        lets_go = len(rig.cohort.neighbours[i]) - threshold
        gone = {(i + 1 + k) % n for k in range(lets_go)}
        lists[i] = rig.listing(*(j for j in range(n) if j not in gone))
        signed[i] = rig.confirm(i, lists[i])
    assert len(set(lists.values())) == n
    for i in range(n):
        agreeing = [j for j in range(n) if lists[j] == lists[i]]
        proof = b"".join(signed[j] for j in agreeing)
        refused(Code.SURVIVORS, rig.unmask, i, rig.listing(*agreeing), proof)
        refused(Code.LIST, rig.unmask, i, rig.listing(*range(n)), b"".join(signed.values()))


def test_a_list_that_clears_a_stretch_of_the_ring_is_refused() -> None:
    """Two such stretches would leave a few nodes between them with a sum of their own."""
    n = 100
    rig = Rig(np.ones((n, 1), int), a_session(length=1, min_weight=80, bits=8))
    rig.to_survivors()
    ring, run = rig.cohort.ring, rig.cohort.graph.degree // 2
    assert (rig.cohort.graph.stretch, run) == (1, 20)
    far = ring[60]  # none of its neighbours is gone

    def without(*gone: int) -> bytes:
        return rig.listing(*(i for i in range(n) if i not in gone))

    refused(Code.SURVIVORS, rig.confirm, far, without(*ring[:run]))
    rig.confirm(far, without(*ring[: run - 1], ring[run]))


def test_signatures_that_prove_nothing() -> None:
    rig = a_rig()
    signers, signatures = rig.to_proof()
    flipped = bytes([signatures[0] ^ 1]) + signatures[1:]
    refused(Code.LIST, rig.unmask, 0, signers, flipped)
    refused(Code.LIST, rig.unmask, 0, signers, signatures[64:] + signatures[:64])
    refused(Code.MALFORMED, rig.unmask, 0, signers, signatures[:-1])
    refused(Code.MALFORMED, rig.unmask, 0, signers, b"")
    refused(Code.SURVIVORS, rig.unmask, 0, rig.listing(), b"")
    rig.unmask(0, signers, signatures)


def test_unmasking_is_not_repeated() -> None:
    rig = a_rig()
    proof = rig.to_proof()
    copy = dict(rig.states[0])
    rig.unmask(0, *proof)
    assert rig.states[0] == {}
    refused(Code.SESSION, rig.unmask, 0, *proof)
    rig.states[0] = copy
    refused(Code.REPEATED, rig.unmask, 0, *proof)


# --- any stage ------------------------------------------------------------------------------


def test_stages_out_of_order_and_other_sessions() -> None:
    rig = a_rig()
    everybody = pack_list([True] * 6)
    acts: list[tuple[Any, ...]] = [
        (rig.share, 0, b""),
        (rig.mask, 0, everybody, b""),
        (rig.confirm, 0, everybody),
        (rig.unmask, 0, everybody, b""),
    ]
    for act, *arguments in acts:
        refused(Code.SESSION, act, *arguments)
    cohort = rig.to_cohort()
    for act, *arguments in acts[1:]:
        refused(Code.SESSION, act, *arguments)
    refused(Code.SESSION, rig.share, 0, cohort, a_rig(round=2).session.digest)
    rig.share(0, cohort)
    for act, *arguments in acts[2:]:
        refused(Code.SESSION, act, *arguments)


def test_different_lists_of_sharers_give_noise() -> None:
    rig = a_rig(bits=56)
    relayed = rig.to_relay()
    short = rig.listing(0, 1, 2, 3, 4)
    for i in range(6):
        listed, sealed = relayed[100 + i]
        if i == 0:  # one node is shown that member 5 dealt nothing
            listed, sealed = short, sealed[: -node.SEALED]
        rig.sent.setdefault("mask", {})[100 + i] = rig.mask(i, listed, sealed)
    survivors = rig.server.survive(rig.sent["mask"])
    refused(Code.LIST, rig.confirm, 0, survivors)  # 5 survives, and dealt nothing that 0 saw
    signed = {100 + i: rig.confirm(i, survivors) for i in range(1, 6)}
    proof = rig.server.confirm(signed)
    total = rig.server.total({100 + i: rig.unmask(i, *proof) for i in range(1, 6)})
    assert (np.abs(total.astype(np.float64) - rig.expected()) > 2**30).all()


def test_other_cohorts_cannot_open_each_others_shares() -> None:
    rig = a_rig()
    cohort = rig.to_cohort()
    fewer = re_encoded(rig, lambda ms: ms[:-1])
    dealt = {100 + i: rig.share(i, fewer if i == 0 else cohort) for i in range(6)}
    relayed = rig.server.relay(dealt)  # node 0 dealt to fewer: not counted here
    assert 100 not in relayed
    first = [dealt[100 + j][32 : 32 + node.SEALED] for j in range(1, 5)]  # for node 0
    sealed = b"".join(first)
    refused(Code.SEALED, rig.mask, 0, pack_list([True] * 5), sealed)
