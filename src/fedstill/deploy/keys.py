"""Key pairs: the server's own, and those that authenticate its sites."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509 import InvalidVersion

from fedstill.core.errors import InputError
from fedstill.deploy.private_files import content, private_content

# What cryptography raises for bytes that are no key or certificate, a compressed point or a strange version among them.
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, NotImplementedError, InvalidVersion)


def make_key() -> EllipticCurvePrivateKey:
    """ECDSA on P-384, as in Flower's documentation; every TLS library supports it."""
    return generate_private_key(SECP384R1())


def tls_key_bytes(key: EllipticCurvePrivateKey) -> bytes:
    """A private key as servers read it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def site_key_bytes(key: EllipticCurvePrivateKey) -> bytes:
    """A private key as Flower's nodes read it, and `ssh-keygen` writes it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def site_public_bytes(key: EllipticCurvePublicKey, comment: str) -> bytes:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {comment}\n".encode()


def registered_bytes(key: EllipticCurvePublicKey) -> bytes:
    """A site's public key as Flower's server keeps and compares it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_tls_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        return _private(load_pem_private_key(private_content(path), None))
    except UNREADABLE:
        raise _no_private_key(path) from None


def read_site_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        return _private(load_ssh_private_key(private_content(path), None))
    except UNREADABLE:
        raise _no_private_key(path) from None


def read_site_public(path: Path) -> EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(content(path))
    except UNREADABLE:
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise InputError(f"{path} is no public key of a site: copy it again from where it was made")
    return key


def _private(key: object) -> EllipticCurvePrivateKey:
    if not isinstance(key, EllipticCurvePrivateKey):
        raise TypeError("another kind of key")
    return key


def _no_private_key(path: Path) -> InputError:
    return InputError(f"{path} is no private key as `fedstill deploy init` makes them: copy it again from there")
