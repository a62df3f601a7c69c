"""A site's keys for secure aggregation: its own, those of its peers, and the secrets of a run.

secure.key            signs what other sites must know to come from this one; never changes
peers.json            the public keys of all sites, signed by the deployment's authority: a server cannot add one
secrets/<run>.key     made by the operating system when a run begins, deleted when it has ended; all keys and seeds of
                      the run's rounds are derived from it, so that they are the same after a restart
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import disk_trouble, write_private
from fedstill.deploy.keys import UNREADABLE
from fedstill.deploy.private_files import content, private_content
from fedstill.methods.secure.primitives import KEY, derived, is_signed, labelled

SIGNING_KEY, PEERS, SECRETS = "secure.key", "peers.json", "secrets"
_REMEDY = "make a new deployment with `fedstill deploy init`, whose folders have what secure aggregation needs"


def make_signing_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def signing_key_bytes(key: Ed25519PrivateKey) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    return bytes(key.public_key().public_bytes_raw())


def signed_peers(authority: EllipticCurvePrivateKey, deployment: str, keys: Mapping[int, bytes]) -> bytes:
    """The list of all sites' public keys, signed."""
    statement = json.dumps({"deployment": deployment, "sites": {str(site): key.hex() for site, key in keys.items()}})
    signature = authority.sign(statement.encode(), ECDSA(hashes.SHA384()))
    return json.dumps({"statement": statement, "signature": b64encode(signature).decode()}, indent=1).encode() + b"\n"


def read_peers(folder: Path) -> dict[int, bytes]:
    """The public keys in a site's folder, if its authority has signed them; otherwise an `InputError`."""
    path = folder / PEERS
    if not path.exists():
        raise InputError(f"this site's folder has no {PEERS}: {_REMEDY}")
    try:
        told = json.loads(content(path))
        statement = str(told["statement"])
        authority = x509.load_pem_x509_certificate(content(folder / "ca.crt")).public_key()
        if not isinstance(authority, EllipticCurvePublicKey):
            raise TypeError("another kind of key")
        authority.verify(b64decode(told["signature"]), statement.encode(), ECDSA(hashes.SHA384()))
        keys = {int(site): bytes.fromhex(key) for site, key in json.loads(statement)["sites"].items()}
    except (*UNREADABLE, InvalidSignature, KeyError, AttributeError, RecursionError):
        raise InputError(f"{path} is not what this deployment's authority signed: copy it again from there") from None
    if len(set(keys.values())) < len(keys):
        raise InputError(f"{path} has the same key for two sites: {_REMEDY}")
    return keys


class SiteKeyring:
    """The secrets of a site in one run."""

    def __init__(self, folder: Path, site: int, run: str, experiment: str = "") -> None:
        """`experiment` is the digest of all its settings: sites that were sent others do not verify each other."""
        self.folder, self.holder, self.run, self.experiment = folder, site, run, experiment

    @cached_property
    def peers(self) -> dict[int, bytes]:
        peers = read_peers(self.folder)
        if peers.get(self.holder) != public_bytes(self.signing):
            raise InputError(f"{self.folder / SIGNING_KEY} is not the key of this site in {PEERS}: copy both again")
        return peers

    @cached_property
    def signing(self) -> Ed25519PrivateKey:
        path = self.folder / SIGNING_KEY
        if not path.exists():
            raise InputError(f"this site's folder has no {SIGNING_KEY}: {_REMEDY}")
        try:
            key = load_pem_private_key(private_content(path), None)
        except UNREADABLE:
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{path} is no signing key: copy it again from where it was made")
        return key

    def check(self) -> None:
        """Refuse a folder without what secure aggregation needs."""
        assert self.peers

    def secret(self, *names: str | int) -> bytes:
        return derived(self._root, "of a run", self.run, *names)

    @property
    def _root(self) -> bytes:
        """Read each time: it may have been deleted since."""
        path = root_file(self.folder, self.run)
        if not path.exists():
            _make_root(path)
        root = private_content(path)
        if len(root) != KEY:
            raise RunError(f"the secret of this run in {path} is damaged: this site cannot go on in it")
        return root

    def sign(self, statement: bytes) -> bytes:
        return bytes(self.signing.sign(self._bound(statement)))

    def verify(self, holder: int, statement: bytes, signature: bytes) -> bool:
        key = self.peers.get(holder)
        return key is not None and is_signed(key, self._bound(statement), signature)

    def _bound(self, statement: bytes) -> bytes:
        return labelled("run", self.run, self.experiment, statement)


def root_file(folder: Path, run: str) -> Path:
    return folder / SECRETS / f"{run}.key"


def _make_root(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(path, bytes(X25519PrivateKey.generate().private_bytes_raw()))
    except OSError as error:
        raise disk_trouble(path.parent, error) from error


def forget_secrets(folder: Path, run: str) -> None:
    """Delete the secret of a run: the masks of its rounds can then not be removed, even with this site's disk."""
    root_file(folder, run).unlink(missing_ok=True)
