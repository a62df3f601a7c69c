"""Secure aggregation over TLS on loopback: the bits of the simulation, faults at every step, and what leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedstill.core.protocols import Failure
from fedstill.engines import InProcess
from fedstill.engines.flower.grid_engine import Flower
from fedstill.methods.secure.membership import NOTE
from fedstill.methods.secure.summed_exchange import SUM
from fedstill.runtime.run import execute

from .test_deployment import compared

SECURE: dict[str, Any] = {"method": "fedavg", "secure": True, "model": "mlp", "rounds": 2}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "egress.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("sites", [3, 5])
def test_sites_give_the_bits_of_the_simulation_and_the_server_sees_masks(
    stage: Any, monkeypatch: pytest.MonkeyPatch, sites: int
) -> None:
    received: list[torch.Tensor] = []
    plain = Flower.dispatch

    def watched(self: Flower, exchange: Any, jobs: Any, context: Any) -> Iterator[Any]:
        for outcome in plain(self, exchange, jobs, context):
            if not isinstance(outcome, Failure) and exchange.name == "train":
                received.append(outcome.message[SUM])
            yield outcome

    monkeypatch.setattr(Flower, "dispatch", watched)
    made = stage(sites)
    for site in range(sites):
        made.start_site(site, "--once")
    deployed = made.serve(**SECURE)
    monkeypatch.undo()
    assert compared(deployed) == compared(made.alone(**SECURE))
    fixed = made.alone(**{**SECURE, "secure": "fixed-point"})
    assert compared(deployed)["models"] == compared(fixed)["models"]
    assert len(received) == 2 * sites
    for masked in received:
        assert chisquare(np.bincount(masked.numpy().view(np.uint8), minlength=256)).pvalue > 1e-5
    for site in range(sites):
        made.company.wait(f"site-{site}")
        lines = [one for one in lines_of(made.folder / f"site-{site}") if one["what"] == "sent"]
        trained = [tensor for one in lines if one.get("exchange") == "train" for tensor in one["tensors"]]
        assert [(one["name"], one.get("masked", False)) for one in trained] == [(NOTE, False), (SUM, True)] * 2
        scored = [tensor for one in lines if one.get("exchange") == "evaluate" for tensor in one["tensors"]]
        assert all(one.get("masked") or one["name"] == NOTE for one in scored)
        assert scored
        assert not any((made.folder / f"site-{site}" / "secrets").iterdir())  # deleted when the run has ended


class Losing(InProcess):
    """In this process, with one client that is gone from a step on."""

    def __init__(self, client: int, step: str) -> None:
        self.client, self.step, self.gone = client, step, False

    def dispatch(self, exchange: Any, jobs: Iterable[Any], context: Any) -> Generator[Any]:
        self.gone = self.gone or exchange.name == self.step
        for job in jobs:
            if self.gone and job[0].id == self.client:
                yield Failure(job[0], "dropped", "it is gone")
            else:
                yield from super().dispatch(exchange, [job], context)


def killing(made: Any, site: int, step: str) -> Callable[..., Iterator[Any]]:
    plain = Flower.dispatch

    def dispatch(self: Flower, exchange: Any, jobs: Any, context: Any) -> Iterator[Any]:
        if exchange.name == step and f"site-{site}" in made.company.processes:
            made.company.kill(f"site-{site}")
        yield from plain(self, exchange, jobs, context)

    return dispatch


@pytest.mark.slow
@pytest.mark.parametrize("step", ["train: shares", "train", "train: survivors", "train: unmask"])
def test_a_site_that_is_killed_is_in_the_sum_if_its_upload_was_accepted(
    stage: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made = stage(3)
    for site in range(3):
        made.start_site(site)
    monkeypatch.setattr(Flower, "dispatch", killing(made, 1, step))
    changes = {**SECURE, "rounds": 1}
    deployed = made.serve({"wait": 2.0}, **changes)
    counted = deployed.journal()[0].method_metrics["sum: clients"]
    assert counted == (2 if step in ("train: shares", "train") else 3)
    lost = Losing(1, "train" if counted == 2 else "none")  # without masks there is only one step
    alone = execute(made.plan(**{**changes, "secure": "fixed-point"}), lost, made.path / "lost")
    assert compared(deployed)["models"] == compared(alone)["models"]


@pytest.mark.slow
def test_two_of_three_that_are_killed_leave_too_few_and_the_round_is_skipped(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage(3)
    for site in range(3):
        made.start_site(site)
    monkeypatch.setattr(Flower, "dispatch", killing(made, 1, "train: unmask"))
    monkeypatch.setattr(Flower, "dispatch", killing(made, 2, "train: unmask"))
    deployed = made.serve({"wait": 2.0}, **{**SECURE, "method": "scaffold", "rounds": 1})
    record = deployed.journal()[0]
    assert record.skipped is not None
    assert "1 clients helped to take the masks off, and 2 are needed" in record.skipped
    assert not record.accepted


@pytest.mark.slow
def test_a_policy_demands_sums_over_enough_sites(stage: Any) -> None:
    made = stage(3)
    policy = made.folder / "site-1" / "policy.yaml"
    policy.write_text(policy.read_text().replace("least_sites:", "least_sites: 4"))
    for site in range(3):
        made.start_site(site)
    with pytest.raises(Exception, match="requires 4 sites in every sum, and this experiment needs 2"):
        made.serve({"wait": 1.0}, **SECURE)


class ServerKilledError(Exception):
    """Stands for a server that ends in the middle of a round."""


@pytest.mark.slow
def test_a_server_that_ends_before_unmasking_and_a_site_that_restarts_change_no_bit(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered is repeated byte for byte, and a site has the same secrets after its restart."""
    made = stage(3)
    for site in range(3):
        made.start_site(site)
    plain = Flower.dispatch

    def ending(self: Flower, exchange: Any, jobs: Any, context: Any) -> Iterator[Any]:
        if exchange.name == "train: unmask" and context.round == 1:
            raise ServerKilledError
        yield from plain(self, exchange, jobs, context)

    monkeypatch.setattr(Flower, "dispatch", ending)
    with pytest.raises(ServerKilledError):
        made.serve(**SECURE)
    monkeypatch.undo()
    made.company.kill("site-1")
    made.start_site(1)
    deployed = made.serve(**SECURE)
    assert compared(deployed) == compared(made.alone(**SECURE))
