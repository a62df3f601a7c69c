from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Failure
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.methods import methods
from fedstill.methods.centralised import Centralised
from fedstill.methods.fedavg import FedAvg, FedAvgSettings
from fedstill.tasks.classification import Classification

from .sites import Quadratic, Site, points


def quadratic(weights: str = "samples", start: float = 0.0, **training: object) -> FedAvg:
    usual = {"epochs": 1, "batch": 100, "rate": 0.5, "momentum": 0.0}
    return FedAvg(FedAvgSettings(weights=weights), Quadratic(start), Training(**{**usual, **training}))


A, B = points(2, 2, 2, 2, 2, 2), points(10, 10)


@pytest.mark.parametrize(("weights", "expected"), [("samples", 2.0), ("uniform", 3.0)])
def test_one_round_by_hand(weights: str, expected: float) -> None:
    """Six points at 2 and two at 10; one full-batch step of rate 1/2 from w = 0.

    Client A: w = 0 - (0 - 2) / 2 = 1; client B: w = 0 - (0 - 10) / 2 = 5.
    By samples: (6 * 1 + 2 * 5) / 8 = 2; uniform: (1 + 5) / 2 = 3.
    """
    site = Site(quadratic(weights), Quadratic(), [A, B])
    replies = [site.ask(client) for client in (0, 1)]
    assert [reply.message["model/parameters/w"].item() for reply in replies] == [1, 5]
    assert site.method.aggregate(site.server, replies, site.context(0))["model/parameters/w"].item() == expected


def test_two_rounds_of_two_epochs_by_hand() -> None:
    """Rate 1/2 halves the distance to the client's mean in every epoch; two epochs leave a quarter of it.

    Round 1 from 0: A = 2 - 2/4 = 1.5, B = 10 - 10/4 = 7.5; w = (6 * 1.5 + 2 * 7.5) / 8 = 3.
    Round 2 from 3: A = 2 + 1/4 = 2.25, B = 10 - 7/4 = 8.25; w = (13.5 + 16.5) / 8 = 3.75.
    """
    server = Site(quadratic(epochs=2), Quadratic(), [A, B], rounds=2).play()
    assert server["model/parameters/w"].item() == 3.75


def test_a_fresh_optimiser_each_round_or_moments_that_are_kept() -> None:
    """One client at 4, rate 1/2, momentum 1/2, from w = 0, one step a round.

    Step 1: v = -4, w = 2. Step 2, fresh: v = -2, w = 3. Kept: v = -2 - 2 = -4, w = 4.
    """
    for keep, expected in ((False, 3.0), (True, 4.0)):
        site = Site(quadratic(momentum=0.5, keep_optimiser=keep), Quadratic(), [points(4, 4)], rounds=2)
        assert site.play()["model/parameters/w"].item() == expected
        assert set(site.states[0]) == ({"optimiser/0/momentum"} if keep else set())


def test_the_rate_follows_the_rounds_schedule() -> None:
    """Rate 1, halved every round, one client at 8: 0 -> 8 at rate 1; with start 0 and rate 1/2 first: 0, 4, 5, 5.375.

    Rate 1/2, 1/4, 1/8 on the distances 8, 4, 3: 0 + 4 = 4, 4 + 1 = 5, 5 + 3/8 = 5.375.
    """
    method = quadratic(schedule="step", step_every=1, step_factor=0.5)
    assert Site(method, Quadratic(), [points(8, 8)], rounds=3).play()["model/parameters/w"].item() == 5.375


@pytest.mark.parametrize(("weights", "expected"), [("samples", 4.0), ("uniform", 6.0)])
def test_float_buffers_take_the_same_weights_and_counters_the_maximum(weights: str, expected: float) -> None:
    """A's buffer is 2, B's is 10: by samples (12 + 20) / 8 = 4, uniform 6. With batches of two and two epochs A sees
    6 batches and B 2, of which the maximum is kept."""
    server = Site(quadratic(weights, epochs=2, batch=2), Quadratic(), [A, B]).play()
    assert server["model/buffers/mean"].item() == expected
    assert server["model/counters/batches"].item() == 6


def test_what_a_reply_reports() -> None:
    """From w = 0 with batches of three the six points at 2 give losses 2 and (2 - 1)^2 / 2 = 0.5: mean 1.25."""
    site = Site(quadratic(batch=3), Quadratic(), [A])
    reply = site.ask(0)
    assert reply.message["steps"].item() == 2
    assert reply.message["loss/half-square"].item() == 1.25
    assert reply.work == 6 + 2 * 6
    expected = site.method.expect(site.server, site.profile(0), Message({}))
    assert {name: (tuple(t.shape), t.dtype) for name, t in reply.message.items()} == dict(expected)


def test_a_client_with_one_sample_abstains() -> None:
    lost = Site(quadratic(), Quadratic(), [points(1)]).ask(0)
    assert isinstance(lost, Failure)
    assert lost.reason == "abstained"
    assert "in one sample" in lost.detail


def test_merging_needs_only_that_replies_are_sorted() -> None:
    """Ten clients with awkward numbers: sorted by id, any order of arrival gives the same bits."""
    data = [points(*torch.rand(2 + index).tolist()) for index in range(10)]
    site = Site(quadratic(), Quadratic(), data)
    forward = [site.ask(client) for client in range(10)]
    backward = [site.ask(client) for client in reversed(range(10))]
    backward.sort(key=lambda reply: reply.profile.id)
    results = [site.method.aggregate(site.server, replies, site.context(0)) for replies in (forward, backward)]
    assert digest(results[0]) == digest(results[1])


def test_merging_leaves_the_old_server_state_alone() -> None:
    site = Site(quadratic(), Quadratic(), [A, B])
    before = digest(site.server)
    site.method.aggregate(site.server, [site.ask(0), site.ask(1)], site.context(0))
    assert digest(site.server) == before


def test_merging_keeps_what_is_not_the_model() -> None:
    site = Site(quadratic(), Quadratic(), [A])
    merged = site.method.aggregate({**site.server, "other": torch.tensor(7)}, [site.ask(0)], site.context(0))
    assert merged["other"].item() == 7
    assert "steps" not in merged


def test_requests_and_shared_models_are_the_servers() -> None:
    site = Site(quadratic(start=5), Quadratic(5), [A])
    request = site.method.request(site.server, site.profile(0), site.context(0))
    assert set(request) == {"model/parameters/w", "model/buffers/mean", "model/counters/batches"}
    assert request["model/parameters/w"].item() == 5
    assert set(site.method.models(site.server)) == {"point"}
    assert site.method.models(site.server)["point"]["parameters/w"].item() == 5


TASK = Classification(("a", "b", "c"), (1, 8, 8), ("cnn-bn",))


def pictures(count: int, seed: int) -> ArrayDataset:
    generator = torch.Generator().manual_seed(seed)
    return ArrayDataset(
        inputs=torch.randn(count, 1, 8, 8, generator=generator),
        labels=torch.randint(3, (count,), generator=generator),
    )


def trained(method: type[FedAvg], data: list[ArrayDataset], same: bool = False, **settings: object) -> Tensors:
    training = Training(**{"epochs": 1, "batch": 6, **settings})
    made = method(FedAvgSettings(), TASK, training)
    return Site(made, TASK, data, rounds=3, same_streams=same).play()


def test_one_client_is_centralised_training() -> None:
    """One client holds everything, epochs are rounds and moments are kept: the same bits, Dropout and all."""
    data = [pictures(25, 0)]
    alone = trained(FedAvg, data, keep_optimiser=True)
    assert digest(alone) == digest(trained(Centralised, data, keep_optimiser=True))
    assert digest(alone) != digest(trained(FedAvg, data, keep_optimiser=False))
    plain = trained(FedAvg, data, momentum=0, keep_optimiser=False)
    assert digest(plain) == digest(trained(Centralised, data, momentum=0, keep_optimiser=True))


@pytest.mark.parametrize("copies", [2, 5])
def test_equal_clients_are_one_client(copies: int) -> None:
    data = pictures(25, 0)
    one = trained(FedAvg, [data])
    assert digest(trained(FedAvg, [data] * copies, same=True)) == digest(one)
    assert digest(trained(FedAvg, [data] * copies)) != digest(one)


def test_a_clients_reply_does_not_depend_on_who_was_asked_before_or_on_the_global_generator() -> None:
    data = [pictures(12 + index, index) for index in range(3)]
    method = FedAvg(FedAvgSettings(), TASK, Training(epochs=2, batch=6))
    expected = [Site(method, TASK, data).ask(client).message.encode() for client in range(3)]
    site = Site(method, TASK, data)
    for client in (2, 0, 1):
        torch.manual_seed(client)
        torch.randn(3)
        assert site.ask(client).message.encode() == expected[client]


def test_a_reply_does_not_change_with_the_client_after_it() -> None:
    site = Site(quadratic(), Quadratic(), [A, B])
    first = site.ask(0)
    before = first.message.encode()
    site.ask(1)
    site.ask(0, round=1)
    assert first.message.encode() == before


def test_what_methods_are_called_and_need() -> None:
    assert {"fedavg", "centralised", "local-only"} <= set(methods.names())
    assert FedAvg.needs == {"one-architecture", "labels"}
    assert FedAvg.Options().weights == "samples"
    assert (FedAvg.pooled, Centralised.pooled) == (False, True)


@pytest.mark.parametrize("name", ["fedavg", "centralised", "local-only"])
def test_no_egress_line_admits_more_than_it_says(name: str) -> None:
    lines = methods[name].egress
    assert all(line.why and line.to == "server" for line in lines)
    assert not any(line.kind in ("labels", "inputs", "features", "logits") for line in lines)
    assert not any(line.name == "*" for line in lines)


def test_a_relative_of_fedavg_is_one_line_of_loss() -> None:
    """A pull of 3 w towards zero added to the loss: gradient (0 - 2) + 3 = 1 from w = 0, so w = -1/2."""

    class Pulled(FedAvg):
        def loss(self, client, model, request):
            return lambda output, batch, shared: {**output.terms, "pull": 3 * model.w.sum()}

    method = Pulled(FedAvgSettings(), Quadratic(), Training(epochs=1, batch=100, rate=0.5, momentum=0))
    reply = Site(method, Quadratic(), [A]).ask(0)
    assert reply.message["model/parameters/w"].item() == -0.5


def test_start_depends_on_the_seed_alone() -> None:
    one, two = (FedAvg(FedAvgSettings(), TASK, Training(rate=rate)) for rate in (0.1, 0.2))
    torch.manual_seed(5)
    first = digest(one.start(Streams(1)))
    torch.manual_seed(6)
    assert digest(two.start(Streams(1))) == first
    assert digest(one.start(Streams(2))) != first
    other = Centralised(FedAvgSettings(), TASK, Training())
    assert digest(other.start(Streams(1))) == first


def test_a_lost_reply_is_simply_not_in_the_mean() -> None:
    site = Site(quadratic(), Quadratic(), [A, B])
    reply = site.ask(1)
    lost = Failure(site.profile(0), "dropped", "its reply was lost")
    merged = site.method.aggregate(site.server, [reply], replace(site.context(0), failures=(lost,)))
    assert merged["model/parameters/w"].item() == 5
