"""Certificates of a deployment: sites use them to authenticate the server.

An authority of the deployment's own signs them, so that sites trust this server and no other, whatever their machines
trust otherwise.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedstill.core.errors import InputError
from fedstill.deploy.keys import UNREADABLE, make_key, read_tls_key
from fedstill.deploy.private_files import content

AUTHORITY_DAYS = 3650  # longer than any certificate it signs, so that a new one needs nothing new at the sites
_CLOCKS_DIFFER = timedelta(minutes=10)  # a certificate made now is valid on a machine whose clock is a little slow
_ALWAYS = ("localhost", "127.0.0.1")  # to try everything on one machine
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)


def checked_address(address: str) -> str:
    """An address that sites can call: a name or an IP, without a port.

    >>> checked_address("Server.example.org"), checked_address("2001:DB8::1")
    ('server.example.org', '2001:db8::1')
    """
    try:
        number = ip_address(address)
    except ValueError:
        name = address.removesuffix(".").lower()
        labels = name.split(".")
        if len(name) <= 253 and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit():
            return name
        raise InputError(
            f"{address!r} is no address: give the server's name or IP alone, without port or slashes"
        ) from None
    if number.is_unspecified:
        raise InputError(f"sites cannot call {address}: give the name or IP by which they reach the server")
    return str(number)


def make_authority(name: str, now: datetime | None = None) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    """The authority's key and its self-signed certificate."""
    moment = now or datetime.now(UTC)
    key = make_key()
    subject = _called(f"Fedstill authority of {name}")
    certificate = (
        _builder(subject, subject, key.public_key(), key.public_key())
        .not_valid_before(moment - _CLOCKS_DIFFER)
        .not_valid_after(moment + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return key, certificate


def make_server_certificate(
    authority_key: EllipticCurvePrivateKey,
    authority: x509.Certificate,
    address: str,
    days: int,
    now: datetime | None = None,
) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    """A key for the server and a certificate for the address at which sites reach it."""
    moment = now or datetime.now(UTC)
    if moment >= authority.not_valid_after_utc:
        raise InputError(
            f"the authority expired on {day(authority.not_valid_after_utc)} and signs nothing any more:"
            " make a new deployment with `fedstill deploy init` and hand its folders out"
        )
    key = make_key()
    names = dict.fromkeys((checked_address(address), *_ALWAYS))
    certificate = (
        _builder(_called("Fedstill server"), authority.subject, key.public_key(), authority_key.public_key())
        .not_valid_before(moment - _CLOCKS_DIFFER)
        .not_valid_after(min(moment + timedelta(days=checked_days(days)), authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    return key, certificate


def checked_days(days: int) -> int:
    if not 1 <= days <= AUTHORITY_DAYS:
        raise InputError(f"certificates are made for 1 to {AUTHORITY_DAYS} days, not {days}")
    return days


def certificate_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(content(path))
    except UNREADABLE:
        raise InputError(f"{path} is no certificate: copy it again from where it was made") from None


def expiry(path: Path) -> datetime:
    """The time until which a certificate is valid."""
    return read_certificate(path).not_valid_after_utc


def check_certificate(ca: Path, certificate: Path, address: str, now: datetime | None = None) -> None:
    """Refuse a certificate that every site would refuse, with a remedy."""
    authority, made = read_certificate(ca), read_certificate(certificate)
    try:
        made.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature):
        raise InputError(
            f"{certificate} was signed by another authority than {ca}:"
            " copy the whole folder again, so that both come from the same deployment"
        ) from None
    moment = now or datetime.now(UTC)
    for path, one in ((ca, authority), (certificate, made)):
        if moment < one.not_valid_before_utc:
            raise InputError(
                f"{path} is valid from {day(one.not_valid_before_utc)} on, and here it is {day(moment)}:"
                " set this machine's clock"
            )
    if moment > authority.not_valid_after_utc:
        raise InputError(
            f"the authority's certificate {ca} expired on {day(authority.not_valid_after_utc)}:"
            " make a new deployment with `fedstill deploy init` and hand its folders out"
        )
    if moment > made.not_valid_after_utc:
        raise InputError(
            f"{certificate} expired on {day(made.not_valid_after_utc)}: make a new one with `fedstill deploy renew`,"
            " where the authority's key is kept, and copy the server's folder again"
        )
    names = _names(made)
    if checked_address(address) not in names:
        raise InputError(
            f"{certificate} is made for {', '.join(names)}, not for {address}: make a new one with"
            f" `fedstill deploy renew DIR --address {address}` and copy the server's folder again"
        )


def check_key(certificate: Path, key: Path) -> None:
    """Refuse a key that is not the certificate's, as after copying one of the two only."""
    if read_tls_key(key).public_key() != read_certificate(certificate).public_key():
        raise InputError(f"{key} is not the key of {certificate}: copy both again, from the same folder")


def day(moment: datetime) -> str:
    """A date for people.

    >>> day(datetime(2026, 3, 1, 12, 30, tzinfo=UTC))
    '1 March 2026'
    """
    return f"{moment.day} {moment:%B %Y}"


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, signer: EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """What both kinds of certificate have; strict verifiers ask for the two key identifiers."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # 64 is all that the standard gives


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> list[str]:
    """Every address a certificate is made for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
