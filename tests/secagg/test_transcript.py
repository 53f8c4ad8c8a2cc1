"""What one node sends says nothing about its vector, and nothing secret stays behind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privsyn_flower.secagg import keys, node
from tests.secagg.rig import Rig, a_session


def chi_square(data: bytes) -> float:
    """Standardised chi-square of the bytes' counts: about N(0, 1) when they are uniform."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = len(data) / 256
    return float(((counts - expected) ** 2 / expected).sum() - 255) / math.sqrt(510)


def ks_distance(x: Any, y: Any) -> float:
    """Kolmogorov-Smirnov distance times sqrt(nm / (n + m)); above 2.4 has probability 1e-5."""
    both = np.sort(np.concatenate([x, y]))
    gap = np.searchsorted(np.sort(x), both, "right") / len(x)
    gap = np.abs(gap - np.searchsorted(np.sort(y), both, "right") / len(y))
    return float(gap.max() * math.sqrt(len(x) * len(y) / (len(x) + len(y))))


@pytest.mark.parametrize("bits", range(8, 57, 8))
def test_masks_are_uniform_and_of_one_use(bits: int) -> None:
    words = node.residues(keys.mask_stream(bytes(32), 30_000, bits), bits)
    data = words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : bits // 8].tobytes()
    assert abs(chi_square(data)) < 6
    other = node.residues(keys.mask_stream(b"1" + bytes(31), 30_000, bits), bits)
    same = float((words == other).mean())
    assert same < 10 / 2**bits + 1e-4
    assert len(keys.mask_stream(bytes(32), 7, bits)) == 7


def masked_of(vector: Any, n: int = 4, bits: int = 16) -> dict[str, bytes]:
    """Everything that node 0 sends in one fresh session, by stage."""
    vectors = np.zeros((n, len(vector)), dtype=np.int64)
    vectors[0] = vector
    rig = Rig(vectors, a_session(length=len(vector), bits=bits))
    rig.total()
    return {
        "share": rig.dealt[100],
        "mask": rig.masked[100],
        "confirm": rig.signed[100],
        "unmask": rig.given[100],
    }


@pytest.mark.slow
def test_everything_sent_before_the_sum_is_alike_for_all_inputs() -> None:
    sessions, length = 60, 30
    zeros = [masked_of(np.zeros(length, int)) for _ in range(sessions)]
    tops = [masked_of(np.full(length, 2**15 - 1)) for _ in range(sessions)]
    for stage, width in (("share", 1), ("mask", 2), ("unmask", 1)):
        kind = {1: np.uint8, 2: np.uint16}[width]
        x = np.frombuffer(b"".join(s[stage] for s in zeros), kind)
        y = np.frombuffer(b"".join(s[stage] for s in tops), kind)
        assert ks_distance(x, y) < 2.6, stage
    for sent in (zeros, tops):
        assert abs(chi_square(b"".join(s["mask"] for s in sent))) < 6
        assert abs(chi_square(b"".join(s["share"] for s in sent))) < 6
        # Coordinates and sessions are not related either.
        rows = np.stack([np.frombuffer(s["mask"], np.uint16) for s in sent]).astype(float)
        assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.6
        assert len({s["mask"] for s in sent}) == sessions


def test_one_input_does_not_show_in_the_masked_vector() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.integers(-1000, 1000, 2000)
    masked = np.frombuffer(masked_of(inputs, n=3, bits=16)["mask"], np.uint16).astype(float)
    assert abs(np.corrcoef(inputs, masked)[0, 1]) < 6 / math.sqrt(2000)


def test_the_masked_vector_alone_is_noise_without_either_mask() -> None:
    """A server that knew the seed, or all pair masks, would still see nothing."""
    rig = Rig(np.zeros((4, 500), int), a_session(length=500))
    relayed = rig.to_relay()
    seed = bytes(rig.states[0]["seed"])
    secret = keys.load(bytes(rig.states[0]["mask"]))
    transcript = rig.cohort.transcript(rig.server.sharers)
    sent = np.frombuffer(rig.mask(0, *relayed[100]), np.uint16).astype(np.uint64)
    own = node.self_mask(seed, transcript, rig.session)
    pairs = sum(
        node.pair_mask(secret, rig.cohort, transcript, 0, j).astype(np.uint64) for j in (1, 2, 3)
    )
    for left in (sent - own, sent - pairs):
        assert abs(chi_square(node.residues(left, 16).astype(np.uint16).tobytes())) < 6
    assert not node.residues(sent - own - pairs, 16).any()


# --- erasure --------------------------------------------------------------------------------


def test_secrets_are_erased_as_soon_as_they_are_used() -> None:
    rig = Rig(np.ones((4, 2), int))
    cohort = rig.to_cohort()
    state = rig.states[0]
    cipher, mask = bytes(state["cipher"]), bytes(state["mask"])
    sent = [rig.share(i, cohort) for i in range(4)]
    relayed = rig.server.relay({100 + i: sent[i] for i in range(4)})
    assert held(state) == {"session", "member", "cohort", "stage", "mask", "seed", "openers"}
    seed, openers = bytes(state["seed"]), bytes(state["openers"])
    assert absent(state, cipher)
    masked = {100 + i: rig.mask(i, *relayed[100 + i]) for i in range(4)}
    assert held(state) == {"session", "member", "cohort", "stage", "sharers", "shares"}
    assert absent(state, cipher, mask, seed, *parts(openers, 32))
    shares = bytes(state["shares"])
    survivors = rig.server.survive(masked)
    signed = {100 + i: rig.confirm(i, survivors) for i in range(4)}
    rig.unmask(0, *rig.server.confirm(signed))
    assert state == {}
    assert all(cipher not in text and mask not in text and seed not in text for text in sent)
    assert shares


def test_a_new_round_drops_what_an_unfinished_one_left() -> None:
    rig = Rig(np.ones((4, 2), int))
    rig.to_relay()
    left = [bytes(rig.states[0][name]) for name in ("mask", "seed", "openers")]
    rig.advertise(0, a_session(length=2, round=2))
    assert held(rig.states[0]) == {"session", "member", "stage", "cipher", "mask"}
    assert absent(rig.states[0], *left)


def test_keys_are_fresh_for_every_attempt() -> None:
    rig = Rig(np.ones((4, 2), int))
    first, again = rig.advertise(0), rig.advertise(0)
    assert first.identity == again.identity
    assert len({first.cipher, first.mask, again.cipher, again.mask}) == 4


def held(state: dict[str, Any]) -> set[str]:
    return set(state)


def parts(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def absent(state: dict[str, Any], *secrets: bytes) -> bool:
    values = [value for value in state.values() if isinstance(value, bytes)]
    return not any(secret in value for secret in secrets for value in values)
