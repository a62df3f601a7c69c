"""The cryptography of secure aggregation, in the words of the protocol; every primitive is from `cryptography`.

X25519 agrees on a secret with each peer, HKDF-SHA256 derives keys from it, ChaCha20-Poly1305 seals the shares of each
peer, ChaCha20 expands a seed into a mask, Ed25519 signs (where a client keeps its own key).
"""

from __future__ import annotations

import json
from hashlib import sha256

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedstill.methods.secure.shamir import PRIME

KEY = 32  # bytes of keys, seeds and digests
SIGNATURE = 64
SEAL = 16  # bytes that a sealed text is longer
_LABEL = "fedstill secure aggregation, version 1"
_PIECE = 2**22  # bytes of a mask that are made at a time


def labelled(*facts: object) -> bytes:
    """An unambiguous text of a purpose and its facts, for derivations and signatures."""
    return json.dumps([_LABEL, *(one.hex() if isinstance(one, bytes) else one for one in facts)]).encode()


def derived(secret: bytes, *facts: object, length: int = KEY) -> bytes:
    """A key for one purpose from a secret."""
    return bytes(HKDF(hashes.SHA256(), length, salt=None, info=labelled(*facts)).derive(secret))


def public_of(private: bytes) -> bytes:
    return bytes(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agreed(private: bytes, public: bytes) -> bytes:
    """The secret that two clients have in common; a public key that allows no secret is a `ValueError`."""
    return bytes(X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public)))


def seal(key: bytes, text: bytes, beside: bytes) -> bytes:
    """Encrypt under a key that is used once; `beside` must be the same when it is opened."""
    return bytes(ChaCha20Poly1305(key).encrypt(bytes(12), text, beside))


def unseal(key: bytes, sealed: bytes, beside: bytes) -> bytes:
    """The text; a `ValueError` if anything was changed."""
    try:
        return bytes(ChaCha20Poly1305(key).decrypt(bytes(12), sealed, beside))
    except InvalidTag:
        raise ValueError("what was sealed has been changed, or was sealed for another") from None


def mask(seed: bytes, length: int) -> np.ndarray:
    """So many numbers of 64 bits, which cannot be told from uniform ones without the seed."""
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    found, place = np.empty(8 * length, dtype=np.uint8), 0
    nothing = bytes(min(_PIECE, len(found)))
    while place < len(found):
        piece = nothing[: len(found) - place]
        found[place : place + len(piece)] = np.frombuffer(stream.update(piece), dtype=np.uint8)
        place += len(piece)
    return found.view("<u8").astype(np.uint64, copy=False)


def coefficients(seed: bytes, count: int, *facts: object) -> list[int]:
    """Uniform numbers below the prime of secret sharing."""
    numbers = [derived(seed, "coefficient", place, *facts, length=66) for place in range(count)]
    return [(int.from_bytes(one, "big") & PRIME) % PRIME for one in numbers]


def signed(private: bytes, statement: bytes) -> bytes:
    return bytes(Ed25519PrivateKey.from_private_bytes(private).sign(statement))


def signing_public(private: bytes) -> bytes:
    return bytes(Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def is_signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def digest_of(*pieces: bytes) -> bytes:
    """SHA-256 of several pieces, none of which can pass for a part of another."""
    whole = sha256()
    for piece in pieces:
        whole.update(len(piece).to_bytes(8, "big") + piece)
    return whole.digest()
