"""A site's secrets, and its peers' keys as the authority has signed them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedstill.core.errors import InputError, RunError
from fedstill.deploy.deployment_folder import make_deployment
from fedstill.deploy.secure_keys import SiteKeyring, forget_secrets, read_peers, root_file

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secure") / "clinics"
    make_deployment(path, 3)
    return path


@pytest.fixture
def sites(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "clinics")
    return tmp_path / "clinics"


def test_sites_verify_each_other_in_one_run_only(sites: Path) -> None:
    one, two, later = (SiteKeyring(sites / f"site-{site}", site, run) for site, run in ((0, RUN), (1, RUN), (1, OTHER)))
    signature = one.sign(b"keys")
    assert two.verify(0, b"keys", signature)
    assert not two.verify(0, b"other keys", signature)
    assert not two.verify(2, b"keys", signature)
    assert not two.verify(7, b"keys", signature)  # nobody has that number
    assert not later.verify(0, b"keys", signature)
    assert not two.verify(0, b"keys", b"")


def test_secrets_last_over_a_restart_and_are_gone_with_the_run(sites: Path) -> None:
    folder = sites / "site-0"
    first = SiteKeyring(folder, 0, RUN).secret(1, "train", "seed")
    assert SiteKeyring(folder, 0, RUN).secret(1, "train", "seed") == first
    others = [SiteKeyring(folder, 0, run).secret(round, "train", "seed") for run, round in ((RUN, 2), (OTHER, 1))]
    assert first not in others
    assert root_file(folder, RUN).stat().st_mode & 0o077 == 0
    forget_secrets(folder, RUN)
    forget_secrets(folder, RUN)
    assert SiteKeyring(folder, 0, RUN).secret(1, "train", "seed") != first
    root_file(folder, RUN).write_bytes(b"short")
    with pytest.raises(RunError, match="is damaged"):
        SiteKeyring(folder, 0, RUN).secret(1, "train", "seed")


def test_a_list_that_the_authority_did_not_sign_is_refused(sites: Path) -> None:
    folder, other = sites / "site-0", sites / "site-1"
    path = folder / "peers.json"
    told = json.loads(path.read_text())
    for changed in (
        {**told, "statement": told["statement"].replace('"2"', '"3"')},
        {**told, "signature": ""},
        {"statement": told["statement"]},
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(InputError, match="is not what this deployment's authority signed"):
            read_peers(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"has no peers.json: make a new deployment"):
        SiteKeyring(folder, 0, RUN).check()
    shutil.copy(folder / "secure.key", other / "secure.key")
    with pytest.raises(InputError, match=r"is not the key of this site in peers\.json"):
        SiteKeyring(other, 1, RUN).check()
    (other / "secure.key").unlink()
    with pytest.raises(InputError, match=r"has no secure\.key"):
        SiteKeyring(other, 1, RUN).check()
    (sites / "site-2" / "secure.key").write_text("nothing")
    with pytest.raises(InputError, match="no signing key"):
        SiteKeyring(sites / "site-2", 2, RUN).check()


def test_a_list_of_another_deployment_is_refused(sites: Path, tmp_path: Path) -> None:
    make_deployment(tmp_path / "elsewhere", 3)
    shutil.copy(tmp_path / "elsewhere" / "site-0" / "peers.json", sites / "site-0" / "peers.json")
    with pytest.raises(InputError, match="is not what this deployment's authority signed"):
        read_peers(sites / "site-0")
