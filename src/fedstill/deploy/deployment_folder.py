"""The folder of a deployment, as the server's machine and the sites read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from pydantic import Field

from fedstill.core.errors import InputError
from fedstill.core.settings import Settings
from fedstill.deploy.certificates import check_certificate, check_key
from fedstill.deploy.create import POLICY_FILE, SERVER, SERVER_FILE, SITE_FILE, make_deployment
from fedstill.deploy.keys import read_site_key, read_site_public, registered_bytes
from fedstill.deploy.policy import SitePolicy, earlier_form, read_policy
from fedstill.deploy.private_files import content, private_content, read_settings, site_name
from fedstill.deploy.site_keys import public_key_file

__all__ = ["ServerFolder", "SiteFolder", "make_deployment", "open_server", "open_site"]


@dataclass(frozen=True)
class ServerFolder:
    """The folder on the server's machine."""

    path: Path
    name: str
    address: str
    port: int
    sites: int

    @property
    def ca(self) -> Path:
        return self.path / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.path / "server.crt"

    @property
    def key(self) -> Path:
        return self.path / "server.key"

    def public_keys(self) -> dict[int, bytes]:
        """The sites that may take part, each with its public key as Flower registers it.

        A site whose file was deleted is not included: its key was revoked.
        """
        files = {site: public_key_file(self.registered, site) for site in self.keyed_sites()}
        known = {site: registered_bytes(read_site_public(path)) for site, path in files.items()}
        if not known:
            raise InputError(f"{self.registered} holds no public key of any site: copy the server's folder again")
        return known

    def keyed_sites(self) -> list[int]:
        """The sites of which a public key is here."""
        return [site for site in range(self.sites) if public_key_file(self.registered, site).exists()]

    @property
    def registered(self) -> Path:
        """Where the sites' public keys are; they are read while the server runs."""
        return self.path / "sites"

    def check(self) -> None:
        """Refuse a certificate that no site would accept."""
        check_certificate(self.ca, self.certificate, self.address)
        check_key(self.certificate, self.key)


@dataclass(frozen=True)
class SiteFolder:
    """The folder on a site's machine."""

    path: Path
    name: str
    site: int
    sites: int
    address: str
    port: int

    @property
    def ca(self) -> Path:
        return self.path / "ca.crt"

    @property
    def key(self) -> Path:
        return self.path / "site.key"

    def keys(self) -> tuple[EllipticCurvePrivateKey, EllipticCurvePublicKey]:
        """The key pair that authenticates this site to the server."""
        key = read_site_key(self.key)
        return key, key.public_key()

    def policy(self) -> SitePolicy:
        return read_policy(self.path / POLICY_FILE)

    def earlier_policy(self) -> str | None:
        """What its operator should know of a policy file of an earlier version; None: it is of this one."""
        return earlier_form(self.path / POLICY_FILE)


class ServerFile(Settings):
    """Contents of deployment.yaml."""

    name: str = Field(min_length=1, description="of the deployment")
    address: str = Field(min_length=1, description="address at which sites reach the server")
    port: int = Field(ge=1, le=65535, description="on which it listens")
    sites: int = Field(ge=1, description="how many there are")


class SiteFile(ServerFile):
    """Contents of site.yaml."""

    site: int = Field(ge=0, description="number of the site, from 0")


def open_server(path: Path) -> ServerFolder:
    """The server's folder, or that of the whole deployment with the server's in it."""
    place = path / SERVER if (path / SERVER / SERVER_FILE).exists() else path
    if not (place / SERVER_FILE).exists():
        raise InputError(
            f"{path} holds no {SERVER_FILE}: name a server's folder, or make a deployment with `fedstill deploy init`"
        )
    facts = read_facts(place / SERVER_FILE, ServerFile)
    folder = ServerFolder(place, facts.name, facts.address, facts.port, facts.sites)
    for file in (folder.ca, folder.certificate):
        content(file)
    private_content(folder.key)
    return folder


def open_site(path: Path, site: int | None = None) -> SiteFolder:
    """One site's folder, or that of the whole deployment and the site's number."""
    place = path
    if not (path / SITE_FILE).exists():
        place = _site_within(path, site)
    facts = read_facts(place / SITE_FILE, SiteFile)
    if not facts.site < facts.sites:
        raise InputError(f"{place / SITE_FILE}: site is {facts.site}, but {_numbers(facts.sites)}")
    if site is not None and site != facts.site:
        raise InputError(f"{place} is the folder of site {facts.site}, not of site {site}")
    folder = SiteFolder(place, facts.name, facts.site, facts.sites, facts.address, facts.port)
    content(folder.ca)
    private_content(folder.key)
    return folder


def _site_within(path: Path, site: int | None) -> Path:
    """A site's folder in that of the whole deployment."""
    held = len(list(path.glob(f"{site_name('*')}/{SITE_FILE}"))) if path.is_dir() else 0
    if not held:
        raise InputError(
            f"{path} holds no {SITE_FILE}: name a site's folder, or make a deployment with `fedstill deploy init`"
        )
    if site is None:
        raise InputError(f"{path} holds the folders of {held} sites: say which is meant, as in `--site 0`")
    place = path / site_name(site)
    if not (place / SITE_FILE).exists():
        facts = read_facts(next(path.glob(f"{site_name('*')}/{SITE_FILE}")), SiteFile)
        raise InputError(
            f"{path} holds no folder of site {site}"
            + (f": {_numbers(facts.sites)}" if not 0 <= site < facts.sites else ", which has been moved elsewhere")
        )
    return place


def _numbers(sites: int) -> str:
    return f"sites are 0 to {sites - 1}" if sites > 1 else "there is site 0 only"


Facts = TypeVar("Facts", bound=Settings)


def read_facts(path: Path, kind: type[Facts]) -> Facts:
    """A file of a few lines about a deployment."""
    return read_settings(path, kind, "copy it again from where it was made")
