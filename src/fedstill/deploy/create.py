"""Making a deployment's folder: all of it, or nothing.

README.md              what to do with it
authority/             ca.key, ca.crt, deployment.yaml: kept offline, needed for new certificates only
server/                ca.crt, server.crt, server.key, deployment.yaml, sites/0.pub ...: for the server's machine
site-0/ ...            ca.crt, site.key, site.pub, site.yaml, policy.yaml, and for secure aggregation secure.key and
                       peers.json (the public keys of all sites, signed by the authority): for that site alone
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml

from fedstill._version import __version__
from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder, write_private
from fedstill.core.numbers import count
from fedstill.deploy.certificates import (
    certificate_bytes,
    checked_address,
    checked_days,
    day,
    expiry,
    make_authority,
    make_server_certificate,
)
from fedstill.deploy.keys import make_key, site_key_bytes, site_public_bytes, tls_key_bytes
from fedstill.deploy.policy import EXAMPLE
from fedstill.deploy.private_files import site_name
from fedstill.deploy.secure_keys import (
    PEERS,
    SIGNING_KEY,
    make_signing_key,
    public_bytes,
    signed_peers,
    signing_key_bytes,
)
from fedstill.deploy.server_options import check_port

AUTHORITY, SERVER = "authority", "server"
SERVER_FILE, SITE_FILE, POLICY_FILE = "deployment.yaml", "site.yaml", "policy.yaml"
PAGE = "README.md"
DEFAULT_ADDRESS, DEFAULT_PORT, DEFAULT_DAYS = "127.0.0.1", 9092, 365
MOST_SITES = 1000


def make_deployment(
    path: Path, sites: int, address: str = DEFAULT_ADDRESS, port: int = DEFAULT_PORT, days: int = DEFAULT_DAYS
) -> None:
    """Write everything that a server and its sites need into a new folder."""
    address = checked_address(address)
    if not 1 <= sites <= MOST_SITES:
        raise InputError(f"a deployment has 1 to {MOST_SITES:,} sites, not {sites}")
    check_port(port)
    checked_days(days)
    path = Path(os.path.abspath(path))
    _refuse_taken(path)
    writable_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    facts = {"name": path.name, "address": address, "port": port, "sites": sites}
    try:
        private_folder(draft)
        _fill(draft, facts, days)
        os.rename(draft, path)  # an empty folder of that name gives way
    except OSError as error:
        raise InputError(f"cannot make {path}: {error.strerror or error}; choose another folder") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _refuse_taken(path: Path) -> None:
    if any((path / folder / SERVER_FILE).exists() for folder in (AUTHORITY, SERVER)):
        raise InputError(f"{path} holds a deployment already, whose keys may be in use: name another folder")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: name a folder to be made")
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path} is not empty: name a new folder")
    if path.exists() and path.samefile(Path.cwd()):
        raise InputError("you are in this folder: name one to be made in it, as in `fedstill deploy init clinics`")


def _fill(draft: Path, facts: Mapping[str, Any], days: int) -> None:
    now = datetime.now(UTC)
    signer, authority = make_authority(str(facts["name"]), now)
    key, certificate = make_server_certificate(signer, authority, str(facts["address"]), days, now)
    known = certificate_bytes(authority)

    service = private_folder(draft / AUTHORITY)
    write_private(service / "ca.key", tls_key_bytes(signer))
    _write(service, {"ca.crt": known, SERVER_FILE: as_yaml(facts)})

    server = private_folder(draft / SERVER)
    write_private(server / "server.key", tls_key_bytes(key))
    _write(server, {"ca.crt": known, "server.crt": certificate_bytes(certificate), SERVER_FILE: as_yaml(facts)})
    registered = private_folder(server / "sites")

    signing = {site: make_signing_key() for site in range(int(facts["sites"]))}
    peers = signed_peers(signer, str(facts["name"]), {site: public_bytes(key) for site, key in signing.items()})
    for site in range(int(facts["sites"])):
        pair = make_key()
        public = site_public_bytes(pair.public_key(), site_name(site))
        own = private_folder(draft / site_name(site))
        write_private(own / "site.key", site_key_bytes(pair))
        write_private(own / SIGNING_KEY, signing_key_bytes(signing[site]))
        told = as_yaml({"name": facts["name"], "site": site, **facts})
        _write(own, {"ca.crt": known, PEERS: peers, "site.pub": public, SITE_FILE: told, POLICY_FILE: EXAMPLE.encode()})
        _write(registered, {f"{site}.pub": public})
    _write(draft, {PAGE: _page(facts, now, expiry(server / "server.crt"), expiry(server / "ca.crt"))})


def _page(facts: Mapping[str, Any], now: datetime, expires: datetime, authority_expires: datetime) -> bytes:
    sites = int(facts["sites"])
    first, last = site_name(0), site_name(sites - 1)
    return (
        Template(files("fedstill.deploy").joinpath("page.md").read_text(encoding="utf-8"))
        .substitute(
            facts,
            version=__version__,
            made=day(now),
            count=count(sites, "site"),
            folders=f"`{first}/`" if sites == 1 else f"`{first}/` … `{last}/`",
            last=sites - 1,
            expiry=day(expires),
            authority_expiry=day(authority_expires),
        )
        .encode()
    )


def private_folder(path: Path) -> Path:
    """A new folder that only its owner can read."""
    path.mkdir()
    path.chmod(0o700)
    return path


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, data in contents.items():
        (folder / name).write_bytes(data)


def as_yaml(facts: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(facts), sort_keys=False, allow_unicode=True).encode()
