"""The cryptography of the secure sum: agreement, key derivation, signatures, masks, shared secrets.

All but the sharing of secrets comes from the package `cryptography`. Each derived key names its
purpose and the exact protocol transcript, so that no key or mask means anything in another round.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

DOMAIN = b"privsyn-secagg-1 "
SEAL_BYTES = 16  # the authentication tag
PRIME = 2**256 + 297  # the smallest prime above 2^256, so every 32-byte secret is an element
SHARE_BYTES = 33

Residues = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]


def digest(*parts: bytes) -> bytes:
    """SHA-256 over parts with their lengths, so that no two lists of parts collide."""
    state = hashlib.sha256(DOMAIN)
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()


def new_secret() -> bytes:
    """A fresh X25519 private key, 32 bytes from the operating system. SECRET."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a secret, 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def load(secret: bytes) -> X25519PrivateKey:
    """A secret made ready for many agreements (it costs as much as one). SECRET."""
    return X25519PrivateKey.from_private_bytes(secret)


def agree(secret: X25519PrivateKey, peer: bytes) -> bytes:
    """The X25519 shared secret. Raises ValueError for a peer key of low order."""
    return secret.exchange(X25519PublicKey.from_public_bytes(peer))


def derive(material: bytes, transcript: bytes, purpose: bytes) -> bytes:
    """HKDF-SHA256: 32 bytes for one purpose in one transcript. SECRET."""
    return HKDF(hashes.SHA256(), 32, salt=transcript, info=DOMAIN + purpose).derive(material)


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Authenticated encryption under a key that is used for this one text (so nonce 0)."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """The text, or None when it was not sealed with this key about this."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        return None


def sign(identity: Ed25519PrivateKey, text: bytes) -> bytes:
    """An Ed25519 signature, 64 bytes."""
    return identity.sign(DOMAIN + b"signature " + text)


@lru_cache(maxsize=1 << 14)  # public; nodes of one process check the same signatures
def signed(identity: bytes, signature: bytes, text: bytes) -> bool:
    """Whether `identity` (32 public bytes) signed this text."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(
            signature, DOMAIN + b"signature " + text
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def residue_type(bits: int) -> type[np.uint32] | type[np.uint64]:
    """Words in which sums mod 2^bits are computed: they wrap at a multiple of 2^bits."""
    return np.uint32 if bits <= 32 else np.uint64


def mask_stream(key: bytes, length: int, bits: int) -> Residues:
    """(length,) words, uniform mod 2^bits: ChaCha20 under a key of one use. SECRET.

    Words are wider than 2^bits and left so: their sum is reduced once, at the end.
    """
    word = np.dtype(residue_type(bits))
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    data = stream.update(bytes(length * word.itemsize))
    return np.frombuffer(data, dtype=word.newbyteorder("<")).astype(word, copy=False)


# --- Shamir 1979, "How to share a secret", in Python integers -----------------------------------


def split(secret: int, threshold: int, points: Sequence[int]) -> dict[int, int]:
    """Shares of a secret in [0, PRIME) at distinct points in [1, PRIME): point -> share (SECRET).

    Coefficients come from the operating system's randomness. Raises ValueError when the secret,
    the points or the threshold (1..number of points) are out of range.
    """
    if not 0 <= secret < PRIME:
        raise ValueError("the secret is outside the field")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError(
            f"points = {list(points)[:8]}... must be distinct, above 0 and below PRIME"
        )
    if not 1 <= threshold <= len(points):
        raise ValueError(f"threshold = {threshold} must be between 1 and {len(points)} points")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = {}
    for point in points:
        value = 0
        for coefficient in coefficients:  # Horner, highest power first
            value = (value + coefficient) * point % PRIME
        shares[point] = (value + secret) % PRIME
    return shares


def combine(shares: Mapping[int, int]) -> int:
    """The secret behind shares (point -> share), by interpolation at 0.

    Give exactly the threshold's number of shares; more are fine, fewer give a random element.
    """
    points = tuple(sorted(shares))
    weights = _at_zero(points)
    total = sum(weight * shares[point] for weight, point in zip(weights, points, strict=True))
    return total % PRIME


@lru_cache(maxsize=4096)
def _at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange coefficients at 0; neighbourhoods repeat, so they are kept."""
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
