"""What goes wrong in a deployment, and that it harms nobody else: kills, garbage, strangers."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from PIL import Image

from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.deploy.certificates import (
    certificate_bytes,
    check_certificate,
    make_server_certificate,
    read_certificate,
)
from fedstill.deploy.deployment_folder import make_deployment, open_server, open_site
from fedstill.deploy.keys import read_tls_key, tls_key_bytes
from fedstill.deploy.request_guard import announced_by
from fedstill.deploy.server_endpoint import Certificates, ServerEndpoint
from fedstill.deploy.server_status import read_status
from fedstill.deploy.site_connection import SiteConnection
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted
from fedstill.engines.flower.grid_engine import EXCHANGE

from .odd_site import OddSite


def junk(kind: str) -> Any:
    def answer(message: Message) -> Message | None:
        if message.metadata.message_type != EXCHANGE:
            return None
        request, header = unpacked(unsalted(message.content))
        if header["exchange"] == "evaluate":
            return None
        good = {"status": "reply", "work": 1.0, "kept": ""}
        more = {"loss/cross-entropy": torch.tensor(1.0, dtype=torch.float64), "steps": torch.tensor(1)}
        reply = {**request, **more}

        def made(tensors: Any = reply, **changes: Any) -> Message:
            return Message(salted(packed(tensors, {**good, **changes})), reply_to=message)

        match kind:
            case "nan":
                return made({n: t * float("nan") if t.is_floating_point() else t for n, t in reply.items()})
            case "unsalted":
                return Message(packed(reply, good), reply_to=message)
            case "empty":
                return Message(RecordDict({}), reply_to=message)
            case "state":
                return made(kept="../../etc/passwd")
            case "surplus":
                return made({**reply, "more": torch.ones(3)})
        return made({**reply, "more": torch.arange(2**20)})

    return answer


JUNK = {
    "nan": "not finite",
    "empty": "lacks its tensors",
    "state": "not a digest",
    "surplus": "which nobody asked for",
    "huge": "over the limit of 1048576 bytes",
    "unsalted": "lacks its tensors",
}


def test_a_site_that_sends_garbage_is_lost_and_the_other_goes_on(stage: Any) -> None:
    """One server for every kind of garbage, each from a site of its own: what is said of a site is of its reply."""
    made = stage(1 + len(JUNK))
    with ExitStack() as sites:
        for site, kind in enumerate(("", *JUNK)):
            sites.enter_context(OddSite(made, site, junk(kind) if kind else None))
        run = made.serve(terms={"limit": 2**20}, rounds=1, model="mlp")
    (record,) = run.journal()
    assert record.accepted == (0,)
    failures = {one.client: one.detail for one in record.failures}
    assert len(failures) == len(record.failures) == len(JUNK)
    for site, (kind, sentence) in enumerate(JUNK.items(), 1):
        assert sentence in failures[site], kind
    assert record.evaluation.finite


def test_a_site_with_another_shared_image_waits_until_it_has_the_same(stage: Any) -> None:
    """One site has another file of that name: no round begins, the server says which site, and it may come again.

    A server without the file says so before any round, too.
    """
    made = stage(2)
    roots = {name: made.path / name for name in ("server", "first", "second", "empty")}
    for number, root in enumerate(roots.values()):
        root.mkdir()
        pixels = np.full((40, 40, 3), 7 if number < 2 else 8, dtype=np.uint8)
        Image.fromarray(pixels).save(root / "street.png")
    (roots["empty"] / "street.png").unlink()
    for site in range(2):
        (made.folder / f"site-{site}" / "policy.yaml").write_text("allow: [parameters, statistics, metrics, logits]\n")
    shared = "patches:image:street.png"
    method = {"name": "feddf", "proxy": shared, "samples": 10, "steps": 1}
    changes = {"method": method, "rounds": 1, "model": "mlp"}
    with ExitStack() as sites:
        for site, name in enumerate(("first", "second")):
            options = {"data_root": roots[name], "proxies": [shared]}
            odd = sites.enter_context(OddSite(made, site, options=options))
        with pytest.raises(InputError, match=r"there is no file street.png, neither here nor under the data root"):
            made.serve({"data_root": roots["empty"]}, **changes)
        thread = made.serve_in_background({"data_root": roots["server"]}, **changes)
        end = time.monotonic() + 60
        while "site 1 cannot take part" not in made.notes.text:
            assert time.monotonic() < end, made.notes.text
            time.sleep(0.05)
        assert re.search(
            r"site 1 cannot take part: patches:image:…, which it shares with the server, has the digest"
            r" [0-9a-f]{8} here and [0-9a-f]{8} at the server: give both the same",
            made.notes.text,
        )
        assert not made.notes.records
        (roots["second"] / "street.png").write_bytes((roots["server"] / "street.png").read_bytes())
        odd.__exit__()
        sites.enter_context(OddSite(made, 1, options=options))
        thread.join(timeout=60)
    assert made.error is None
    (record,) = made.done.journal()
    assert record.accepted == (0, 1)
    assert "site 0 cannot" not in made.notes.text


def test_a_site_with_an_unregistered_key_is_refused(stage: Any) -> None:
    made = stage(1)
    (made.folder / "server" / "sites" / "0.pub").write_bytes((made.folder / "site-0" / "site.pub").read_bytes())
    other = made.path / "other"
    make_deployment(other, 1, "127.0.0.1", made.port)
    ours = open_server(made.folder)
    with (
        ServerEndpoint("127.0.0.1", made.port, ours.public_keys(), Certificates(ours.certificate, ours.key)),
        pytest.raises(InputError, match="does not know this site's key"),
        SiteConnection(f"127.0.0.1:{made.port}", open_site(other, 0).keys(), ours.ca),
    ):
        pass


def test_a_server_of_another_authority_is_refused_before_anything_is_sent(stage: Any) -> None:
    made = stage(1)
    other = made.path / "other"
    make_deployment(other, 1, "127.0.0.1", made.port)
    ours, theirs = open_server(made.folder), open_server(other)
    site = open_site(made.folder, 0)
    with (
        ServerEndpoint("127.0.0.1", made.port, ours.public_keys(), Certificates(theirs.certificate, theirs.key)),
        pytest.raises(InputError, match=r"not signed by this deployment's authority .* nothing was sent"),
        SiteConnection(f"127.0.0.1:{made.port}", site.keys(), site.ca),
    ):
        pass
    with pytest.raises(InputError):
        check_certificate(ours.ca, theirs.certificate, "127.0.0.1")


def test_a_server_without_tls_is_refused_by_a_site_that_was_not_told(stage: Any) -> None:
    made = stage(1)
    ours, site = open_server(made.folder), open_site(made.folder, 0)
    with (
        ServerEndpoint("127.0.0.1", made.port, ours.public_keys(), None),
        pytest.raises(InputError, match="does not use TLS, and this site requires it"),
        SiteConnection(f"127.0.0.1:{made.port}", site.keys(), site.ca),
    ):
        pass


def test_nothing_but_the_sites_interface_can_be_reached(stage: Any) -> None:
    """Not the one that starts runs and registers keys, nor that of server programs, nor the documentation."""
    made = stage(1)
    ours = open_server(made.folder)
    with ServerEndpoint("127.0.0.1", made.port, ours.public_keys(), None) as link:
        known = {"/docs", "/openapi.json", *link.app.openapi()["paths"]}
        assert len(known) > 10
        (key,) = ours.public_keys().values()
        ask = httpx.Client(base_url=f"http://127.0.0.1:{made.port}", headers={"flwr-public-key": b64encode(key)})
        reached = {path for path in known if ask.post(path).status_code != 404}
        big = ask.post("/v1/fleet/push-object", content=bytes(30 * 2**20))
        stranger = httpx.post(f"http://127.0.0.1:{made.port}/v1/fleet/pull-messages", content=bytes(100))
    assert reached
    assert all(path.startswith("/v1/fleet/") for path in reached)
    assert not reached & {"/v1/fleet/register-node", "/v1/fleet/get-fab", "/v1/fleet/get-run"}
    assert big.status_code == 401  # nobody signed it: its size is never looked at
    assert stranger.status_code == 401


def test_a_site_whose_policy_forbids_what_is_sent_says_so_at_both_ends(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedstill")
    made = stage(1)
    policy = made.folder / "site-0" / "policy.yaml"
    policy.write_text("allow: [statistics, metrics]\n")
    with OddSite(made, 0):
        thread = made.serve_in_background(rounds=1, model="mlp")
        await_refusal(made)
        assert thread.is_alive()
        assert "this site does not take part: fedavg sends parameters" in made.notes.text
        assert "site 0 cannot take part: fedavg sends parameters" in made.notes.text
        assert "allows statistics and metrics only" in made.notes.text
        # The policy is opened, the site restarted: now it takes part.
        policy.write_text("allow: [parameters, statistics, metrics]\n")
    with OddSite(made, 0):
        thread.join(timeout=60)
    assert made.error is None
    assert made.done is not None
    assert "site 0 refused: fedavg sends parameters" in caplog.text
    assert re.search(r"site 0 joined with \d+ training samples", caplog.text)


def await_refusal(made: Any) -> None:
    until = time.monotonic() + 30
    while "cannot take part" not in made.notes.text and time.monotonic() < until:
        time.sleep(0.05)


def test_a_site_with_another_label_space_is_refused_until_it_has_the_right_data(stage: Any) -> None:
    made = stage(2)
    with OddSite(made, 0):
        with OddSite(made, 1, classes=tuple("abcdefghij")):
            thread = made.serve_in_background(rounds=1, model="mlp")
            await_refusal(made)
            assert (
                "site 1 cannot take part: its data has another label space: its classes are a, b, c, d"
                in made.notes.text
            )
        with OddSite(made, 1):
            thread.join(timeout=60)
    assert made.error is None
    assert made.done is not None
    assert made.done.journal()[0].accepted == (0, 1)


def test_a_server_whose_certificate_has_expired_is_refused_at_both_ends(stage: Any) -> None:
    made = stage(1)
    ours, site = open_server(made.folder), open_site(made.folder, 0)
    authority = read_certificate(made.folder / "authority" / "ca.crt")
    signer = read_tls_key(made.folder / "authority" / "ca.key")
    then = datetime.now(UTC) - timedelta(days=2)
    key, certificate = make_server_certificate(signer, authority, "127.0.0.1", 1, now=then)
    ours.key.write_bytes(tls_key_bytes(key))
    ours.certificate.write_bytes(certificate_bytes(certificate))
    with (
        ServerEndpoint("127.0.0.1", made.port, ours.public_keys(), Certificates(ours.certificate, ours.key)),
        pytest.raises(InputError, match="has expired: ask its operator for a new one"),
        SiteConnection(f"127.0.0.1:{made.port}", site.keys(), site.ca),
    ):
        pass
    with pytest.raises(InputError, match="expired"):
        made.serve()


def test_a_policy_that_is_tightened_while_an_experiment_runs_counts_at_once(stage: Any) -> None:
    made = stage(2)
    policy = made.folder / "site-1" / "policy.yaml"

    class Tighten:
        def start(self, experiment: Any, journal: Any) -> None: ...
        def note(self, text: str) -> None: ...
        def warn(self, text: str) -> None: ...
        def finish(self) -> None: ...
        def round(self, record: Any) -> None:
            policy.write_text("allow: [metrics]\n")

    with OddSite(made, 0), OddSite(made, 1):
        run = made.serve(rounds=2, model="mlp", observers=[Tighten()])
    first, second = run.journal()
    assert first.accepted == (0, 1)
    assert second.accepted == (0,)
    assert "allows metrics only" in second.failures[0]["detail"]


def tree(name: str, *children: ObjectTree) -> ObjectTree:
    return ObjectTree(object_id=name, children=children)


def announced(*trees: ObjectTree, messages: int = 1) -> bytes:
    return PushMessagesRequest(
        messages_list=[ProtoMessage()] * messages, message_object_trees=trees
    ).SerializeToString()


def test_only_trees_as_flowers_own_are_announced() -> None:
    leaf = tree("chunk")
    good = tree("message", tree("records", tree("arrays", tree("array", leaf), tree("other", leaf)), tree("header")))
    assert announced_by(announced(good)) is not None
    assert announced_by(announced(tree("m", good))) is None, "too deep"
    assert announced_by(announced(tree("m", tree("a", leaf), tree("a")))) is None, "two meanings of one name"
    assert announced_by(announced(tree("m", tree("a", tree("m"))))) is None, "a circle"
    assert announced_by(announced(good, good)) is None
    assert announced_by(announced(good, messages=2)) is None
    assert announced_by(b"no protobuf") is None


def test_a_graph_that_doubles_at_every_level_is_turned_away(stage: Any) -> None:
    """Sixty objects of which each names the one before it twice: a few kilobytes that would be 2^60 objects."""
    graph = tree("0")
    for level in range(1, 60):
        graph = tree(str(level), graph, tree(str(level - 1)))
    assert announced_by(announced(graph)) is None


def test_what_a_stranger_sends_in_a_sites_name_is_not_counted_as_the_sites(stage: Any) -> None:
    made = stage(1)
    ours = open_server(made.folder)
    (key,) = ours.public_keys().values()
    with ServerEndpoint("127.0.0.1", made.port, ours.public_keys(), None, limit=2**20) as link:
        link.guard.refill(key)
        ask = httpx.Client(base_url=f"http://127.0.0.1:{made.port}", headers={"flwr-public-key": b64encode(key)})
        statuses = {ask.post("/v1/fleet/push-object", content=bytes(2**19)).status_code for _ in range(5)}
        assert 200 not in statuses
        assert link.guard.left[key] == 2**20


def test_a_site_whose_data_changed_is_refused_when_the_run_goes_on(stage: Any, stop_after: Any) -> None:
    made = stage(2)
    with OddSite(made, 0), OddSite(made, 1), pytest.raises(KeyboardInterrupt):
        made.serve(method="scaffold", model="mlp", observers=[stop_after(1)])
    shuffled = load(f"npz:{made.shard(0)}")
    with OddSite(made, 0), OddSite(made, 1, train=shuffled.train):
        run = made.serve(method="scaffold", model="mlp", terms={"wait": 1})
    assert "site 1 cannot take part: its data has changed since this run started" in made.notes.text
    first, second = run.journal()
    assert (first.accepted, second.accepted) == ((0, 1), (0,))


def vanishing() -> tuple[Any, Event]:
    """An answer of a site that goes away when it is asked to train, and the event that says so."""
    stuck = Event()

    def mute(message: Message) -> None:
        if message.metadata.message_type == EXCHANGE and not stuck.is_set():
            stuck.set()
            raise RuntimeError("gone")

    return mute, stuck


@pytest.mark.parametrize("wait", [30.0, 0.0])
def test_a_round_in_which_all_sites_are_lost_waits_for_them_or_is_skipped(stage: Any, wait: float) -> None:
    made, (mute, stuck) = stage(1), vanishing()
    with OddSite(made, 0, mute):
        thread = made.serve_in_background({"wait": wait}, rounds=2, model="mlp")
        assert stuck.wait(timeout=60)
    if not wait:
        time.sleep(0.5)
    with OddSite(made, 0):
        thread.join(timeout=90)
    assert made.error is None
    assert made.done is not None
    first, second = made.done.journal()
    assert second.accepted == (0,)
    if wait:
        assert (first.accepted, first.failures) == ((0,), ())
        assert made.done.result().sha256 == made.alone(rounds=2, model="mlp").result().sha256
    else:
        assert first.skipped
        assert first.failures[0]["reason"] == "dropped"


def test_status_names_sites_and_not_clients(stage: Any) -> None:
    made = stage(3)
    with OddSite(made, 1), OddSite(made, 2, junk("nan")):
        made.serve(terms={"sites": (1, 2)}, rounds=1, model="mlp")
    known = read_status(made.folder / "server")
    assert known is not None
    assert set(known["sites"]) == {"1", "2"}
    assert set(known["failures"]) == {"2"}
    assert not known["alive"]
