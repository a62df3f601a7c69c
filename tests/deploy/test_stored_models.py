"""What a server can make a site store is bounded by the site's policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.errors import InputError
from fedstill.deploy.policy import SitePolicy
from fedstill.deploy.stored_models import check_storage


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for run, size in (("a", 2**20), ("b", 2**19)):
        place = tmp_path / "offers" / run / "peers"
        place.mkdir(parents=True)
        (place / "peer-1.safetensors").write_bytes(bytes(size))
    (tmp_path / "received" / "run").mkdir(parents=True)
    (tmp_path / "received" / "run" / "model-last.safetensors").write_bytes(bytes(2**19))
    return tmp_path


def policy(**limits: float) -> SitePolicy:
    return SitePolicy.model_validate({"allow": ["parameters"], **limits})


def test_models_are_counted_over_all_runs_but_not_twice(site: Path) -> None:
    check_storage(policy(stored_models=3), site, site / "offers" / "c", 1, 0)
    check_storage(policy(stored_models=3), site, site / "offers" / "b", 2, 0)
    with pytest.raises(InputError, match="allows 3 models of other sites to be stored, 2 are, and the server sends 2"):
        check_storage(policy(stored_models=3), site, site / "offers" / "c", 2, 0)


def test_megabytes_are_counted_with_final_models(site: Path) -> None:
    check_storage(policy(stored_megabytes=3), site, site / "offers" / "c", 1, 2**20)
    check_storage(policy(), site, site / "offers" / "c", 10**6, 10**12)
    with pytest.raises(InputError, match=r"allows 3 megabytes of models .* there would be 3\.5"):
        check_storage(policy(stored_megabytes=3), site, site / "received" / "other", 0, 3 * 2**19)
    check_storage(policy(stored_megabytes=3), site, site / "received" / "run", 0, 3 * 2**19)
