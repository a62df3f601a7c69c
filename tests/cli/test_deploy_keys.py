"""`fedstill deploy rotate` and `deploy revoke` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedstill.deploy.create import make_deployment
from fedstill.deploy.deployment_folder import open_server


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    make_deployment(tmp_path / "clinics", 2, "127.0.0.1", 9092)
    return tmp_path / "clinics"


def test_a_new_key_waits_for_the_site_and_the_old_one_stays_until_then(call: Any, clinics: Path) -> None:
    site = clinics / "site-1"
    before = (site / "site.key").read_bytes()
    code, out, _ = call("deploy", "rotate", str(clinics), "--site", "1", "--json")
    assert (code, json.loads(out)["running"]) == (0, False)
    assert (site / "site.key").read_bytes() == before
    assert (site / "site.key.next").stat().st_mode & 0o077 == 0
    code, _, err = call("deploy", "rotate", str(site))
    assert code == 2
    assert "takes it into use when it is next connected" in err


def test_the_servers_certificate_is_replaced(call: Any, clinics: Path) -> None:
    before = (clinics / "server" / "server.crt").read_bytes()
    assert call("deploy", "rotate", str(clinics), "--server", "--days", "30")[0] == 0
    assert (clinics / "server" / "server.crt").read_bytes() != before
    code, _, err = call("deploy", "rotate", str(clinics), "--server", "--site", "1")
    assert (code, "either --site or --server" in err) == (2, True)


def test_a_revoked_key_is_not_registered_any_more(call: Any, clinics: Path) -> None:
    code, out, _ = call("deploy", "revoke", str(clinics), "--site", "1")
    assert (code, "the server refuses its next request" in " ".join(out.split())) == (0, True)
    assert open_server(clinics).public_keys().keys() == {0}
    nothing: dict[str, Any] = {"failures": {}, "refusals": {}, "run": None, "at": "now"}
    told = {"state": "finished", "round": 1, "rounds": 1, **nothing, "sites": {"0": True, "1": True}}
    (clinics / "server" / "status.json").write_text(json.dumps(told))
    rows = call("deploy", "status", str(clinics))[1].splitlines()
    assert [row.split()[:3] for row in rows[-2:]] == [["0", "not", "connected"], ["1", "not", "admitted"]]
    code, _, err = call("deploy", "revoke", str(clinics / "server"), "--site", "1")
    assert (code, "there is nothing to revoke" in err) == (2, True)
