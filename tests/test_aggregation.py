"""Server rules on plain state dictionaries: by hand, against the methods, and BatchNorm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill import aggregation
from fedstill.core.errors import InputError
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import Message, under
from fedstill.core.protocols import Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.methods import FedAvg, methods, server_rule
from fedstill.methods.server_rule import server_rule_of
from fedstill.tasks.classification import Classification

TASK = Classification(("a", "b"), (1, 8, 8), ("cnn-bn",))
SAMPLES, STEPS = [5, 30, 11, 7, 23], [3, 9, 1, 4, 4]
State = dict[str, Tensor]
Round = Callable[[Tensors, Sequence[Tensors]], State]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def drawn(name: str, like: Tensors) -> State:
    """A random model; variances are positive and counters whole."""
    draws = Streams(5).draw("aggregation", name)

    def value(key: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.tensor(int(draws.integers(100)))
        noise = torch.from_numpy(draws.standard_normal(tensor.shape)).float()
        return noise.square() + 0.1 if key.endswith("running_var") else noise

    return {key: value(key, tensor) for key, tensor in like.items()}


def clients(round: int, count: int = 5) -> list[State]:
    return [drawn(f"client {client} in {round}", network().state_dict()) for client in range(count)]


RULES: list[tuple[str, dict[str, Any], Callable[[], Round]]] = [
    ("fedavg", {}, lambda: lambda now, those: aggregation.average(those, SAMPLES)),
    ("fedavg", {"weights": "uniform"}, lambda: lambda now, those: aggregation.average(those)),
    ("fedmedian", {}, lambda: lambda now, those: aggregation.median(those)),
    ("trimmed-mean", {"beta": 0.3}, lambda: lambda now, those: aggregation.trimmed_mean(those, 0.3)),
    ("krum", {"attackers": 1}, lambda: lambda now, those: aggregation.krum(those, 1)),
    ("multi-krum", {"keep": 2}, lambda: lambda now, those: aggregation.multi_krum(those, keep=2)),
    ("clipped-mean", {}, lambda: aggregation.clipped_mean),
    ("clipped-mean", {"norm": 1.5}, lambda: lambda now, those: aggregation.clipped_mean(now, those, 1.5)),
    ("fedavgm", {"eta": 0.5, "beta": 0.7}, lambda: weighted(aggregation.FedAvgM(0.5, 0.7))),
    ("fedadam", {"eta": 0.1, "beta2": 0.9}, lambda: weighted(aggregation.FedAdam(0.1, beta2=0.9))),
    ("fedyogi", {"eta": 0.1, "tau": 0.1}, lambda: weighted(aggregation.FedYogi(0.1, tau=0.1))),
    ("fedadagrad", {"beta1": 0.2}, lambda: weighted(aggregation.FedAdagrad(beta1=0.2))),
    (
        "fednova",
        {},
        lambda: lambda now, those: aggregation.normalised_average(now, those, STEPS, SAMPLES, momentum=0.9),
    ),
]


def weighted(rule: Any) -> Round:
    return lambda now, those: rule(now, those, SAMPLES)


def by_kind(state: Tensors) -> State:
    model = network()
    model.load_state_dict(state)
    return state_of(model)


def replies_of(states: Sequence[Tensors]) -> list[Reply]:
    return [
        Reply(
            Profile(client, SAMPLES[client], "net"),
            Message({**under("model/", by_kind(state)), "steps": torch.tensor(STEPS[client])}),
            None,
        )
        for client, state in enumerate(states)
    ]


@pytest.mark.parametrize(("name", "settings", "make"), RULES, ids=[f"{one[0]}-{n}" for n, one in enumerate(RULES)])
def test_a_rule_is_that_of_its_method_to_the_bit(
    name: str, settings: dict[str, Any], make: Callable[[], Round]
) -> None:
    """Three rounds, so that the moments of optimisers count."""
    kind = server_rule_of(name)
    method = kind(kind.Options(**settings), TASK, Training(momentum=0.9))
    now, rule = drawn("start", network().state_dict()), make()
    server = method.server_state(by_kind(now))
    for round in range(3):
        those = clients(round)
        now = rule(now, those)
        server = method.aggregate(server, replies_of(those), RoundContext(round, 3, 5, "train", Streams(0)))
        wanted = network()
        load_state(wanted, {key.removeprefix("model/"): t for key, t in server.items() if key.startswith("model/")})
        assert list(now) == list(wanted.state_dict())
        assert all(torch.equal(tensor, now[key]) for key, tensor in wanted.state_dict().items())
        assert now["1.num_batches_tracked"].dtype == torch.int64


def test_batchnorm_by_hand() -> None:
    """Weights 1 and 3: parameters and statistics (1 * 2 + 3 * 6) / 4 = 5, counters the larger."""
    one, two = (nn.BatchNorm1d(1).state_dict() for _ in range(2))
    for state, value, batches in ((one, 2.0, 9), (two, 6.0, 4)):
        state["weight"].fill_(value), state["running_var"].fill_(value), state["num_batches_tracked"].fill_(batches)
    mean = aggregation.average([one, two], [1, 3])
    assert (mean["weight"].item(), mean["running_var"].item(), mean["num_batches_tracked"].item()) == (5, 5, 9)
    assert mean["num_batches_tracked"].dtype == torch.int64
    moved = aggregation.FedAvgM(lr=0.5)(one, [two])
    assert (moved["weight"].item(), moved["running_var"].item()) == (4, 6), "statistics skip the server's optimiser"


class Scaled(nn.Module):
    """A buffer that no name gives away."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("scale", torch.zeros(1))


def test_a_model_tells_buffers_that_names_do_not() -> None:
    start, client = Scaled().state_dict(), {"weight": torch.ones(1), "scale": torch.ones(1)}
    by_name = aggregation.FedAvgM(lr=0.5)(start, [client])
    by_model = aggregation.FedAvgM(lr=0.5, model=Scaled())(start, [client])
    assert (by_name["weight"].item(), by_name["scale"].item()) == (0.5, 0.5)
    assert (by_model["weight"].item(), by_model["scale"].item()) == (0.5, 1.0)


def test_inputs_are_left_alone_and_types_kept() -> None:
    half = [{"w": torch.tensor([1.0, 2.0], dtype=torch.float16)}, {"w": torch.tensor([3.0, 5.0], dtype=torch.float16)}]
    mean = aggregation.average(half)["w"]
    assert mean.dtype == torch.float16
    assert mean.tolist() == [2.0, 3.5]
    mean.zero_()
    assert half[0]["w"].tolist() == [1.0, 2.0]
    alone = aggregation.krum(half[:1])["w"]
    alone.zero_()
    assert half[0]["w"].tolist() == [1.0, 2.0]


def test_an_optimiser_continues_from_saved_moments() -> None:
    start, whole = drawn("start", network().state_dict()), aggregation.FedAdam()
    now = whole(start, clients(0))
    saved = whole.state_dict()
    resumed = aggregation.FedAdam()
    resumed.load_state_dict(saved)
    one, two = whole(now, clients(1)), resumed(now, clients(1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], fresh) for name, fresh in aggregation.FedAdam()(now, clients(1)).items())


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: aggregation.average([]), "no models to aggregate"),
        (lambda: aggregation.average([{}]), "the states hold no tensors"),
        (lambda: aggregation.average([{"w": torch.ones(1)}, {"v": torch.ones(1)}]), "model 1 does not fit, 'v'"),
        (lambda: aggregation.average([{"w": torch.ones(1)}, {"w": torch.ones(2)}]), r"'w' of model 1 is \(2,\)"),
        (lambda: aggregation.average([{"w": torch.ones(1)}], [1, 2]), "2 weights do not fit 1 models: pass one"),
        (lambda: aggregation.average([{"w": torch.ones(1)}], [0]), "not all zero"),
        (lambda: aggregation.average([{"w": torch.ones(1)}] * 2, [3, -1]), "none negative"),
        (lambda: aggregation.average([{"w": torch.ones(1, dtype=torch.complex64)}]), "'w' is neither real nor integer"),
        (lambda: aggregation.average([{"w": torch.ones(1)}], model=Scaled()), "pass the model that was trained"),
        (lambda: aggregation.trimmed_mean(clients(0), 0.5), "TrimmedMean: beta: Input should be less than 0.5"),
        (lambda: aggregation.krum(clients(0), attackers=2), "needs 7 clients or more, and there are 5"),
        (lambda: aggregation.FedAdam(lr=0), "FedAdam: eta: Input should be greater than 0"),
        (lambda: aggregation.normalised_average({"w": torch.ones(1)}, [{"w": torch.ones(1)}], [0]), "divides by steps"),
    ],
)
def test_bad_input_gets_one_sentence(act: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        act()


def test_a_rule_that_remembers_one_model_refuses_another() -> None:
    rule = fedstill.aggregation.FedAvgM()
    rule({"w": torch.ones(1)}, [{"w": torch.ones(1)}])
    with pytest.raises(InputError, match="remembers another model: make a new rule"):
        rule({"w": torch.ones(2)}, [{"w": torch.ones(2)}])


class PartWay(FedAvg):
    """As a user's own method may be written."""

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return state


def test_a_method_with_its_own_aggregate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_rule, "methods", {"part-way": PartWay})
    with pytest.raises(InputError, match="'part-way' has its own `aggregate`: define `rule`"):
        server_rule_of("part-way")


def test_methods_whose_clients_do_more_are_refused() -> None:
    rules = {"fedadagrad", "fedadam", "fedavg", "fedavgm", "fedmedian", "fednova", "fedyogi"}
    robust = {"clipped-mean", "krum", "multi-krum", "trimmed-mean"}
    refused = {}
    for name in methods:
        try:
            server_rule_of(name)
        except InputError as error:
            refused[name] = str(error)
    assert set(methods) - set(refused) == rules | robust
    assert "more than one shared model" in refused["scaffold"]
    assert "more than one shared model" in refused["feddyn"]
    assert "choose fedavg, and change the loss" in refused["fedprox"]
    assert "pooled data" in refused["centralised"]
    assert "does not aggregate one shared model" in refused["distill"]
