"""A malicious server against a site in a process of its own, over TLS: each question is answered once, and logged.

The server speaks the protocol as ours does, and asks for what it should not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

from fedstill.core.protocols import RoundContext
from fedstill.deploy.deployment_folder import open_server
from fedstill.deploy.egress_log import read_log
from fedstill.deploy.enrolment import Enrolment
from fedstill.deploy.rehearsal import LocalDeployment
from fedstill.deploy.server_endpoint import Certificates, ServerEndpoint
from fedstill.deploy.server_options import ServerOptions
from fedstill.deploy.site_registry import for_sites
from fedstill.engines.flower.correspondence import Answer, Letter, corresponded
from fedstill.engines.flower.grid_engine import EXCHANGE
from fedstill.runtime.assemble import make_experiment

from ..conftest import TINY, Notes, Stage, make_stage

POLICY = """\
allow: {parameters: server, statistics: server, metrics: server}
rounds: 3
attempts: 1
largest_request: 2
"""


@dataclass
class Malicious:
    """A server that the site has enrolled with, and that sends whatever it likes."""

    stage: Stage
    link: ServerEndpoint
    plan: Any
    terms: ServerOptions
    kept: Mapping[str, Any] = field(default_factory=lambda: {"kept": -1, "state": ""})  # the site's state

    def ask(self, message: Mapping[str, Any], **header: Any) -> Answer:
        told = {"run": self.plan.identity, "round": 0, "client": 0, "since": -1, **self.kept, **header}
        letter = Letter(0, self.link.nodes[0], EXCHANGE, message, told)
        (answer,) = corresponded(self.link, [letter], 60.0, self.terms.limit)
        assert not answer.trouble, answer.trouble
        return answer

    def weights(self, exchange: str = "train", scale: float = 1.0) -> dict[str, torch.Tensor]:
        """The request that an honest server would send, with its weights crafted."""
        server = self.plan.method.start(self.plan.streams)
        known = [*self.plan.method.every_exchange(), *self.plan.evaluator.exchanges(self.plan.method)]
        one = next(one for one in known if one.name == exchange)
        context = RoundContext.of(self.plan.streams, 0, self.plan.rounds, 1, exchange)
        request = one.request(server, self.plan.profiles[0], context)
        return {name: scale * tensor if tensor.is_floating_point() else tensor for name, tensor in request.items()}

    def log(self) -> list[Mapping[str, Any]]:
        return [line.facts for line in read_log(self.stage.folder / "site-0")]


@contextmanager
def enrolled(path: Path, company: LocalDeployment, policy: str, **changes: Any) -> Iterator[Malicious]:
    """A site in a process of its own, and the malicious server that it has agreed with."""
    stage = make_stage(path, 1, company)
    (stage.folder / "site-0" / "policy.yaml").write_text(policy)
    stage.start_site(0)
    folder = open_server(stage.folder)
    terms = ServerOptions(host="127.0.0.1", port=stage.port)
    chosen = make_experiment({**TINY, "method": "fedavg", "model": "mlp", "rounds": 2, "data": "not-here", **changes})
    certificates = Certificates(folder.certificate, folder.key)
    with ServerEndpoint("127.0.0.1", stage.port, folder.public_keys(), certificates, terms.limit) as link:
        wanted = for_sites(chosen, 1, folder.name)
        plan = Enrolment(link, wanted, (0,), Notes(), terms, path / "rosters").gather()
        yield Malicious(stage, link, plan, terms)


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Malicious]:
    path = tmp_path_factory.mktemp("evil")
    with (
        LocalDeployment(path / "logs", {"FEDSTILL_DATA": str(path / "nothing")}) as company,
        enrolled(path, company, POLICY) as server,
    ):
        yield server


def test_weights_crafted_to_read_out_test_data_are_evaluated_once(evil: Malicious) -> None:
    """577 evaluations reconstructed a private test image; there is one for each agreed round."""
    first = evil.ask(evil.weights("evaluate"), exchange="evaluate")
    assert first.header["status"] == "reply"
    for scale in (1 + 1e-6, 0.5, -1.0, 2.0):
        other = evil.ask(evil.weights("evaluate", scale), exchange="evaluate")
        assert other.header["status"] == "refused"
        assert "answered another request for round 1, evaluate" in str(other.header["detail"])
        assert not other.message
    refused = [line for line in evil.log() if line["what"] == "refused" and line["exchange"] == "evaluate"]
    assert refused[0]["round"] == 1


def test_a_request_over_the_limit_is_refused_with_a_sentence_and_breaks_no_connection(evil: Malicious) -> None:
    """It was fetched again and again, and neither end had a line about it."""
    connected = evil.link.since(evil.link.nodes[0])
    answer = evil.ask({"model/parameters/x": torch.zeros(2**20)}, exchange="train")
    assert "it has over 2 megabytes, the most that this site receives" in str(answer.header["detail"])
    assert evil.link.since(evil.link.nodes[0]) == connected
    last = evil.log()[-1]
    assert (last["what"], last["exchange"]) == ("refused", "train.exchange")
    assert str(answer.header["detail"]) == last["sentence"]


def test_weights_crafted_to_imprint_training_data_are_trained_once_and_repeats_get_the_same_bytes(
    evil: Malicious,
) -> None:
    first = evil.ask(evil.weights(scale=3.0), exchange="train")
    again = evil.ask(evil.weights(scale=3.0), exchange="train")
    assert first.header["status"] == "reply"
    assert again.message.encode() == first.message.encode()
    assert again.header == first.header
    assert evil.ask(evil.weights(scale=4.0), exchange="train").header["status"] == "refused"
    assert [line["what"] for line in evil.log() if line["exchange"] == "train"] == ["sent", "sent again", "refused"]


def test_further_attempts_are_bounded_and_counted(evil: Malicious) -> None:
    second = evil.ask(evil.weights(scale=5.0), exchange="train", attempt=1)
    assert second.header["status"] == "reply"
    third = evil.ask(evil.weights(scale=6.0), exchange="train", attempt=2)
    assert "accepts 1 further attempts" in str(third.header["detail"])
    (line,) = [line for line in evil.log() if line.get("attempt") == 2]
    assert line["what"] == "sent"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"exchange": "train", "round": 777}, "agreed to 2 rounds, and is asked for round 778"),
        ({"exchange": "train", "round": 2}, "agreed to 2 rounds, and is asked for round 3"),
        ({"exchange": "train", "round": -1}, "an invalid round"),
        ({"exchange": "train", "round": "0"}, "an invalid round"),
        ({"exchange": "train", "round": 1.5}, "an invalid round"),
        ({"exchange": "train", "attempt": -3}, "an invalid attempt"),
        ({"exchange": "dump"}, "no exchange of that name"),
        ({"exchange": "train", "client": 1}, "the request is for another"),
        ({"exchange": "train", "run": "f" * 16}, "has not accepted this run"),
        ({"exchange": "train", "run": "../../etc/passwd"}, "has not accepted this run"),
    ],
)
def test_what_was_not_agreed_is_refused_and_logged(evil: Malicious, header: dict[str, Any], says: str) -> None:
    before = len(evil.log())
    answer = evil.ask(evil.weights(), **header)
    assert answer.header["status"] == "refused"
    assert says in str(answer.header["detail"])
    assert not answer.message
    added = evil.log()[before:]
    assert [line["what"] for line in added] == ["refused"]
    assert says in added[0]["sentence"]


def test_a_site_killed_and_restarted_gives_the_same_bytes(evil: Malicious) -> None:
    first = evil.ask(evil.weights(scale=3.0), exchange="train")
    process = evil.stage.company.processes["site-0"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    evil.link.state.deactivate_node(evil.link.nodes[0])  # as its silence does after twenty seconds
    evil.stage.start_site(0)
    connected = evil.link.since(evil.link.nodes[0])
    while evil.link.nodes[0] not in evil.link.get_node_ids() or evil.link.since(evil.link.nodes[0]) == connected:
        sleep(0.05)
    again = evil.ask(evil.weights(scale=3.0), exchange="train")
    assert again.message.encode() == first.message.encode()
    assert evil.ask(evil.weights(scale=3.5), exchange="train").header["status"] == "refused"


def test_rounds_before_the_last_answered_are_closed(evil: Malicious) -> None:
    """Run last: it ends the first round."""
    assert evil.ask(evil.weights(scale=3.0), exchange="train", round=1).header["status"] == "reply"
    late = evil.ask(evil.weights(scale=3.0), exchange="train", round=0)
    assert late.header["status"] == "refused"
    assert "has answered round 2 of this run, and is asked for round 1 again" in str(late.header["detail"])


def test_flooding_with_refused_requests_does_not_fill_the_log(evil: Malicious) -> None:
    before = len(evil.log())
    for _ in range(20):
        evil.ask({}, exchange="flood")
    added = evil.log()[before:]
    assert [line["times"] for line in added] == [1, 2, 4, 8, 16]


def test_everything_that_left_is_in_the_log_with_the_rule_that_allowed_it(evil: Malicious) -> None:
    assert evil.ask(evil.weights("evaluate"), exchange="evaluate", round=1).header["status"] == "reply"
    evil.ask(evil.weights(scale=3.0), exchange="train", round=1)
    lines = [line for line in evil.log() if line["what"].startswith("sent") and line.get("run")]
    assert all(len(line["sha256"]) == 64 and line["bytes"] > 0 for line in lines)
    kinds = {one["kind"] for line in lines for one in line["tensors"]}
    assert kinds == {"parameters", "statistics", "metrics"}
    assert {rule for line in lines for rule in line["rules"]} == {f"allow {kind}: server" for kind in kinds}
