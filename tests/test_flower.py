"""Server rules as a strategy of a stock Flower app, against Flower's own strategies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedstill
from fedstill.aggregation import FedAdam, median, normalised_average
from fedstill.core.errors import InputError, RunError
from fedstill.core.streams import Streams

flwr = pytest.importorskip("flwr")

NODES, ROUNDS = [11, 7, 23, 5], 3
SAMPLES = [8, 24, 16, 8]
ADAPTIVE = {"eta": 0.05, "beta1": 0.9, "beta2": 0.95, "tau": 1e-3}
LATE = 2000  # rounds after which the bias correction of Flower's FedAdam, which the paper leaves out, is one
# Flower sums in single precision, we in double; where Adam divides by little more than tau, errors grow by eta / tau.
NEAR = {"rtol": 1e-5, "atol": 1e-6}
NEAR_ADAM = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _as_in_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages carry the identity of the process that Flower started; and nobody is called."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def network() -> nn.Module:
    with Streams(1).ambient("network"):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def train(state: dict[str, Tensor], client: int) -> dict[str, Tensor]:
    """A seeded client of plain torch: two epochs on its own data."""
    draws = Streams(4).draw("data", client)
    inputs = torch.from_numpy(draws.standard_normal((SAMPLES[client], 6))).float()
    labels = torch.from_numpy(draws.integers(3, size=SAMPLES[client]))
    model = network()
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for rows in range(0, SAMPLES[client], 8):
            optimiser.zero_grad()
            F.cross_entropy(model(inputs[rows : rows + 8]), labels[rows : rows + 8]).backward()
            optimiser.step()
    return model.state_dict()


class Nodes:
    """In place of Flower's grid: nodes that train when they are sent a model."""

    def __init__(self, metrics: dict[str, Any] | None = None, broken: Sequence[int] = ()) -> None:
        self.metrics, self.broken = metrics or {}, broken

    def get_node_ids(self) -> list[int]:
        return NODES

    def send_and_receive(self, messages: Any, timeout: float | None = None) -> list[Any]:
        return [self.reply(message) for message in messages]

    def reply(self, message: Any) -> Any:
        from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict

        client = NODES.index(message.metadata.dst_node_id)
        if client in self.broken:
            return Message(Error(2, "failed"), reply_to=message)
        metrics = MetricRecord({"num-examples": SAMPLES[client], "loss": float(client), **self.metrics})
        arrays = ArrayRecord(train(message.content["arrays"].to_torch_state_dict(), client))
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def states(strategy: Any, grid: Any = None, rounds: int = ROUNDS) -> dict[str, Tensor]:
    from flwr.app import ArrayRecord

    result = strategy.start(grid or Nodes(), ArrayRecord(network().state_dict()), num_rounds=rounds)
    return dict(result.arrays.to_torch_state_dict())


def settings(**more: Any) -> dict[str, Any]:
    return {"fraction_evaluate": 0.0, "min_train_nodes": 4, "min_available_nodes": 4, **more}


def late_fedadam() -> Any:
    from flwr.serverapp.strategy import FedAdam as FlowerFedAdam

    class Late(FlowerFedAdam):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round + LATE, replies)

    return Late(**settings(eta=0.05, beta_1=0.9, beta_2=0.95, tau=1e-3))


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], parameters_only: bool, near: Any) -> None:
    names = [name for name, _ in network().named_parameters()] if parameters_only else list(network().state_dict())
    for name in names:
        torch.testing.assert_close(ours[name].double(), theirs[name].double(), msg=name, **near)
    assert ours["1.num_batches_tracked"].dtype == torch.int64


def test_fedavg_is_flowers() -> None:
    from flwr.serverapp.strategy import FedAvg

    ours, theirs = states(fedstill.flower.Strategy("fedavg", **settings())), states(FedAvg(**settings()))
    counters = "1.num_batches_tracked"
    assert ours[counters].item() == 2 * 3 * ROUNDS, "that of the client with the most batches"
    assert_same(ours, {**theirs, counters: ours[counters]}, False, NEAR)


def test_fedadam_is_flowers_for_parameters_without_its_bias_correction() -> None:
    """Flower's optimiser also moves running statistics and counters, so that only parameters are compared."""
    ours = states(fedstill.flower.Strategy("fedadam", preset="seed", **ADAPTIVE, **settings()))
    theirs = states(late_fedadam())
    assert_same(ours, theirs, True, NEAR_ADAM)
    assert not torch.allclose(ours["1.running_var"], theirs["1.running_var"].float(), rtol=0.01)
    assert not torch.allclose(ours["0.weight"], network().state_dict()["0.weight"], atol=0.01), "it moved"


def by_hand(rule: Any) -> dict[str, Tensor]:
    """The same rounds without Flower; clients in the order of their nodes' ids."""
    state, order = network().state_dict(), sorted(range(4), key=NODES.__getitem__)
    for _ in range(ROUNDS):
        state = rule(state, [train(state, client) for client in order], [SAMPLES[client] for client in order])
    return state


@pytest.mark.parametrize(
    ("method", "given", "rule"),
    [
        ("fedadam", {"server_rate": 0.1}, FedAdam(lr=0.1)),
        ("fedmedian", {"model": network()}, lambda now, those, weights: median(those)),
        ("fednova", {"momentum": 0.5}, lambda now, those, w: normalised_average(now, those, [3] * 4, w, momentum=0.5)),
    ],
)
def test_rules_are_those_of_aggregation_to_the_bit(method: str, given: dict[str, Any], rule: Any) -> None:
    ours = states(fedstill.flower.Strategy(method, **given, **settings()), Nodes({"steps": 3}))
    wanted = by_hand(rule)
    assert all(torch.equal(ours[name], tensor) for name, tensor in wanted.items())


def test_the_order_of_arrival_changes_nothing_and_failures_are_left_out() -> None:
    from flwr.app import ArrayRecord, ConfigRecord

    grid, arrays = Nodes(broken=[2]), ArrayRecord(network().state_dict())
    found = []
    for backwards in (False, True):
        strategy = fedstill.flower.Strategy("fedyogi", **settings())
        sent = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
        replies = sorted(grid.send_and_receive(sent), key=lambda one: one.metadata.src_node_id, reverse=backwards)
        merged, metrics = strategy.aggregate_train(1, replies)
        found.append(dict(merged.to_torch_state_dict()))
        assert metrics["loss"] == pytest.approx((0 * 8 + 1 * 24 + 3 * 8) / 40)
    assert all(torch.equal(found[0][name], tensor) for name, tensor in found[1].items())
    assert fedstill.flower.Strategy("fedavg").aggregate_train(1, []) == (None, None)


def test_what_cannot_be_done_is_refused() -> None:
    from flwr.app import ArrayRecord, ConfigRecord

    from fedstill.flower import Strategy

    for name, words in {
        "scaffold": "clients of method 'scaffold' exchange or keep more than one shared model",
        "feddyn": "clients of method 'feddyn'",
        "fedprox": "choose fedavg, and change the loss or the gradients in your client",
        "fedavgg": "did you mean 'fedavg'",
    }.items():
        with pytest.raises(InputError, match=words):
            Strategy(name)
    with pytest.raises(InputError, match=r"method 'fedadam': etta: .* did you mean 'eta'"):
        Strategy("fedadam", etta=0.1)
    with pytest.raises(InputError, match="in an exchange of Fedstill's own: choose 'average'"):
        Strategy("fedavg", buffers="recalibrate")
    with pytest.raises(InputError, match="MetricRecord has no 'steps': report it"):
        states(Strategy("fednova", **settings()))
    arrays = ArrayRecord(network().state_dict())
    replies = Nodes().send_and_receive(Strategy(**settings()).configure_train(1, arrays, ConfigRecord(), Nodes()))
    with pytest.raises(RunError, match="call configure_train before"):
        Strategy("fedavg").aggregate_train(1, replies)


def test_without_flower_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fedstill.flower", raising=False)
    for name in ("flwr", "flwr.app"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(fedstill, "flower", raising=False)
    with pytest.raises(InputError, match=r"pip install 'fedstill\[flower\]'"):
        _ = fedstill.flower


def simulated(strategy: Any) -> dict[str, Tensor]:
    """The whole app in Flower's simulation on Ray."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    found: dict[str, Tensor] = {}
    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        found.update(states(strategy, grid))

    @client.train()
    def fit(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        arrays = ArrayRecord(train(message.content["arrays"].to_torch_state_dict(), number))
        metrics = MetricRecord({"num-examples": SAMPLES[number]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server, client, num_supernodes=4, backend_config=backend)
    return found


@pytest.mark.slow
def test_a_stock_app_in_flowers_simulation_ends_with_flowers_weights() -> None:
    pytest.importorskip("ray")
    from flwr.serverapp.strategy import FedAvg

    ours, theirs = (simulated(one) for one in (fedstill.flower.Strategy("fedavg", **settings()), FedAvg(**settings())))
    assert_same(ours, {**theirs, "1.num_batches_tracked": ours["1.num_batches_tracked"]}, False, NEAR)
    adam = simulated(fedstill.flower.Strategy("fedadam", preset="seed", **ADAPTIVE, **settings()))
    assert_same(adam, simulated(late_fedadam()), True, NEAR_ADAM)
    assert not torch.allclose(adam["0.weight"], ours["0.weight"], atol=1e-3)
