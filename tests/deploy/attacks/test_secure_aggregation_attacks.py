"""A server that wants one site's update out of a masked sum: three sites' services, and the questions it could ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedstill.core.message import Message
from fedstill.core.protocols import Reply, RoundContext
from fedstill.core.sums import SkipRound
from fedstill.data.catalogue import load
from fedstill.deploy.answer_log import AnswerLog
from fedstill.deploy.deployment_folder import open_site
from fedstill.deploy.deployment_plan import server_plan, shared_digest
from fedstill.deploy.secure_keys import root_file
from fedstill.deploy.site_registry import SiteFacts, experiment_digest, for_sites, plugins, versions
from fedstill.deploy.site_service import SiteService
from fedstill.methods.secure.membership import SURVIVORS
from fedstill.methods.secure.summed_exchange import SUM
from fedstill.runtime.assemble import make_experiment

GIVEN = {"method": "fedavg", "model": "mlp", "rounds": 2, "training": {"epochs": 1, "batch": 64}, "secure": True}


@dataclass
class Server:
    """The server's side of a round, by hand."""

    made: Any
    services: dict[int, SiteService] = field(default_factory=dict)
    plan: Any = None

    def enrol(
        self, policy: str = "attempts: 5", others: Mapping[int, Mapping[str, Any]] | None = None
    ) -> list[Mapping[str, Any]]:
        """`others` are settings that single sites are offered in the place of everybody's, as the same run."""
        for site in range(3):
            folder = open_site(self.made.folder, site)
            (folder.path / "policy.yaml").write_text(f"allow: [parameters, statistics, metrics]\n{policy}\n")
            self.services[site] = SiteService(folder, load(f"npz:{self.made.shard(site)}"), self.made.notes)
        facts = [SiteFacts.of(service.bundle) for service in self.services.values()]
        self.plan, question = server_plan(for_sites(make_experiment(GIVEN), 3, "clinics"), facts)
        told = []
        for site, service in self.services.items():
            settings = {**self.plan.experiment.model_dump(mode="json"), **(others or {}).get(site, {})}
            experiment = make_experiment(settings)
            agreement = {"experiment": experiment.model_dump(mode="json"), "question": asdict(question)}
            offer = {
                **versions(),
                "plugins": plugins(),
                "run": self.plan.identity,
                "experiment": experiment_digest(experiment),
                "fingerprint": facts[site].fingerprint,
                "shared": shared_digest(self.plan),
                "agreement": json.dumps({**agreement, "client": site}),
            }
            told.append(service.accept(offer))
        return told

    def restart(self, site: int) -> None:
        old = self.services[site]
        self.services[site] = SiteService(old.folder, old.bundle, self.made.notes)

    def ask(
        self, site: int, exchange: str, request: Mapping[str, Any], **header: Any
    ) -> tuple[Message, dict[str, Any]]:
        place = {"run": self.plan.identity, "exchange": exchange, "round": 0, "client": site}
        message, told = self.services[site].exchange(
            Message(request), {**place, "since": -1, "kept": -1, "state": "", **header}
        )
        return message, dict(told)

    def steps(self, until: str, state: Mapping[str, Any], lost: Any = (), change: Any = None) -> Mapping[str, Any]:
        """Honest steps before the one of this name."""
        for exchange in self.plan.method.exchanges(state, 0):
            if exchange.name == until:
                break
            context = RoundContext.of(self.plan.streams, 0, 2, 3, exchange.name)
            replies = []
            for site in range(3):
                if (exchange.name, site) in lost or (SURVIVORS in state and site not in state[SURVIVORS]):
                    continue
                request = exchange.request(state, self.plan.profiles[site], context)
                if change is not None:
                    request = change(exchange.name, site, request)
                message, told = self.ask(site, exchange.name, request)
                assert told["status"] == "reply", told
                replies.append(Reply(self.plan.profiles[site], message, None))
            state = exchange.aggregate(state, replies, context)
        return state

    def request(self, name: str, state: Mapping[str, Any], site: int) -> Message:
        exchange = next(one for one in self.plan.method.exchanges(state, 0) if one.name == name)
        context = RoundContext.of(self.plan.streams, 0, 2, 3, name)
        request = exchange.request(state, self.plan.profiles[site], context)
        assert request is not None
        return Message(request)


@pytest.fixture
def server(stage: Any) -> Server:
    server = Server(stage(3))
    assert [one["status"] for one in server.enrol()] == ["ready"] * 3
    return server


def test_a_server_gets_one_kind_of_share_once_also_after_a_restart(server: Server) -> None:
    """Site 2 is named as lost to one site after the other has revealed its seed: nobody reveals its key too."""
    state = server.steps("train: unmask", server.plan.method.start(server.plan.streams))
    asked = server.request("train: unmask", state, 0)
    message, told = server.ask(0, "train: unmask", asked)
    assert told["status"] == "reply"
    both = {**asked, SURVIVORS: torch.tensor([0, 1])}
    for header in ({}, {"attempt": 1}):
        refused, told = server.ask(0, "train: unmask", both, **header)
        assert not refused
        assert told["status"] == "refused"
    assert "answers once a round" in str(told["detail"])
    server.restart(0)
    assert server.ask(0, "train: unmask", asked)[0]["secure/revealed"].equal(message["secure/revealed"])
    assert not server.ask(0, "train: unmask", both)[0]
    # Nor does a site that has revealed nothing yet: the others have signed another list.
    refused, told = server.ask(1, "train: unmask", {**server.request("train: unmask", state, 1), **_named([1, 2])})
    assert not refused
    assert "TamperedError" in str(told["detail"]) or told["status"] == "failed"


def _named(survivors: list[int]) -> dict[str, torch.Tensor]:
    return {SURVIVORS: torch.tensor(survivors)}


def test_other_attempts_at_any_step_are_refused(server: Server) -> None:
    state = server.steps("train: survivors", server.plan.method.start(server.plan.streams))
    for name in ("train: keys", "train: shares", "train", "train: survivors"):
        refused, told = server.ask(0, name, server.request(name, state, 0), attempt=1)
        assert not refused, name
        assert "answers once a round" in str(told["detail"])


def test_what_the_server_has_without_unmasking_is_uniform(server: Server) -> None:
    state = server.steps("train: survivors", server.plan.method.start(server.plan.streams))
    again = {site: server.ask(site, "train", server.request("train", state, site))[0][SUM] for site in range(3)}
    for masked in (*again.values(), again[0] + again[1], again[0] - again[1]):
        assert chisquare(np.bincount(masked.numpy().view(np.uint8), minlength=256)).pvalue > 1e-5
    roots = {root_file(one.folder.path, server.plan.identity).read_bytes() for one in server.services.values()}
    assert len(roots) == 3


def test_sites_that_are_sent_different_models_give_noise(server: Server) -> None:
    def crafted(exchange: str, site: int, request: Any) -> Any:
        if exchange != "train" or site != 1:
            return request
        return Message({name: one * 1.5 if one.is_floating_point() else one for name, one in request.items()})

    with pytest.raises(SkipRound, match="what was added up is noise"):
        server.steps("nothing", server.plan.method.start(server.plan.streams), change=crafted)


def test_a_lost_site_is_left_out_and_the_rest_add_up(server: Server) -> None:
    start = server.plan.method.start(server.plan.streams)
    state = server.steps("nothing", start, lost={("train", 2)})
    assert float(state["secure/facts/clients"]) == 2


def test_a_server_cannot_take_the_place_of_a_site(server: Server) -> None:
    """Its own keys for site 2, signed with a key that it made itself."""
    from fedstill.methods.secure.keyrings import StreamKeyring
    from fedstill.methods.secure.membership import Secrets, keys_statement, octets

    state = dict(server.steps("train: shares", server.plan.method.start(server.plan.streams)))
    forger = StreamKeyring(0, 2)
    keys = Secrets.of(forger, 0, "train").keys
    state["secure/keys"] = state["secure/keys"].clone()
    state["secure/keys"][2] = octets(keys)
    state["secure/signatures"] = state["secure/signatures"].clone()
    state["secure/signatures"][2] = octets(forger.sign(keys_statement(0, "train", 2, 2, keys)))
    refused, told = server.ask(0, "train: shares", server.request("train: shares", state, 0))
    assert not refused
    assert told["status"] == "failed"


def test_a_policy_that_demands_it_takes_no_part_without(stage: Any) -> None:
    server = Server(stage(3))
    assert [one["status"] for one in server.enrol("secure_aggregation: true\nleast_sites: 2")] == ["ready"] * 3
    server = replace(server, services={})
    assert {str(one["detail"]) for one in server.enrol("least_sites: 3")} == {
        "its policy requires 3 sites in every sum, and this experiment needs 2: set secure.least=3"
    }
    server = replace(server, services={})
    needs_all = {site: {"secure": {"name": "masked", "least": 3}} for site in range(3)}
    assert [one["status"] for one in server.enrol("least_sites: 3", needs_all)] == ["ready"] * 3


def test_sites_that_were_offered_different_experiments_in_one_run_share_nothing(stage: Any) -> None:
    """Else a server could tell the others of a low threshold, and have them unmask what a strict site sent."""
    server = Server(stage(3))
    other = {2: {"secure": {"name": "masked", "threshold": "two-thirds"}}}
    assert [one["status"] for one in server.enrol(others=other)] == ["ready"] * 3
    state = server.steps("train: shares", server.plan.method.start(server.plan.streams))
    for site in range(3):
        refused, told = server.ask(site, "train: shares", server.request("train: shares", state, site))
        assert not refused
        assert "TamperedError" in str(told["detail"])


def test_a_site_that_forgot_its_secrets_does_not_go_on(server: Server) -> None:
    """After `fedstill deploy reset`, say: a round that was begun with other keys cannot be unmasked with new ones."""
    state = server.steps("train: unmask", server.plan.method.start(server.plan.streams))
    root_file(server.services[0].folder.path, server.plan.identity).unlink()
    AnswerLog(server.services[0].folder.path / "answers").reset(server.plan.identity)
    server.restart(0)
    refused, told = server.ask(0, "train: unmask", server.request("train: unmask", state, 0))
    assert not refused
    assert told["status"] == "failed"
