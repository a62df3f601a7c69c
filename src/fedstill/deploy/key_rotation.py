"""A site's new key: made at the site, sent to the server in a statement that the old key and the new one sign.

    site.key                the key in use
    site.key.next           made by `fedstill deploy rotate`; takes its place once the server has accepted it
    fingerprint.key         keeps the site's keyed digests what they were under its first key

The server accepts both keys until the new one is first used. Whenever either machine is killed in between, the site
still has a key that the server accepts, and repeats the step.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedstill.core.errors import BusyError, InputError
from fedstill.core.files import disk_trouble, write_atomically, write_private
from fedstill.deploy.deployment_folder import SiteFolder
from fedstill.deploy.flower_inner import bytes_to_public_key, sign_message, verify_signature
from fedstill.deploy.keys import (
    UNREADABLE,
    make_key,
    read_site_key,
    registered_bytes,
    site_key_bytes,
    site_public_bytes,
)
from fedstill.deploy.private_files import private_content, site_name

ROTATE = "/v1/fedstill/rotate-key"
LARGEST = 16 * 2**10  # bytes of a request for it
Keys = tuple[EllipticCurvePrivateKey, EllipticCurvePublicKey]


def next_key_file(site: SiteFolder) -> Path:
    return site.key.with_name("site.key.next")


def fingerprint_key(site: SiteFolder) -> bytes:
    """What keys this site's digests of its data and queries: the same before and after a change of its key.

    HMAC replaces a key longer than 64 bytes by its SHA-256, so that the digest of the first key serves for that key.
    """
    kept = site.path / "fingerprint.key"
    return private_content(kept) if kept.exists() else sha256(site.key.read_bytes()).digest()


def begin_rotation(site: SiteFolder) -> None:
    """Make a site's next key; a site that is running, or is started later, exchanges it for the old one."""
    try:
        write_private(next_key_file(site), site_key_bytes(make_key()))
    except FileExistsError:
        raise BusyError(
            f"{next_key_file(site)} exists: the site takes it into use when it is next connected to the server"
        ) from None
    except OSError as error:
        raise disk_trouble(site.path, error) from error


def pending_key(site: SiteFolder) -> Keys | None:
    """The key pair that is to be taken into use; None: there is none."""
    path = next_key_file(site)
    if not path.exists():
        return None
    key = read_site_key(path)
    return key, key.public_key()


def take_into_use(site: SiteFolder) -> None:
    """The next key becomes the site's key; the server has accepted it."""
    kept = site.path / "fingerprint.key"
    if not kept.exists():
        write_atomically(kept, fingerprint_key(site), private=True)
    public = site_public_bytes(read_site_key(next_key_file(site)).public_key(), site_name(site.site))
    os.replace(next_key_file(site), site.key)
    write_atomically(site.path / "site.pub", public)


def set_aside(site: SiteFolder) -> Path:
    """The server does not accept the next key: it is kept under another name, and the old one stays in use."""
    place = next_key_file(site).with_name("site.key.refused")
    os.replace(next_key_file(site), place)
    return place


def rotation_request(site: int, old: Keys, new: Keys) -> bytes:
    """The statement that a site sends, signed with both keys."""
    statement = json.dumps(
        {
            "site": site,
            "old": sha256(registered_bytes(old[1])).hexdigest(),
            "new": site_public_bytes(new[1], site_name(site)).decode(),
        }
    )
    signatures = [b64encode(sign_message(key, statement.encode())).decode() for key, _ in (old, new)]
    return json.dumps({"statement": statement, "signatures": signatures}).encode()


def read_rotation(body: bytes, site: int, signer: bytes) -> EllipticCurvePublicKey:
    """The new key in a site's statement, whose signatures are verified; anything else is an `InputError`."""
    try:
        told = json.loads(body)
        statement, signatures = str(told["statement"]), [b64decode(one, validate=True) for one in told["signatures"]]
        facts = json.loads(statement)
        key = load_ssh_public_key(str(facts["new"]).encode())
        if facts["site"] != site or facts["old"] != sha256(signer).hexdigest() or len(signatures) != 2:
            raise ValueError("it is about another key")
        if not isinstance(key, EllipticCurvePublicKey):
            raise TypeError("another kind of key")
        for own, signature in zip((bytes_to_public_key(signer), key), signatures, strict=True):
            if not verify_signature(own, statement.encode(), signature):
                raise ValueError("a signature is wrong")
    except (*UNREADABLE, KeyError, AttributeError, RecursionError):
        raise InputError("its statement about a new key is invalid") from None
    return key
