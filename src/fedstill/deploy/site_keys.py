"""The sites' public keys at the server, as its files say while it runs.

    server/sites/1.pub         the key of site 1; deleting the file revokes it at the site's next request
    server/sites/1.next.pub    the key that takes its place when the site first uses it

Requests are compared with the files as they are at that moment: nobody restarts a server to revoke or replace a key.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from fedstill.core.errors import InputError
from fedstill.core.files import disk_trouble, write_atomically
from fedstill.deploy.keys import read_site_public, registered_bytes, site_public_bytes
from fedstill.deploy.private_files import site_name

_log = logging.getLogger(__name__)

_EVERY = 1.0  # seconds between looks for new keys

Stamp = tuple[tuple[int, int, int] | None, ...]


def public_key_file(folder: Path, site: int, *, next: bool = False) -> Path:
    return folder / f"{site}.next.pub" if next else folder / f"{site}.pub"


class SiteKeys:
    """Whose key is whose; safe to use from several threads."""

    def __init__(self, keys: Mapping[int, bytes], folder: Path | None = None) -> None:
        if len(set(keys.values())) < len(keys):
            raise InputError("two sites have the same public key: each needs its own file in server/sites/")
        self.sites, self.folder = tuple(keys), folder
        self._sites = {key: site for site, key in keys.items()}
        self._former: dict[bytes, int] = {}  # keys that were revoked or replaced
        self._stamps: dict[int, Stamp] = {}
        self._looked = -_EVERY
        self._lock = threading.RLock()

    def site_of(self, key: bytes) -> int | None:
        """The site that this key belongs to now."""
        with self._lock:
            if key in self._sites:
                self._look(self._sites[key])
            elif monotonic() - self._looked >= _EVERY:
                self._looked = monotonic()
                for site in self.sites:
                    self._look(site)
            return self._sites.get(key)

    def former(self, key: bytes) -> int | None:
        """The site that a key belonged to before it was revoked or replaced."""
        return self._former.get(key)

    def has_one(self, site: int) -> bool:
        """Whether a site has a key that counts."""
        with self._lock:
            return site in self._sites.values()

    def propose(self, site: int, key: EllipticCurvePublicKey) -> None:
        """Accept a further key of a site, which replaces the present one when it is first used."""
        own = registered_bytes(key)
        with self._lock:
            if self.folder is None or own == _key_in(public_key_file(self.folder, site)):
                raise InputError("this key is in use already: make another")
            if self._sites.get(own, site) != site or own in self._former:
                raise InputError("this key is, or was, used already: make another")
            write_atomically(public_key_file(self.folder, site, next=True), site_public_bytes(key, site_name(site)))
            self._look(site)

    def confirm(self, site: int, key: bytes) -> bool:
        """Note that a site used a key; True if it takes the place of an earlier one, which is revoked."""
        with self._lock:
            if self.folder is None:
                return False
            later = public_key_file(self.folder, site, next=True)
            if not later.exists() or _key_in(later) != key:
                return False
            os.replace(later, public_key_file(self.folder, site))
            self._look(site)
            return True

    def _look(self, site: int) -> None:
        """Read a site's files again if they have changed."""
        if self.folder is None:
            return
        files = [public_key_file(self.folder, site), public_key_file(self.folder, site, next=True)]
        stamp = tuple(_stamp(path) for path in files)
        if stamp == self._stamps.get(site):
            return
        self._stamps[site] = stamp
        current = {key for path in files if stamp[0] is not None and (key := _key_in(path)) is not None}
        for key in [key for key, whose in self._sites.items() if whose == site and key not in current]:
            self._former[key] = self._sites.pop(key)
        for key in current:
            if self._sites.setdefault(key, site) != site:
                _log.warning("the key of site %d is that of site %d: it is not accepted", site, self._sites[key])
            self._former.pop(key, None)


def revoke(folder: Path, site: int) -> Path:
    """Take a site's keys out of the folder of registered ones; gives the place where they are kept for the record."""
    files = [public_key_file(folder, site), public_key_file(folder, site, next=True)]
    if not any(path.exists() for path in files):
        raise InputError(f"{folder} holds no key of site {site}: there is nothing to revoke")
    place = folder.with_name("revoked")
    try:
        place.mkdir(exist_ok=True)
        for path in files:
            if path.exists():
                os.replace(path, place / f"{path.stem}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}.pub")
    except OSError as error:
        raise disk_trouble(place, error) from error
    return place


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _key_in(path: Path) -> bytes | None:
    if not path.exists():
        return None
    try:
        return registered_bytes(read_site_public(path))
    except InputError as error:
        _log.warning("%s", error)
        return None
