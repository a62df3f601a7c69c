"""Malicious peers in an experiment with queries, over TLS: alone, and together with the server between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from flwr.app import Message as FlowerMessage
from torch import Tensor

from fedstill.core.message import part, under
from fedstill.deploy.rehearsal import LocalDeployment
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted
from fedstill.methods.base import MODEL
from fedstill.queries.peers import ARCHITECTURE, PEERS, PROGRAM, SAMPLES
from fedstill.runtime.result import Run

from ..odd_site import OddSite
from .test_malicious_server import Malicious, enrolled

QKT: dict[str, Any] = {"name": "qkt", "transfer_epochs": 1, "head_epochs": 1, "threshold": 0.0}
ALLOWED = "allow: {parameters: [server, peers], statistics: server, metrics: server}\n"
WEIGHT = "parameters/head.weight"
OFFERED = f"{MODEL}{WEIGHT}"
Tensors = Mapping[str, Tensor]


def with_external_data() -> Tensor:
    """Bytes that begin as a program does: what it would load does not matter, since nobody loads it."""
    return torch.frombuffer(bytearray(b"\x08\x08\x12\x07fedstill:site.key"), dtype=torch.uint8)


# What a peer offers instead of its model, and what the server says of it.
OFFERS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "weights that are not finite": (lambda reply: {**reply, OFFERED: reply[OFFERED] * float("inf")}, "finite"),
    "a program beside its weights": (lambda reply: {**reply, PROGRAM: with_external_data()}, "which nobody asked for"),
    "a program instead": (lambda reply: {PROGRAM: with_external_data()}, "lacks"),
    "another architecture": (lambda reply: {**reply, OFFERED: reply[OFFERED][:, :5].clone()}, "shape"),
    "more than a model": (
        lambda reply: {**reply, f"{MODEL}parameters/../site.key": torch.zeros(1)},
        "which nobody asked for",
    ),
}


def offering(alter: Callable[[Tensors], Tensors]) -> Callable[[FlowerMessage, FlowerMessage], FlowerMessage]:
    def altered(request: FlowerMessage, reply: FlowerMessage) -> FlowerMessage:
        tensors, header = unpacked(unsalted(reply.content))
        if header.get("status") != "reply" or OFFERED not in tensors:
            return reply
        return FlowerMessage(salted(packed(alter(tensors), header)), reply_to=request)

    return altered


def test_what_a_peer_offers_instead_of_a_model_reaches_nobody(stage: Any) -> None:
    made = stage(2 + len(OFFERS))
    with ExitStack() as sites:
        for site in range(2 + len(OFFERS)):
            (made.folder / f"site-{site}" / "policy.yaml").write_text(ALLOWED)
            change = offering(list(OFFERS.values())[site - 2][0]) if site > 1 else None
            sites.enter_context(OddSite(made, site, alter=change))
        deployed = made.serve(method=QKT, model="mlp", rounds=1)
    (record,) = deployed.journal()
    failures = {one.client: one.detail for one in record.failures}
    assert set(failures) == set(range(2, 2 + len(OFFERS)))
    for site, (name, (_, says)) in enumerate(OFFERS.items(), 2):
        assert says in failures[site], name
    for site in range(2):  # each asked the other honest one, and nobody else
        (told,) = (made.folder / f"site-{site}" / "queries").glob("*.json")
        assert [one["peer"] for one in json.loads(told.read_text())["peers"]] == [1 - site]


def test_weights_of_a_peer_that_are_huge_harm_no_model(stage: Any) -> None:
    """They are finite and fit, so that they pass: what is learned of them must stay finite."""
    made = stage(2)
    with ExitStack() as sites:
        for site in range(2):
            (made.folder / f"site-{site}" / "policy.yaml").write_text(ALLOWED)
            grow = offering(lambda reply: {**reply, OFFERED: torch.full_like(reply[OFFERED], 1e38)}) if site else None
            sites.enter_context(OddSite(made, site, alter=grow))
        deployed = made.serve(method=QKT, model="mlp", rounds=1)
    kept = Run(made.folder / "site-0" / "received" / deployed.path.name).model(client=0).state_dict()
    assert all(tensor.isfinite().all() for tensor in kept.values())


# What a server, together with a peer, passes on in place of offers, and what the site says to it.
PASSED_ON: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "a program": (lambda model: under("1/", {PROGRAM: with_external_data(), **FACTS}), "peer 1 offers a program"),
    "a program beside weights": (
        lambda model: under("1/", {**model, **FACTS, PROGRAM: with_external_data()}),
        "peer 1 offers a program",
    ),
    "no architecture": (lambda model: under("1/", {**model, SAMPLES: torch.tensor(5)}), "an architecture that is none"),
    "an architecture of another experiment": (
        lambda model: under("1/", {**model, **FACTS, ARCHITECTURE: torch.tensor(-1)}),
        "an architecture that is none of mlp",
    ),
    "another shape": (
        lambda model: under("1/", {**model, **FACTS, WEIGHT: torch.zeros(10, 3)}),
        "the model of peer 1 is no mlp: it parameters… has shape",
    ),
    "another type": (
        lambda model: under("1/", {**model, **FACTS, WEIGHT: model[WEIGHT].double()}),
        "the model of peer 1 is no mlp: it parameters… has type",
    ),
    "a model without its head": (
        lambda model: under("1/", {**{n: t for n, t in model.items() if n != WEIGHT}, **FACTS}),
        "the model of peer 1 is no mlp: it lacks parameters",
    ),
    "a path for a peer": (lambda model: under("../../site.key/", {**model, **FACTS}), "named by the number"),
}
FACTS = {ARCHITECTURE: torch.tensor(0), SAMPLES: torch.tensor(5)}


@pytest.fixture(scope="module")
def colluding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Malicious]:
    path = tmp_path_factory.mktemp("colluding")
    policy = f"{ALLOWED}rounds: 1\nattempts: {len(PASSED_ON)}\n"
    with (
        LocalDeployment(path / "logs", {"FEDSTILL_DATA": str(path / "nothing")}) as company,
        enrolled(path, company, policy, method=QKT, rounds=1) as server,
    ):
        trained = server.ask(server.weights(), exchange="train").header
        assert trained["status"] == "reply"
        server.kept = {"kept": 0, "state": str(trained["kept"])}
        yield server


@pytest.mark.parametrize("name", PASSED_ON)
def test_what_a_server_passes_on_for_a_peers_model_is_refused(colluding: Malicious, name: str) -> None:
    """One attempt for each: the site says what is wrong, learns nothing and lives."""
    craft, says = PASSED_ON[name]
    model = part(colluding.weights(), MODEL)
    attempt = list(PASSED_ON).index(name)
    answer = colluding.ask(under(PEERS, craft(model)), exchange="transfer", attempt=attempt)
    assert answer.header["status"] != "reply"
    assert says in str(answer.header["detail"])
    assert not answer.message
    assert not list((colluding.stage.folder / "site-0").glob("offers/**/*.safetensors"))
    assert says in str(colluding.log()[-1]["sentence"])
