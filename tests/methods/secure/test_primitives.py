"""Primitives, against test vectors of their RFCs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from fedstill.methods.secure.primitives import (
    agreed,
    coefficients,
    derived,
    digest_of,
    is_signed,
    labelled,
    mask,
    public_of,
    seal,
    signed,
    signing_public,
    unseal,
)
from fedstill.methods.secure.shamir import PRIME


def test_key_agreement_is_that_of_rfc_7748() -> None:
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f92ebc099ac5a6dd8d1b2a1a06f")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert agreed(alice, public_of(bob)) == agreed(bob, public_of(alice))
    assert public_of(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"


def test_a_mask_is_the_chacha20_stream_and_uniform() -> None:
    """The first bytes under a key and nonce of zeros are 76 b8 e0 ad a0 f1 3d 90: RFC 8439, appendix A.1, vector 1."""
    numbers = mask(bytes(32), 100_000)
    assert int(numbers[0]) == int.from_bytes(bytes.fromhex("76b8e0ada0f13d90"), "little")
    assert chisquare(np.bincount(numbers.view(np.uint8), minlength=256)).pvalue > 1e-4


def test_a_mask_does_not_depend_on_the_pieces_it_is_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mask(b"k" * 32, 1000)
    monkeypatch.setattr("fedstill.methods.secure.primitives._PIECE", 24)
    assert np.array_equal(mask(b"k" * 32, 1000), whole)


def test_what_was_sealed_opens_only_unchanged_with_its_key_and_what_is_beside_it() -> None:
    sealed = seal(b"k" * 32, b"a share", b"members")
    assert unseal(b"k" * 32, sealed, b"members") == b"a share"
    for key, text, beside in (
        (b"x" * 32, sealed, b"members"),
        (b"k" * 32, sealed[:-1] + b"?", b"members"),
        (b"k" * 32, sealed, b"others"),
    ):
        with pytest.raises(ValueError, match="changed"):
            unseal(key, text, beside)


def test_signatures_and_derivations_are_for_one_purpose() -> None:
    key = b"s" * 32
    signature = signed(key, labelled("keys", 1))
    assert is_signed(signing_public(key), labelled("keys", 1), signature)
    assert not is_signed(signing_public(key), labelled("keys", 2), signature)
    assert not is_signed(b"no key", labelled("keys", 1), signature)
    assert derived(key, "mask", 1) != derived(key, "mask", 2)
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")
    numbers = coefficients(key, 3, "seed")
    assert len(set(numbers)) == 3
    assert all(0 <= number < PRIME for number in numbers)
