from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedstill.core.client import answer
from fedstill.core.dataset import Subset
from fedstill.core.errors import InputError
from fedstill.core.message import Message, part
from fedstill.core.protocols import Client, ClientFactory, Failure, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods import FedAvg, methods
from fedstill.methods.wrappers.choices import privacies
from fedstill.methods.wrappers.privacy import DRAWN, NOISE, ClientLevel, Private, averages, clipped
from fedstill.runtime.plan import Plan

from ..sites import bare

UNIFORM = {"name": "fedavg", "weights": "uniform"}
AVERAGING = {"fedavg", "fedprox", "moon", "fedavgm", "fedadam", "fedyogi", "fedadagrad"}
COHORT = 4


def made(plan: Plan, cohort: int = COHORT, clients: int = 100, **settings: Any) -> Private:
    """The plan's method, made private without the accountant's library."""
    return Private(plan.method, ClientLevel(**settings), clients, cohort)


def turn_of(round: int = 0, seed: int = 3) -> RoundContext:
    return RoundContext(round, 3, 100, "train", Streams(seed).at("round", round, "train"))


def replies_of(messages: Mapping[int, Message]) -> list[Reply]:
    return [Reply(Profile(client, 10, "cnn"), message, None) for client, message in messages.items()]


def floats(state: Mapping[str, Tensor]) -> Tensor:
    """All weights and statistics of a model in one vector."""
    model = part(state, "model/")
    return torch.cat([model[name].double().flatten() for name in sorted(model) if model[name].is_floating_point()])


def unchanged(method: Private, server: Mapping[str, Tensor], clients: int = COHORT) -> list[Reply]:
    request = method.request(server, Profile(0, 10, "cnn"), turn_of())
    assert request is not None
    sent = Message({name: tensor for name, tensor in request.items() if tensor.is_floating_point()})
    return replies_of(dict.fromkeys(range(clients), sent))


def starving(plan: Plan) -> ClientFactory:
    """Clients with one sample, who cannot train."""

    def make(profile: Profile, state: Tensors, context: RoundContext) -> Client:
        return replace(plan.clients(profile, state, context), data=Subset(plan.clients.data, torch.tensor([0])))

    return make


# Clipping


def test_an_update_is_cut_over_all_its_tensors_together() -> None:
    """(3, 0, 4) has norm 5: cut to 2.5 it is half as long, and one of norm 5 that may be 6 long stays."""
    update = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)}
    half = clipped(update, 2.5)
    assert half["a"].tolist() == [1.5, 0.0]
    assert half["b"].item() == 2.0
    assert clipped(update, 6.0)["a"].tolist() == [3.0, 0.0]
    assert clipped({"a": torch.zeros(2)}, 1.0)["a"].tolist() == [0.0, 0.0]
    for wrong in (float("nan"), float("inf")):
        assert clipped({"a": torch.tensor([wrong, 1.0])}, 1.0)["a"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("where", ["server", "client"])
def test_a_reply_is_the_cut_update_and_nothing_else(tiny_plan: Any, where: str) -> None:
    """Its direction is that of FedAvg's own update; steps, losses and counters stay at home."""
    plan = tiny_plan(method=UNIFORM, model="cnn-bn")
    method, context = made(plan, clip=0.125, noise=0.0, where=where), turn_of()
    server = method.start(plan.streams)
    request = method.request(server, plan.profiles[0], context)
    assert request is not None
    plain = answer(plan.clients, plan.method, plan.profiles[0], request, {}, context)
    reply = answer(plan.clients, method, plan.profiles[0], request, {}, context)
    assert isinstance(plain, Reply)
    assert isinstance(reply, Reply)
    expected = method.expect(server, plan.profiles[0], request)
    assert set(reply.message) == set(expected)
    assert {name.split("/")[1] for name in reply.message} == {"parameters", "buffers"}
    assert {line.name for line in method.egress} == {"model/parameters/*", "model/buffers/*"}
    whole, cut = floats(plain.message) - floats(request), floats(reply.message) - floats(request)
    assert whole.norm() > 0.5
    assert cut.norm().item() == pytest.approx(0.125, rel=1e-4)
    assert torch.nn.functional.cosine_similarity(whole, cut, dim=0).item() == pytest.approx(1, abs=1e-5)


def test_a_client_that_cannot_train_sends_an_update_of_zero(tiny_plan: Any) -> None:
    """Its silence would tell that it has fewer than two samples."""
    plan = tiny_plan(method=UNIFORM)
    starved = starving(plan)
    method, context = made(plan), turn_of()
    server = method.start(plan.streams)
    request = method.request(server, plan.profiles[0], context)
    assert request is not None
    assert isinstance(answer(starved, plan.method, plan.profiles[0], request, {}, context), Failure)
    reply = answer(starved, method, plan.profiles[0], request, {}, context)
    assert isinstance(reply, Reply)
    assert torch.equal(floats(reply.message), floats(request))


@pytest.mark.parametrize("liars", [1, COHORT])
def test_the_server_lets_nobody_move_the_sum_by_more_than_the_clip(tiny_plan: Any, liars: int) -> None:
    """One liar of four moves the mean by C/4; four that agree move it by C."""
    plan = tiny_plan(method=UNIFORM)
    method = made(plan, clip=0.5, noise=0.0)
    server = method.start(plan.streams)
    replies = unchanged(method, server)
    for liar in range(liars):
        huge = Message({name: tensor + 1e20 for name, tensor in replies[liar].message.items()})
        replies[liar] = replace(replies[liar], message=huge)
    merged = method.aggregate(server, replies, turn_of())
    assert (floats(merged) - floats(server)).norm().item() == pytest.approx(0.5 * liars / COHORT, rel=1e-3)


def test_where_clients_add_noise_a_liar_moves_no_more_than_noise_could(tiny_plan: Any) -> None:
    plan = tiny_plan(method=UNIFORM)
    method = made(plan, clip=0.5, noise=2.0, where="client")
    server = method.start(plan.streams)
    replies = unchanged(method, server)
    huge = Message({name: tensor - 1e20 for name, tensor in replies[0].message.items()})
    merged = method.aggregate(server, [replace(replies[0], message=huge), *replies[1:]], turn_of())
    longest = 0.5 + 2.0 * 0.5 / sqrt(COHORT) * (sqrt(len(floats(server))) + 10)
    assert (floats(merged) - floats(server)).norm().item() == pytest.approx(longest / COHORT, rel=1e-3)


# Noise


def noise_of_a_round(plan: Plan, where: str, replies: int = COHORT, round: int = 0, **settings: Any) -> Tensor:
    """What a round adds to the sum of updates that are all zero."""
    method = made(plan, clip=0.5, noise=2.0, where=where, **settings)
    server = method.start(plan.streams)
    context = turn_of(round)
    messages = {reply.profile.id: reply.message for reply in unchanged(method, server, replies)}
    if where == "client":
        for client, message in messages.items():
            sent = answer(starving(plan), method, Profile(client, 10, "cnn"), message, {}, context)
            assert isinstance(sent, Reply), sent
            messages[client] = sent.message
    merged = method.aggregate(server, replies_of(messages), context)
    return (floats(merged) - floats(server)) * replies


@pytest.mark.parametrize("where", ["server", "client"])
def test_the_sum_carries_noise_of_z_times_c(tiny_plan: Any, where: str) -> None:
    """z C = 2 * 0.5 = 1 on every coordinate, added by client or server: a standard normal.

    The deviation of d draws is off by about 1 / sqrt(2 d).
    """
    noise = noise_of_a_round(tiny_plan(method=UNIFORM), where)
    assert len(noise) > 2000
    assert noise.std().item() == pytest.approx(1.0, abs=4 / sqrt(2 * len(noise)))
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-3


def test_noise_of_server_and_clients_has_one_distribution(tiny_plan: Any) -> None:
    plan = tiny_plan(method=UNIFORM)
    server, client = (noise_of_a_round(plan, where) for where in ("server", "client"))
    assert stats.ks_2samp(server.numpy(), client.numpy()).pvalue > 1e-3
    assert abs(torch.corrcoef(torch.stack([server, client]))[0, 1].item()) < 4 / sqrt(len(server))


def test_clients_draw_their_own_noise_in_every_round(tiny_plan: Any) -> None:
    """One client of four adds deviation z C / 2 = 0.5; other rounds and other clients have other noise."""
    plan = tiny_plan(method=UNIFORM)
    alone = noise_of_a_round(plan, "client", replies=1)
    assert alone.std().item() == pytest.approx(0.5, abs=2 / sqrt(2 * len(alone)))
    later = noise_of_a_round(plan, "client", replies=1, round=1)
    others = noise_of_a_round(plan, "client", replies=2) - alone
    for other in (later, others):
        assert abs(torch.corrcoef(torch.stack([alone, other]))[0, 1].item()) < 4 / sqrt(len(alone))


def test_a_variance_is_never_left_negative(tiny_plan: Any) -> None:
    plan = tiny_plan(method=UNIFORM, model="cnn-bn")
    method = made(plan, clip=1.0, noise=50.0)
    server = method.start(plan.streams)
    merged = method.aggregate(server, unchanged(method, server), turn_of())
    variances = [tensor for name, tensor in merged.items() if name.endswith("running_var")]
    means = [tensor for name, tensor in merged.items() if name.endswith("running_mean")]
    assert variances
    assert all((variance >= 0).all() for variance in variances)
    assert any((variance == 0).any() for variance in variances), "the noise was to make some negative"
    assert any((mean < 0).any() for mean in means)


def test_noise_is_repeatable_from_a_stream_and_never_from_the_system(tiny_plan: Any) -> None:
    plan = tiny_plan(method=UNIFORM)
    for where in ("server", "client"):
        assert torch.equal(noise_of_a_round(plan, where), noise_of_a_round(plan, where))
        first, second = (noise_of_a_round(plan, where, randomness="system") for _ in range(2))
        assert not torch.equal(first, second)
        assert first.std().item() == pytest.approx(1.0, abs=6 / sqrt(2 * len(first)))


def test_a_real_site_takes_noise_from_its_system() -> None:
    simulated = ClientLevel(clip=0.3, where="client")
    assert simulated.randomness == "named"
    assert simulated.on_site() == ClientLevel(clip=0.3, where="client", randomness="system")
    assert privacies["none"]().on_site() == privacies["none"]()


# What is refused


@pytest.mark.parametrize("name", methods.names())
def test_only_methods_that_share_a_mean_and_nothing_else_can_be_private(tiny_plan: Any, name: str) -> None:
    kind = methods[name]
    assert averages(kind) == (name in AVERAGING)
    if name not in AVERAGING:
        method = bare(kind, task=tiny_plan().task)
        with pytest.raises(InputError, match=f"and {name} is not one: choose fedadagrad, fedadam, fedavg"):
            ClientLevel().around(method, 10, 10)


class OwnAggregate(FedAvg):
    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return state


class OwnRule(FedAvg):
    def rule(self, state: Tensors, replies: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        return state


class OwnName(FedAvg):
    pass


def test_a_method_of_ones_own_is_private_only_if_it_aggregates_as_fedavg_does() -> None:
    assert [averages(kind) for kind in (OwnAggregate, OwnRule, OwnName)] == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "fedavg"}, "set method.weights=uniform"),
        ({"method": {**UNIFORM, "buffers": "recalibrate"}}, "set method.buffers=average"),
        ({"method": UNIFORM, "privacy": {"name": "client-level", "delta": 0.2}}, "must be below 0.2"),
        ({"method": UNIFORM, "privacy": {"name": "client-level", "clip": 0}}, "clip"),
        ({"method": UNIFORM, "privacy": {"name": "client-level", "noise": -1}}, "noise"),
    ],
    ids=["weights", "recalibrate", "delta", "clip", "noise"],
)
def test_what_would_break_the_promise_is_refused(tiny_plan: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tiny_plan(**{"privacy": "client-level", **changes})


def test_a_missing_accountant_is_said_before_any_work(tiny_plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstill.methods.wrappers.privacy_accounting.LIBRARY", "dp_accounting_that_nobody_has")
    with pytest.raises(InputError, match=r"pip install 'fedstill\[privacy\]'"):
        tiny_plan(method=UNIFORM, privacy="client-level")


# Accounting


def test_the_record_of_a_round_tells_its_noise_and_whether_sampling_counts(tiny_plan: Any) -> None:
    """With clients' noise, 3 of 4 replies carry z sqrt(3/4); a cohort with losses is no uniform draw."""
    plan = tiny_plan(method=UNIFORM)
    who = Profile(9, 10, "cnn")
    whole, broken = turn_of(), replace(turn_of(), failures=(Failure(who, "dropped", ""),))
    for where, kept in (("server", 2.0), ("client", 2.0 * sqrt(0.75))):
        known, secret = (made(plan, noise=2.0, where=where, sampling=sampling) for sampling in ("known", "secret"))
        state = known.start(plan.streams)
        state = {**state, **known.account(state, 4, whole)}
        state = {**state, **secret.account(state, 4, whole)}
        state = {**state, **secret.account(state, 4, broken)}
        state = {**state, **secret.account(state, 3, whole)}
        assert state[NOISE].tolist() == [2.0, 2.0, 2.0, kept]
        assert state[DRAWN].tolist() == [100, 4, 100, 100]
