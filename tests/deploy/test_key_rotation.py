"""A site's new key: its statement is verified, and the run goes on to the same bits."""

from __future__ import annotations

import hmac
import json
import ssl
import time
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.primitives.asymmetric import sign_message

from fedstill.core.errors import BusyError, InputError
from fedstill.deploy.deployment_folder import make_deployment, open_server, open_site
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.key_rotation import (
    begin_rotation,
    fingerprint_key,
    next_key_file,
    pending_key,
    read_rotation,
    rotation_request,
    set_aside,
    take_into_use,
)
from fedstill.deploy.keys import make_key, registered_bytes
from fedstill.deploy.renewal import renew_certificate
from fedstill.deploy.server_endpoint import Certificates, ServerEndpoint
from fedstill.deploy.site_connection import SiteConnection, SiteConnectionError
from fedstill.deploy.site_keys import SiteKeys, revoke

from .odd_site import OddSite

OLD, NEW, OTHER = ((key, key.public_key()) for key in (make_key(), make_key(), make_key()))
SIGNER = registered_bytes(OLD[1])


def test_a_statement_signed_by_both_keys_is_read() -> None:
    assert read_rotation(rotation_request(2, OLD, NEW), 2, SIGNER) == NEW[1]


def statement(**changes: Any) -> bytes:
    told = json.loads(json.loads(rotation_request(2, OLD, NEW))["statement"])
    text = json.dumps({**told, **changes})
    return json.dumps(
        {
            "statement": text,
            "signatures": [b64encode(sign_message(key, text.encode())).decode() for key, _ in (OLD, NEW)],
        }
    ).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 100_000,
        b"null",
        b"{}",
        rotation_request(1, OLD, NEW),  # another site's
        rotation_request(2, OTHER, NEW),  # signed by a key that is not the site's
        statement(site=3),
        statement(old="0" * 64),
        statement(new="ssh-ed25519 AAAA"),
        statement(new=5),
        statement(new=json.loads(json.loads(rotation_request(2, OLD, OTHER))["statement"])["new"]),  # not the signer's
        rotation_request(2, OLD, NEW).replace(b"signatures", b"signature"),
    ],
)
def test_any_other_statement_is_refused(body: bytes) -> None:
    with pytest.raises(InputError, match="its statement about a new key is invalid"):
        read_rotation(body, 2, SIGNER)


def test_the_keyed_digest_stays_what_it_was(tmp_path: Path) -> None:
    make_deployment(tmp_path / "d", 1)
    site = open_site(tmp_path / "d", 0)
    first = hmac.new(site.key.read_bytes(), b"text", sha256).digest()
    for _ in range(2):
        before = site.key.read_bytes()
        begin_rotation(site)
        with pytest.raises(BusyError, match="takes it into use when it is next connected"):
            begin_rotation(site)
        take_into_use(site)
        assert site.key.read_bytes() != before
        assert hmac.new(fingerprint_key(site), b"text", sha256).digest() == first
    assert pending_key(site) is None
    for file in (site.key, site.path / "fingerprint.key"):
        assert file.stat().st_mode & 0o077 == 0
    begin_rotation(site)
    assert set_aside(site).read_bytes() != site.key.read_bytes()
    assert not next_key_file(site).exists()


class Change:
    """An observer that changes something between two rounds."""

    def start(self, experiment: Any, journal: Any) -> None: ...
    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def finish(self) -> None: ...


def test_keys_and_certificate_change_during_a_run_which_ends_with_the_same_bits(stage: Any) -> None:
    made = stage(2)
    folder, site = open_server(made.folder), open_site(made.folder, 1)
    old = site.keys()
    certificate = folder.certificate.read_bytes()

    class Rotate(Change):
        def round(self, record: Any) -> None:
            if record.round == 1:
                begin_rotation(site)
                renew_certificate(made.folder)
                until = time.monotonic() + 20
                while next_key_file(site).exists() or (folder.registered / "1.next.pub").exists():
                    assert time.monotonic() < until
                    time.sleep(0.05)

    with OddSite(made, 0), OddSite(made, 1):
        run = made.serve(model="mlp", method="scaffold", observers=[Rotate()])
    alone = made.alone(model="mlp", method="scaffold")
    assert run.result().sha256 == alone.result().sha256
    assert run.journal() == alone.journal()
    assert site.keys()[1] != old[1]
    assert folder.certificate.read_bytes() != certificate
    assert folder.public_keys()[1] == registered_bytes(site.keys()[1])
    lines = [line.facts for line in read_log(site.path)]
    assert [line["sentence"] for line in lines if line["what"] == "event"] == ["this site's key was changed"]


def test_old_and_revoked_keys_are_refused_and_a_new_certificate_is_served_at_once(tmp_path: Path) -> None:
    make_deployment(tmp_path / "d", 1)
    folder, site = open_server(tmp_path / "d"), open_site(tmp_path / "d", 0)
    certificates = Certificates(folder.certificate, folder.key)
    old, keys = site.keys(), SiteKeys(folder.public_keys(), folder.registered)
    with ServerEndpoint("127.0.0.1", 0, keys, certificates) as link:
        where = f"127.0.0.1:{link.port}"
        with SiteConnection(where, old, folder.ca) as line:
            assert not line.propose_key(0, old), "it is in use"
            begin_rotation(site)
            new = pending_key(site)
            assert new is not None
            assert line.propose_key(0, new)
            assert line.propose_key(0, new), "a lost answer: asked again"
            assert line.receive() is None, "the old key counts until the new one is used"
            take_into_use(site)
            line.use_key(new)
            assert line.receive() is None
            line.use_key(old)
            with pytest.raises(SiteConnectionError, match="does not know this connection any more"):
                line.receive()
            line.use_key(new)
            renew_certificate(tmp_path / "d")
            until = time.monotonic() + 10
            while (
                ssl.get_server_certificate(("127.0.0.1", link.port)).split() != folder.certificate.read_text().split()
            ):
                assert time.monotonic() < until
                time.sleep(0.05)
            assert line.receive() is None
            revoke(folder.registered, 0)
            with pytest.raises(SiteConnectionError, match="does not know this connection any more"):
                line.receive()
        with pytest.raises(InputError, match=r"does not know this site's key.*unless it was revoked"):
            SiteConnection(where, new, folder.ca).__enter__()


def test_a_key_that_is_revoked_during_a_run_is_refused_by_name_and_the_run_goes_on(stage: Any) -> None:
    made = stage(2)
    folder = open_server(made.folder)

    class Revoke(Change):
        def round(self, record: Any) -> None:
            if record.round == 1:
                revoke(folder.registered, 1)

    with OddSite(made, 0), OddSite(made, 1) as revoked:
        run = made.serve({"wait": 0.5}, model="mlp", rounds=2, observers=[Revoke()])
    first, second = run.journal()
    assert not first.failures
    assert [one.client for one in second.failures] == [1]
    assert isinstance(revoked.error, InputError)
    why = "its key was revoked or replaced"
    assert made.notes.notes.count(f"a request of site 1 was refused: {why}") == 1
    assert why in {line.facts.get("sentence") for line in read_log(folder.path)}
    assert "1" in json.loads((folder.path / "status.json").read_text())["failures"]
