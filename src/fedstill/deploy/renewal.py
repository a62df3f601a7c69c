"""A new certificate for a server whose old one expires, or that has moved."""

from __future__ import annotations

from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.core.files import disk_trouble, replace_whole, write_atomically
from fedstill.deploy.certificates import (
    certificate_bytes,
    check_certificate,
    checked_address,
    make_server_certificate,
    read_certificate,
)
from fedstill.deploy.create import AUTHORITY, DEFAULT_DAYS, SERVER, SERVER_FILE, as_yaml, private_folder
from fedstill.deploy.deployment_folder import ServerFile, read_facts
from fedstill.deploy.keys import read_tls_key, tls_key_bytes
from fedstill.deploy.private_files import content


def renew_certificate(path: Path, address: str | None = None, days: int = DEFAULT_DAYS) -> None:
    """A certificate and key for the server, signed by the authority that every site trusts already.

    They are written to the server's folder beside the authority's, which need not be there any more.
    """
    authority, server = path / AUTHORITY, path / SERVER
    if not (authority / "ca.key").exists():
        raise InputError(f"{path} holds no {AUTHORITY}/ca.key: name the folder in which the authority's key is kept")
    facts = read_facts(authority / SERVER_FILE, ServerFile)
    called = checked_address(address or facts.address)
    signer, known = read_tls_key(authority / "ca.key"), read_certificate(authority / "ca.crt")
    key, certificate = make_server_certificate(signer, known, called, days)
    told = as_yaml(facts.model_copy(update={"address": called}).model_dump())
    try:
        if not server.exists():
            private_folder(server)
        replace_whole(server / "server.key", tls_key_bytes(key), private=True)
    except OSError as error:
        raise disk_trouble(server, error) from error
    write_atomically(server / "server.crt", certificate_bytes(certificate))
    write_atomically(server / "ca.crt", content(authority / "ca.crt"))
    for folder in (authority, server):
        write_atomically(folder / SERVER_FILE, told)
    check_certificate(server / "ca.crt", server / "server.crt", called)
