"""Keys mean one thing each, and only where they were made for."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.secagg import keys


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digests_tell_lists_of_parts_apart(one: list[bytes], other: list[bytes]) -> None:
    assert (keys.digest(*one) == keys.digest(*other)) == (one == other)


def test_both_sides_agree() -> None:
    a, b = keys.new_secret(), keys.new_secret()
    shared = keys.agree(keys.load(a), keys.public_key(b))
    assert shared == keys.agree(keys.load(b), keys.public_key(a))
    assert shared != keys.agree(keys.load(a), keys.public_key(keys.new_secret()))
    with pytest.raises(ValueError):
        keys.agree(keys.load(a), bytes(32))


def test_derived_keys_are_bound_to_purpose_and_transcript() -> None:
    made = {
        keys.derive(material, transcript, purpose)
        for material in (b"m" * 32, b"n" * 32)
        for transcript in (b"t" * 32, b"u" * 32)
        for purpose in (b"self mask", b"pair mask 0 1", b"share 0 to 1", b"share 1 to 0")
    }
    assert len(made) == 16


def test_a_seal_opens_with_its_key_about_its_matter() -> None:
    sealed = keys.seal(b"k" * 32, b"text", b"about")
    assert keys.unseal(b"k" * 32, sealed, b"about") == b"text"
    assert b"text" not in sealed
    for key, data, about in (
        (b"l" * 32, sealed, b"about"),
        (b"k" * 32, sealed, b"other"),
        (b"k" * 32, sealed[:-1], b"about"),
        (b"k" * 32, b"", b"about"),
    ):
        assert keys.unseal(key, data, about) is None


def test_signatures_hold_for_one_text_and_key() -> None:
    identity = Ed25519PrivateKey.generate()
    public = identity.public_key().public_bytes_raw()
    signature = keys.sign(identity, b"text")
    assert keys.signed(public, signature, b"text")
    assert not keys.signed(public, signature, b"another")
    assert not keys.signed(public, bytes(64), b"text")
    assert not keys.signed(public, b"", b"text")
    assert not keys.signed(b"short", signature, b"text")
    assert not keys.signed(bytes(32), signature, b"text")
    raw = identity.sign(b"text")  # outside this protocol's domain
    assert not keys.signed(public, raw, b"text")
