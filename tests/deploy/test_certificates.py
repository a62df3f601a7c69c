"""Certificates as TLS libraries see them: real handshakes over loopback, and the sentences for those that must fail."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedstill.core.errors import InputError
from fedstill.core.files import write_private
from fedstill.deploy.certificates import (
    certificate_bytes,
    check_certificate,
    check_key,
    checked_address,
    expiry,
    make_authority,
    make_server_certificate,
    read_certificate,
)
from fedstill.deploy.keys import tls_key_bytes

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=60)


class SiteService:
    """An authority, and whatever it signs, in one folder."""

    def __init__(self, folder: Path, now: datetime | None = None) -> None:
        self.folder = folder
        folder.mkdir()
        self.key, self.certificate = make_authority("test", now)
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(certificate_bytes(self.certificate))

    def issue(self, address: str = "127.0.0.1", days: int = 30, now: datetime | None = None) -> tuple[Path, Path]:
        key, certificate = make_server_certificate(self.key, self.certificate, address, days, now)
        paths = self.folder / f"{len(list(self.folder.iterdir()))}.crt", self.folder / "server.key"
        paths[1].unlink(missing_ok=True)
        write_private(paths[1], tls_key_bytes(key))
        paths[0].write_bytes(certificate_bytes(certificate))
        return paths


@contextmanager
def serving(certificate: Path, key: Path) -> Iterator[int]:
    """A TLS server on loopback that greets every client that completes the handshake; gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            connection.settimeout(10)
            try:
                with context.wrap_socket(connection, server_side=True) as line:
                    line.sendall(b"hello")
            except OSError:  # the client hung up
                connection.close()

        server = threading.Thread(target=greet)
        server.start()
        yield listener.getsockname()[1]
        server.join(10)


def greeting(port: int, ca: Path, name: str = "127.0.0.1") -> bytes:
    """What a careful client hears: Python's defaults, with the strictest reading of the standard."""
    context = ssl.create_default_context(cafile=str(ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=name) as line,
    ):
        assert line.version() == "TLSv1.3"
        return line.recv(16)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "clinics.example.org"])
def test_a_client_that_knows_the_authority_talks_to_the_server(name: str, tmp_path: Path) -> None:
    service = SiteService(tmp_path / "a")
    with serving(*service.issue("clinics.example.org")) as port:
        assert greeting(port, service.ca, name) == b"hello"


def test_addresses_may_be_of_the_newer_kind(tmp_path: Path) -> None:
    service = SiteService(tmp_path / "a")
    certificate, key = service.issue("2001:DB8::7")
    with serving(certificate, key) as port:
        assert greeting(port, service.ca, "2001:db8::7") == b"hello"
    check_certificate(service.ca, certificate, "2001:db8:0::7")


def refused(port: int, ca: Path, name: str = "127.0.0.1") -> str:
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        greeting(port, ca, name)
    return str(caught.value)


def test_another_authority_is_refused(tmp_path: Path) -> None:
    """Two authorities of the same name: it is the signature that counts."""
    service, other = SiteService(tmp_path / "a"), SiteService(tmp_path / "b")
    certificate, key = other.issue()
    with serving(certificate, key) as port:
        assert "certificate verify failed" in refused(port, service.ca)
    with pytest.raises(InputError, match=r"signed by another authority than .*ca.crt: copy the whole folder again"):
        check_certificate(service.ca, certificate, "127.0.0.1")


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    service = SiteService(tmp_path / "a", LONG_AGO)
    certificate, key = service.issue(days=30, now=LONG_AGO)
    with serving(certificate, key) as port:
        assert "expired" in refused(port, service.ca)
    with pytest.raises(InputError, match=r"crt expired on \d+ \w+ 20\d\d: make a new one with `fedstill deploy renew`"):
        check_certificate(service.ca, certificate, "127.0.0.1")
    check_certificate(service.ca, certificate, "127.0.0.1", now=LONG_AGO)
    assert expiry(certificate) == (LONG_AGO + timedelta(days=30)).replace(microsecond=0)


def test_a_certificate_from_the_future_is_refused(tmp_path: Path) -> None:
    """A few minutes are forgiven, for clocks differ; a day is not."""
    service = SiteService(tmp_path / "a", LONG_AGO)
    near, _ = service.issue(now=NOW + timedelta(minutes=9))
    check_certificate(service.ca, near, "127.0.0.1", now=NOW)
    certificate, key = service.issue(now=datetime.now(UTC) + timedelta(days=1))
    with serving(certificate, key) as port:
        assert "not yet valid" in refused(port, service.ca)
    with pytest.raises(InputError, match=r"is valid from .* on, and here it is .*: set this machine's clock"):
        check_certificate(service.ca, certificate, "127.0.0.1")


def test_another_address_is_refused(tmp_path: Path) -> None:
    service = SiteService(tmp_path / "a")
    certificate, key = service.issue("clinics.example.org")
    with serving(certificate, key) as port:
        assert "mismatch" in refused(port, service.ca, "elsewhere.example.org")
    with pytest.raises(
        InputError, match=r"made for clinics.example.org, localhost, 127.0.0.1, not for 10.0.0.9: .*--ad"
    ):
        check_certificate(service.ca, certificate, "10.0.0.9")
    check_certificate(service.ca, certificate, "Clinics.example.org")


def test_an_expired_authority_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    """It counts for 3,650 days: made 3,640 days ago it has ten left, and so has what it signs."""
    service = SiteService(tmp_path / "a", NOW - timedelta(days=3640))
    certificate, _ = service.issue(days=30)
    assert expiry(certificate) == expiry(service.ca) == (NOW + timedelta(days=10)).replace(microsecond=0)
    later = NOW + timedelta(days=11)
    with pytest.raises(InputError, match=r"the authority's certificate .* expired on .*: make a new deployment"):
        check_certificate(service.ca, certificate, "127.0.0.1", now=later)
    with pytest.raises(InputError, match=r"the authority expired on .* and signs nothing any more"):
        service.issue(now=later)


def test_a_key_that_belongs_to_another_certificate(tmp_path: Path) -> None:
    service = SiteService(tmp_path / "a")
    old, _ = service.issue()
    new, key = service.issue()
    check_key(new, key)
    with pytest.raises(InputError, match=r"server.key is not the key of .*: copy both again"):
        check_key(old, key)


def test_what_the_certificates_say(tmp_path: Path) -> None:
    """The extensions that strict verifiers ask for, read by name and not by how they were written."""
    service = SiteService(tmp_path / "a")
    server = read_certificate(service.issue()[0])

    def of(certificate: x509.Certificate, kind: Any) -> Any:
        return certificate.extensions.get_extension_for_class(kind).value

    assert of(service.certificate, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    assert of(service.certificate, x509.KeyUsage).key_cert_sign
    assert not of(server, x509.BasicConstraints).ca
    assert not of(server, x509.KeyUsage).key_cert_sign
    assert of(server, x509.KeyUsage).digital_signature
    assert [usage.dotted_string for usage in of(server, x509.ExtendedKeyUsage)] == ["1.3.6.1.5.5.7.3.1"]  # server
    identifier = of(service.certificate, x509.SubjectKeyIdentifier).digest
    assert of(server, x509.AuthorityKeyIdentifier).key_identifier == identifier
    assert of(server, x509.SubjectKeyIdentifier).digest != identifier


def test_flowers_transport_takes_them(tmp_path: Path) -> None:
    """uvicorn serves and httpx asks, as in a SuperLink and a SuperNode."""
    import httpx
    import uvicorn

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})

    service, other = SiteService(tmp_path / "a"), SiteService(tmp_path / "b")
    certificate, key = service.issue()
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        lifespan="off",
        ws="none",
        log_level="critical",
        loop="asyncio",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    address = f"https://127.0.0.1:{listener.getsockname()[1]}/"
    try:
        trusting, strange = (ssl.create_default_context(cadata=one.ca.read_text()) for one in (service, other))
        assert httpx.get(address, verify=trusting, timeout=20).text == "hello"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(address, verify=strange, timeout=20)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("0.0.0.0", "sites cannot call 0.0.0.0"),
        ("::", "sites cannot call ::"),
        ("host:9092", "is no address: give the server's name or IP alone"),
        ("https://host", "is no address"),
        ("", "is no address"),
        ("1.2.3.400", "is no address"),
        ("-host", "is no address"),
        ("a..b", "is no address"),
        ("klinik-münchen.de", "is no address"),
    ],
)
def test_addresses_that_nobody_can_call(address: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        checked_address(address)


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_have_limits(days: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"1 to 3650 days, not {days}"):
        SiteService(tmp_path / "a").issue(days=days)


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    service = SiteService(tmp_path / "a")
    certificate, key = service.issue()
    with pytest.raises(InputError, match=r"gone.crt is missing"):
        check_certificate(service.ca, tmp_path / "gone.crt", "127.0.0.1")
    (tmp_path / "bad.crt").write_bytes(certificate.read_bytes()[:200])
    with pytest.raises(InputError, match=r"bad.crt is no certificate"):
        expiry(tmp_path / "bad.crt")
    with pytest.raises(InputError, match=r"server.key is no certificate"):
        expiry(key)
