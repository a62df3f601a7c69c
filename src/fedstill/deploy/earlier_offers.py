"""Models that peers offered in an earlier experiment, as methods between peers leave them in a site's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from fedstill.core.errors import InputError
from fedstill.core.settings import Settings
from fedstill.deploy.private_files import read_settings


class OwnFacts(Settings):
    """Contents of own.yaml."""

    model: str = Field(min_length=1, description="architecture of this site's own model")


@dataclass(frozen=True)
class EarlierOffers:
    """The folder of one experiment's offered models."""

    path: Path
    model: str  # architecture of this site's own model

    @property
    def peers(self) -> Path:
        return self.path / "peers"

    @property
    def own(self) -> Path:
        """The model that this site had before it asked."""
        return self.path / "own.safetensors"


def latest_offers(site: Path) -> EarlierOffers:
    """Those of the latest experiment."""
    found = sorted((site / "offers").glob("*/own.yaml"), key=lambda path: (path.stat().st_mtime_ns, path))
    if not found:
        raise InputError(
            f"{site / 'offers'} holds no models of peers: take part in an experiment with queries, e.g. qkt, first"
        )
    facts = read_settings(found[-1], OwnFacts, "take part in an experiment with queries again")
    return EarlierOffers(found[-1].parent, facts.model)
