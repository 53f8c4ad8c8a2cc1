"""The cryptography of the secure sum: agreement, key derivation, sealed shares, mask streams.

Everything comes from the package `cryptography`. Each derived key names its purpose and the
exact protocol transcript, so that no key or mask means anything in another round.
"""

from __future__ import annotations

import hashlib
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
