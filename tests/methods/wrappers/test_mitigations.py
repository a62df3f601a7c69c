"""Cures for dropout: by hand on two weights, and around every method they are sound with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.message import Message, digest, part, under
from fedstill.core.protocols import Failure, Method, Profile, Reason, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods import methods
from fedstill.methods.wrappers.choices import Mitigation, mitigations
from fedstill.methods.wrappers.friend_substitution import SIMILARITY, SUBSTITUTED, TOGETHER
from fedstill.methods.wrappers.mimic import MimiC
from fedstill.methods.wrappers.mitigations import MOST_CLIENTS
from fedstill.methods.wrappers.privacy import ClientLevel, Private
from fedstill.tasks.classification import Classification

from ..sites import Point, Quadratic, Site, bare, build, points, weight

W = "model/parameters/w"
MEANS = [
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedbn",
    "fedprox",
    "fedyogi",
    "fine-tuned",
    "moon",
    "scaffold",
]
SOUND = {"friend-substitution": sorted([*MEANS, "fednova"]), "mimic": MEANS}
PAIRS = [(mitigation, name) for mitigation, names in SOUND.items() for name in names]
TASK = Classification(("a", "b", "c"), (1, 8, 8), ("cnn-bn",))
SAMPLES = {0: 1, 1: 2, 2: 3}


class Pair(Point):
    """Two weights."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.w = nn.Parameter(torch.zeros(2))


@dataclass(frozen=True)
class Plane(Quadratic):
    def make(self) -> nn.Module:
        return Pair()


def mitigated(name: str, method: Method, clients: int = 3) -> Method:
    return mitigations[name]().around(method, clients)


def turn_of(
    lost: Mapping[int, Reason] | None = None, clients: int = 3, samples: Mapping[int, int] = SAMPLES
) -> RoundContext:
    gone = [Failure(Profile(client, samples[client], "point"), why, "by hand") for client, why in (lost or {}).items()]
    return RoundContext(0, 9, clients, "train", Streams(0), tuple(gone))


def moved(
    server: Tensors,
    updates: Mapping[int, Sequence[float]],
    samples: Mapping[int, int] = SAMPLES,
    steps: Mapping[int, int] | None = None,
    **more: Any,
) -> list[Reply]:
    """Replies of clients, by id, whose weights moved by so much."""
    replies = []
    for client in sorted(updates):
        model = {**under("model/", part(server, "model/")), W: server[W] + torch.tensor(updates[client])}
        rest = {"steps": torch.tensor((steps or {}).get(client, 1)), **more}
        replies.append(Reply(Profile(client, samples[client], "point"), Message({**model, **rest}), None))
    return replies


# Friends


def acquainted() -> tuple[Method, Tensors]:
    """Three clients after a round of updates (1, 0), (3, 4) and (0, 1), with 1, 2 and 3 samples.

    Cosines: 3/5 between 0 and 1, 0 between 0 and 2, 4/5 between 1 and 2; so r is 0.8, 0.5 and 0.9.
    """
    method = mitigated("friend-substitution", build("fedavg", Plane()))
    server = method.start(Streams(0))
    return method, method.aggregate(server, moved(server, {0: (1, 0), 1: (3, 4), 2: (0, 1)}), turn_of())


def test_clients_get_acquainted_by_their_updates() -> None:
    """And the model is the plain mean: (1 + 2*3 + 0, 0 + 2*4 + 3*1) / 6."""
    _, server = acquainted()
    assert server[W].tolist() == pytest.approx([7 / 6, 11 / 6])
    expected = torch.tensor([[0.0, 0.8, 0.5], [0.8, 0.0, 0.9], [0.5, 0.9, 0.0]])
    torch.testing.assert_close(server[SIMILARITY], expected)
    assert server[TOGETHER].tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_the_best_friend_speaks_for_a_client_that_dropped_out() -> None:
    """Client 1 moves by (1, 0), 2 by (0, 2), 0 is lost; its friend is 1, its weight its own sample.

    Mitigated: ((1 + 2) (1, 0) + 3 (0, 2)) / 6 = (0.5, 1). Without a mitigation: (2 (1, 0) + 3 (0, 2)) / 5 = (0.4, 1.2).
    Then R_12 = (0.9 + 0.5) / 2 = 0.7, so that 1, once lost, has client 0 for a friend: the two now move by (2, 0) and
    (0, 2), which gives (2 + 2*2, 3*2) / 6 = (1, 1).
    """
    method, before = acquainted()
    assert isinstance(method, Method)
    server = method.aggregate(before, moved(before, {1: (1, 0), 2: (0, 2)}), turn_of({0: "dropped"}))
    assert (server[W] - before[W]).tolist() == pytest.approx([0.5, 1.0])
    assert server[SIMILARITY][1].tolist() == pytest.approx([0.8, 0.0, 0.7])
    assert server[TOGETHER].tolist() == [[0, 1, 1], [1, 0, 2], [1, 2, 0]]
    plain = build("fedavg", Plane()).aggregate(before, moved(before, {1: (1, 0), 2: (0, 2)}), turn_of())
    assert (plain[W] - before[W]).tolist() == pytest.approx([0.4, 1.2])
    last = method.aggregate(server, moved(server, {0: (2, 0), 2: (0, 2)}), turn_of({1: "battery"}))
    assert (last[W] - server[W]).tolist() == pytest.approx([1.0, 1.0])
    assert method.metrics(last) == {"substituted": 2.0}


def test_of_equal_friends_the_first_speaks() -> None:
    """Updates (1, 0) and (2, 0) are equally like (3, 0)."""
    method = mitigated("friend-substitution", build("fedavg", Plane(), weights="uniform"))
    server = method.start(Streams(0))
    server = method.aggregate(server, moved(server, {0: (1, 0), 1: (2, 0), 2: (3, 0)}), turn_of())
    merged = method.aggregate(server, moved(server, {0: (3, 0), 1: (0, 3)}), turn_of({2: "dropped"}))
    assert (merged[W] - server[W]).tolist() == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize(
    ("why", "counts"),
    [("dropped", True), ("battery", True), ("refused", False), ("failed", False), ("abstained", False)],
)
def test_only_who_dropped_out_is_represented(why: Reason, counts: bool) -> None:
    method, before = acquainted()
    server = method.aggregate(before, moved(before, {1: (1, 0), 2: (0, 2)}), turn_of({0: why}))
    assert (server[W] - before[W]).tolist() == pytest.approx([0.5, 1.0] if counts else [0.4, 1.2])
    assert int(server[SUBSTITUTED]) == int(counts)


def test_a_stranger_is_not_represented() -> None:
    """The first round has no similarities yet, and an update of zero adds none."""
    plain, method = build("fedavg", Plane()), mitigated("friend-substitution", build("fedavg", Plane()))
    start = method.start(Streams(0))
    replies, context = moved(start, {1: (1, 0), 2: (0, 0)}), turn_of({0: "dropped"})
    server = method.aggregate(start, replies, context)
    assert digest(part(server, "model/")) == digest(part(plain.aggregate(start, replies, context), "model/"))
    assert server[TOGETHER].tolist() == [[0, 0, 0]] * 3
    again = method.aggregate(server, moved(server, {0: (1, 0), 1: (1, 0)}), turn_of({2: "dropped"}))
    assert (again[W] - server[W]).tolist() == pytest.approx([1.0, 0.0])
    assert int(again[SUBSTITUTED]) == 0


def test_the_method_is_given_replies_in_the_order_of_ids_whoever_was_lost_first() -> None:
    method = mitigated("friend-substitution", build("fedavg", Plane()), clients=4)
    samples = {0: 1, 1: 2, 2: 3, 3: 4}
    start = method.start(Streams(0))
    first = moved(start, {0: (1, 0), 1: (3, 4), 2: (0, 1), 3: (1, 1)}, samples)
    server = method.aggregate(start, first, turn_of(clients=4, samples=samples))
    seen = []

    class Spy(type(method.inner)):  # type: ignore[misc, name-defined]
        def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
            seen.append([reply.profile.id for reply in replies])
            return super().aggregate(state, replies, context)

    method.inner.__class__ = Spy
    replies = moved(server, {1: (1, 0)}, samples)
    ended = set()
    for order in permutations((0, 2, 3)):
        lost: dict[int, Reason] = dict.fromkeys(order, "dropped")
        ended.add(digest(method.aggregate(server, replies, turn_of(lost, 4, samples))))
    assert seen == [[0, 1, 2, 3]] * 6
    assert len(ended) == 1


def test_a_substitute_is_normalised_by_its_friends_steps() -> None:
    """FedNova without momentum, clients alike: 1 moves by 4 in four steps, 2 by 1 in one step, 0 is lost, its friend 1.

    a = 4, 4, 1, their mean 3; each moves by 1 a step, so the model by 3. Without a mitigation the mean of a is 2.5.
    """
    alike, steps = {0: 1, 1: 1, 2: 1}, {1: 4, 2: 1}
    method = mitigated("friend-substitution", build("fednova", Plane()))
    start = method.start(Streams(0))
    known = method.aggregate(start, moved(start, {0: (1, 0), 1: (1, 0), 2: (1, 1)}, alike), turn_of(samples=alike))
    replies = moved(known, {1: (4, 4), 2: (1, 1)}, alike, steps)
    for lost, expected in (({0: "dropped"}, 3.0), ({}, 2.5)):
        server = method.aggregate(known, replies, turn_of(lost, samples=alike))
        assert (server[W] - known[W]).tolist() == pytest.approx([expected, expected])


def test_a_substitute_leaves_control_variates_alone() -> None:
    """SCAFFOLD's server control stays the mean of the clients' own, though a model stands for the lost one.

    All drift alike, so the lost client's friend is the first of the others, 1: of the means of the data, which buffers
    hold, the server has (10 + 10 + 4) / 3 = 8 then, and 7 without a mitigation.
    """
    method = mitigated("friend-substitution", build("scaffold"), clients=3)
    site = Site(method, Quadratic(), [points(2, 2), points(10, 10), points(4, 4)], rounds=3)
    site.play_round(0)
    plain = Site(build("scaffold"), Quadratic(), site.data, rounds=3)
    plain.play_round(0)
    for one in (site, plain):
        play(one, 1, lost=[0])
    assert [weight(one.server, "model/buffers/mean") for one in (site, plain)] == [8, 7]
    assert weight(site.server, "control/w") == weight(plain.server, "control/w")
    own = [float(state["control/w"]) for state in site.states]
    assert weight(site.server, "control/w") == pytest.approx(sum(own) / 3, rel=1e-6)


# MimiC


def test_a_reply_is_corrected_by_how_its_client_differed_when_last_heard() -> None:
    """Clients alike. Round 1: 0 moves by 1, 1 by 3, all by 2; so c_0 = 1, c_1 = -1.

    Round 2: 1 is lost, and 0, moving by 1, is taken to move by 2; FedAvg would move by 1. c_0 = 2 - 1 = 1.
    Round 3: 0 and 1 as before, and 2 for the first time, by 8, as it is: (2 + 2 + 8) / 3 = 4. c = 3, 1, -4.
    """
    method = mitigated("mimic", build("fedavg", Plane(), weights="uniform"))
    server = method.start(Streams(0))
    assert not [name for name in server if name.startswith("mimic/")]
    expected = [
        ({0: 1.0, 1: 3.0}, 2.0, {0: 1.0, 1: -1.0}),
        ({0: 1.0}, 4.0, {0: 1.0, 1: -1.0}),
        ({0: 1.0, 1: 3.0, 2: 8.0}, 8.0, {0: 3.0, 1: 1.0, 2: -4.0}),
    ]
    for updates, position, corrections in expected:
        replies = moved(server, {client: (update, -update) for client, update in updates.items()})
        server = method.aggregate(server, replies, turn_of())
        assert server[W].tolist() == pytest.approx([position, -position])
        kept = {name: tensor for name, tensor in server.items() if name.startswith("mimic/")}
        assert sorted(kept) == [f"mimic/{client}/parameters/w" for client in sorted(corrections)]
        for client, correction in corrections.items():
            assert kept[f"mimic/{client}/parameters/w"].dtype == torch.float32
            assert kept[f"mimic/{client}/parameters/w"].tolist() == pytest.approx([correction, -correction])


def test_all_is_weighed_as_the_method_weighs() -> None:
    """One sample moves by 1, two by 3, three by 5: (1 + 6 + 15) / 6 = 11/3."""
    method = mitigated("mimic", build("fedavg", Plane()))
    server = method.start(Streams(0))
    server = method.aggregate(server, moved(server, {0: (1, 0), 1: (3, 0), 2: (5, 0)}), turn_of())
    found = [float(server[f"mimic/{client}/parameters/w"][0]) for client in range(3)]
    assert found == pytest.approx([8 / 3, 2 / 3, -4 / 3])


def test_corrections_are_to_the_mean_and_not_to_a_servers_step() -> None:
    """Server momentum 0.9. Round 1: 1 and 3, D = 2, w = 2. Round 2: only 0, by 1, corrected to 2: v = 1.8 + 2, w = 5.8.

    All moved by 2 in the mean, whatever the server made of it, so c_0 stays 1.
    """
    method = mitigated("mimic", build("fedavgm", Plane(), weights="uniform"))
    server = method.start(Streams(0))
    server = method.aggregate(server, moved(server, {0: (1, 0), 1: (3, 0)}), turn_of())
    server = method.aggregate(server, moved(server, {0: (1, 0)}), turn_of())
    assert float(server[W][0]) == pytest.approx(5.8)
    assert float(server["mimic/0/parameters/w"][0]) == pytest.approx(1.0)


def test_why_fednova_is_not_corrected() -> None:
    """0 moves by 1 in one step, 1 by 4 in four: FedNova moves by 2.5 in every round.

    Both corrected to 2.5 it would move by 2.5 (2.5/1 + 2.5/4) / 2 = 3.90625, though nobody is missing.
    """
    plain, method = build("fednova", Plane()), MimiC(build("fednova", Plane()))
    alike, steps, updates = {0: 1, 1: 1}, {0: 1, 1: 4}, {0: (1, 0), 1: (4, 0)}
    server = method.start(Streams(0))
    for expected in (2.5, 3.90625):
        before, replies = server, moved(server, updates, alike, steps)
        server = method.aggregate(server, replies, turn_of())
        assert float((server[W] - before[W])[0]) == pytest.approx(expected)
        assert float((plain.aggregate(before, replies, turn_of())[W] - before[W])[0]) == pytest.approx(2.5)


# Around methods


def clouds(clients: int = 3) -> list[ArrayDataset]:
    """Some clients with pictures of noise, each of other classes and of another number."""
    generator = torch.Generator().manual_seed(1)
    sizes = [4 + 4 * client for client in range(clients)]
    return [
        ArrayDataset(
            inputs=torch.randn(size, 1, 8, 8, generator=generator) + client,
            labels=(torch.arange(size) + client) % 2 + (client % 2),
        )
        for client, size in enumerate(sizes)
    ]


def trained(name: str) -> Method:
    return build(name, TASK, {"batch": 4, "rate": 0.05, "epochs": 1})


def model_of(server: Tensors) -> Tensors:
    return {name: tensor for name, tensor in server.items() if not name.startswith(("friends/", "mimic/"))}


def play(site: Site, round: int, lost: Sequence[int] = ()) -> None:
    """A round as in the loop: failures are passed on, and their clients' states do not change."""
    for exchange in site.method.exchanges(site.server, round):
        replies = [site.ask(client, round, exchange) for client in range(len(site.data)) if client not in lost]
        gone = tuple(Failure(site.profile(client), "dropped", "by hand") for client in lost)
        context = replace(site.context(round, exchange.name), failures=gone)
        site.server = exchange.aggregate(site.server, replies, context)
        for reply in replies:
            assert isinstance(reply, Reply)
            site.states[reply.profile.id] = reply.state or {}
            site.since[reply.profile.id] = round


@pytest.mark.parametrize("name", SOUND["friend-substitution"])
def test_without_losses_friends_change_no_bit(name: str) -> None:
    plain, other = (
        Site(method, TASK, clouds(), rounds=3)
        for method in (trained(name), mitigated("friend-substitution", trained(name)))
    )
    for site in (plain, other):
        for round in range(3):
            play(site, round)
    assert digest(model_of(other.server)) == digest(plain.server)
    assert [digest(one) for one in other.states] == [digest(one) for one in plain.states]
    together = 2 if name == "fine-tuned" else 3  # its last round is everybody's own
    assert other.server[TOGETHER].tolist() == [[together * (one != two) for two in range(3)] for one in range(3)]


@pytest.mark.parametrize("name", SOUND["mimic"])
def test_where_nobody_is_ever_lost_mimic_is_the_method(name: str) -> None:
    plain, other = (
        Site(method, TASK, clouds(), rounds=3) for method in (trained(name), mitigated("mimic", trained(name)))
    )
    for site in (plain, other):
        for round in range(3):
            play(site, round)
    for key, tensor in plain.server.items():
        torch.testing.assert_close(other.server[key], tensor, rtol=1e-3, atol=1e-4)
    corrections = [other.server[f"mimic/{client}/parameters/head.1.weight"] for client in range(3)]
    assert min(float(correction.norm()) for correction in corrections) > 1e-3  # they differ, and it comes to nothing


@pytest.mark.parametrize(("mitigation", "name"), PAIRS, ids=[f"{mitigation}-{name}" for mitigation, name in PAIRS])
def test_a_run_goes_on_from_its_named_tensors(mitigation: str, name: str) -> None:
    """After rounds with losses, with a fresh method, to the bits of one that was not interrupted."""
    whole = Site(mitigated(mitigation, trained(name)), TASK, clouds(), rounds=4)
    play(whole, 0)
    play(whole, 1, lost=[1])
    kept = Message.decode(Message(whole.server).encode())
    resumed = Site(mitigated(mitigation, trained(name)), TASK, clouds(), rounds=4)
    resumed.server, resumed.states, resumed.since = dict(kept), list(whole.states), list(whole.since)
    plain = Site(trained(name), TASK, clouds(), rounds=4)
    play(plain, 0)
    play(plain, 1, lost=[1])
    for site in (whole, resumed, plain):
        play(site, 2, lost=[0])
    assert digest(resumed.server) == digest(whole.server)
    assert digest(model_of(whole.server)) != digest(plain.server)  # the mitigation did something


@pytest.mark.parametrize("proxy", ["none", "average"])
def test_layers_that_stay_with_their_clients_are_neither_compared_nor_corrected(proxy: str) -> None:
    """FedBN may upload BatchNorm too, for a proxy; but nobody starts from the server's."""
    method = mitigated("mimic", build("fedbn", TASK, {"batch": 4}, proxy=proxy))
    site = Site(method, TASK, clouds(), rounds=1)
    play(site, 0)
    norms = method.inner.local
    weights = {name for name in part(site.server, "model/") if name.startswith("parameters/")}
    assert weights & norms
    assert set(part(site.server, "mimic/0/")) == weights - norms


def test_only_the_exchange_with_models_is_mitigated() -> None:
    for mitigation in SOUND:
        method = mitigated(mitigation, build("fedavg", TASK, buffers="recalibrate"))
        first, *rest = method.exchanges({}, 0)
        assert first is method
        assert [exchange.name for exchange in rest] == ["recalibrate"]
        tuned = mitigated(mitigation, build("fine-tuned", TASK))
        (last,) = tuned.exchanges({"rounds": torch.tensor(4)}, 3)
        assert last.name == "tune"
        assert last is not tuned


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("mitigation", ["none", *SOUND])
def test_methods_without_a_mean_of_models_are_refused(mitigation: str, name: str) -> None:
    kind = methods[name]
    method = bare(kind, task=TASK)
    if mitigation == "none":
        assert mitigated(mitigation, method) is method
    elif name in SOUND[mitigation]:
        assert mitigated(mitigation, method).name == method.name
    else:
        with pytest.raises(
            InputError, match=rf"^mitigation={mitigation} is .* with {name} it is not sound: choose ditto, .*"
        ):
            mitigated(mitigation, method)


def test_under_privacy_everybody_counts_once() -> None:
    private = Private(build("fedavg", weights="uniform"), ClientLevel(), 100, 10)
    for mitigation in SOUND:
        with pytest.raises(InputError, match=rf"counts every client once, and mitigation={mitigation} does not"):
            mitigated(mitigation, private)


def test_too_many_pairs_are_refused() -> None:
    assert MOST_CLIENTS == 5_000
    mitigated("friend-substitution", build("fedavg"), 5_000)
    mitigated("mimic", build("fedavg"), 5_001)
    with pytest.raises(InputError, match="5,001 are too many: 5,000 at most"):
        mitigated("friend-substitution", build("fedavg"), 5_001)


def test_mitigations_are_chosen_by_name() -> None:
    assert mitigations.names() == ["friend-substitution", "mimic", "none"]
    assert all(mitigations.summary(name) for name in mitigations)
    assert isinstance(mitigations["none"](), Mitigation)
    with pytest.raises(InputError, match="unknown dropout mitigation 'mimik': did you mean 'mimic'"):
        mitigations["mimik"]
