"""The server's own log: what it sent and received, line by line as the sites have it, and what it refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedstill.core.errors import RunError
from fedstill.deploy.deployment_folder import make_deployment, open_server, open_site
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.key_rotation import begin_rotation, pending_key, take_into_use
from fedstill.deploy.server_endpoint import ServerEndpoint
from fedstill.deploy.server_log import ServerLog
from fedstill.deploy.site_connection import SiteConnection, SiteConnectionError
from fedstill.deploy.site_keys import SiteKeys, revoke

from .odd_site import OddSite


def test_both_logs_have_the_same_messages(stage: Any) -> None:
    made = stage(1)
    with OddSite(made, 0):
        made.serve(rounds=1, model="mlp")
    server = [line.facts for line in read_log(made.folder / "server")]
    site = [line.facts for line in read_log(made.folder / "site-0")]
    site = [line for line in site if line["what"] == "sent" and "round" in line]
    by_digest = {one["sha256"]: one for one in server if one["what"] == "received"}
    assert len(site) == 2
    for line in site:
        assert by_digest[line["sha256"]]["bytes"] == line["bytes"]
        for name in ("run", "round", "exchange"):
            assert by_digest[line["sha256"]][name] == line[name]
    asked = [(one["round"], one["exchange"], one["to"]) for one in server if one["what"] == "sent" and "round" in one]
    assert asked == [(1, "train", ["site 0"]), (1, "evaluate", ["site 0"])]
    kinds = [one["exchange"] for one in server if one["what"] == "sent"]
    assert kinds == ["enrol", "accept", "train", "evaluate", "finish"]
    assert len([one for one in server if one["what"] == "received"]) == len(kinds)
    path = made.folder / "server" / "egress.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = json.dumps({**json.loads(lines[2]), "bytes": 1}).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(RunError, match="line 4 of the log"):
        read_log(made.folder / "server")


def test_refused_requests_and_changes_of_keys_are_in_the_log(tmp_path: Path) -> None:
    make_deployment(tmp_path / "d", 1)
    folder, site = open_server(tmp_path / "d"), open_site(tmp_path / "d", 0)
    keys, log = SiteKeys(folder.public_keys(), folder.registered), ServerLog(folder.path)
    shown: list[tuple[int, str]] = []
    log.on_refused = lambda site, why: shown.append((site, why))
    with ServerEndpoint("127.0.0.1", 0, keys, None, log=log) as link:
        where = f"127.0.0.1:{link.port}"
        for _ in range(9):
            assert httpx.post(f"http://{where}/v1/fleet/pull-messages", content=bytes(100)).status_code == 401
        with SiteConnection(where, site.keys(), None) as line:
            begin_rotation(site)
            new = pending_key(site)
            assert new is not None
            assert line.propose_key(0, new)
            take_into_use(site)
            line.use_key(new)
            line.receive()
            revoke(folder.registered, 0)
            with pytest.raises(SiteConnectionError):
                line.receive()
    assert set(shown) == {(0, "its key was revoked or replaced")}, "for the screen; strangers are in the log alone"
    lines = [dict(one.facts) for one in read_log(folder.path)]
    told = [(one["what"], one.get("sender"), one["sentence"], one.get("times")) for one in lines]
    assert told[:4] == [("refused", "a stranger", "it is not signed", number) for number in (1, 2, 4, 8)]
    assert told[4:7] == [
        ("event", None, "site 0 has sent its next key", None),
        ("event", None, "site 0 uses its new key: the old one is revoked", None),
        ("refused", "site 0", "its key was revoked or replaced", 1),
    ]
