"""What a server makes a site store, within its policy: models of peers (`offers/`) and final ones (`received/`)."""

from __future__ import annotations

from pathlib import Path

from fedstill.core.errors import InputError
from fedstill.deploy.policy import SitePolicy
from fedstill.runtime.run_folder import RECEIVED

OFFERS = "offers"


def check_storage(policy: SitePolicy, site: Path, replaced: Path, models: int, size: int) -> None:
    """Refuse to store more models or bytes than the policy allows; what `replaced` holds does not count."""
    held = [path for name in (OFFERS, RECEIVED) for path in (site / name).rglob("*") if path.is_file()]
    held = [path for path in held if not path.is_relative_to(replaced)]
    offered = [path for path in held if path.parent.name == "peers" and path.suffix == ".safetensors"]
    if policy.stored_models is not None and len(offered) + models > policy.stored_models:
        raise InputError(
            f"its policy allows {policy.stored_models} models of other sites to be stored, {len(offered)} are, and the"
            f" server sends {models}"
        )
    megabytes = (sum(path.stat().st_size for path in held) + size) / 2**20
    if policy.stored_megabytes is not None and megabytes > policy.stored_megabytes:
        raise InputError(
            f"its policy allows {policy.stored_megabytes:g} megabytes of models to be stored, and with what the server"
            f" sends there would be {megabytes:.1f}"
        )
