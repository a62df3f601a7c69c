"""The server's rules against those of Flower, an independent implementation, fed with the same random models.

Flower's lists hold no kinds, so that only parameters are compared: its strategies would put BatchNorm's statistics
through the server's optimiser as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedstill.core.kinds import PARAMETERS, only
from fedstill.core.message import part
from fedstill.core.protocols import Reply
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.tasks.classification import Classification

from .sites import Site, build, returned

SAMPLES = [5, 30, 11, 7, 23]
ROUNDS = 4
Arrays = list[np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def _nobody_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")


class Ours:
    """A method's server, which hears made-up models.

    In double precision, as both sides compute in what they are given: where the adaptive rules divide by little more
    than tau, the rounding of single precision comes out fifty times as large (eta / tau).
    """

    def __init__(self, name: str, model: str = "cnn-bn", **settings: object) -> None:
        task = Classification(("a", "b", "c"), (1, 8, 8), (model,))
        self.site = Site(build(name, task, **settings), task, [])
        self.site.server = {name: _double(tensor) for name, tensor in self.site.server.items()}
        self.turn = self.site.context(0)

    @property
    def weights(self) -> dict[str, Tensor]:
        return only(PARAMETERS, part(self.site.server, "model/"))

    def hear(self, replies: list[Reply]) -> None:
        self.site.server = self.site.method.aggregate(self.site.server, replies, self.turn)


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def drawn(weights: Tensors, round: int, clients: int) -> list[dict[str, Tensor]]:
    """Models around the present one; one client in three moves far."""
    draws = Streams(9).draw("flower", round)

    def moved(tensor: Tensor, far: float) -> Tensor:
        return tensor + far * torch.from_numpy(draws.standard_normal(tensor.shape))

    return [
        {name: moved(tensor, 0.5 if client % 3 == 0 else 0.01) for name, tensor in weights.items()}
        for client in range(clients)
    ]


def arrays(weights: Tensors) -> Arrays:
    return [tensor.numpy().copy() for tensor in weights.values()]


def assert_same_rule(
    ours: Ours, make: Callable[[Any], Any], clients: int = 5, first: int = 1, samples: Sequence[int] = SAMPLES
) -> None:
    """Play rounds with both; Flower counts them from `first`."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

    strategy = make(ndarrays_to_parameters(arrays(ours.weights)))
    for round in range(ROUNDS):
        models = drawn(ours.weights, round, clients)
        results = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays(model)), samples[client], {}))
            for client, model in enumerate(models)
        ]
        merged, _ = strategy.aggregate_fit(first + round, results, [])
        ours.hear(returned(ours.site.server, *models, samples=samples))
        for (name, mine), theirs in zip(ours.weights.items(), parameters_to_ndarrays(merged), strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-9, atol=1e-12, err_msg=f"{name}, round {round}")


def test_fedavg() -> None:
    from flwr.server.strategy import FedAvg

    assert_same_rule(Ours("fedavg"), lambda start: FedAvg())


@pytest.mark.parametrize("clients", [5, 4])
def test_fedmedian(clients: int) -> None:
    from flwr.server.strategy import FedMedian

    assert_same_rule(Ours("fedmedian"), lambda start: FedMedian(), clients)


@pytest.mark.parametrize(("eta", "beta"), [(1.0, 0.9), (0.3, 0.5), (1.0, 0.0)])
def test_fedavgm(eta: float, beta: float) -> None:
    """Flower writes w - eta (beta v + (w - mean)): the sign of v is the other, the step is the same."""
    from flwr.server.strategy import FedAvgM

    def make(start: Any) -> Any:
        return FedAvgM(server_learning_rate=eta, server_momentum=beta, initial_parameters=start)

    assert_same_rule(Ours("fedavgm", eta=eta, beta=beta), make)


ADAPTIVE = {"eta": 0.05, "beta1": 0.9, "beta2": 0.95, "tau": 1e-3}


def test_fedyogi() -> None:
    """Flower starts the second moment at zero, as preset `seed` does; the publication starts it at tau^2."""
    from flwr.server.strategy import FedYogi

    def make(start: Any) -> Any:
        return FedYogi(initial_parameters=start, eta=0.05, beta_1=0.9, beta_2=0.95, tau=1e-3)

    assert_same_rule(Ours("fedyogi", preset="seed", **ADAPTIVE), make)


def test_fedadagrad() -> None:
    """Flower's Adagrad has no first moment (beta1 = 0) and starts the second at zero."""
    from flwr.server.strategy import FedAdagrad

    def make(start: Any) -> Any:
        return FedAdagrad(initial_parameters=start, eta=0.05, tau=1e-3)

    assert_same_rule(Ours("fedadagrad", preset="seed", eta=0.05, beta1=0.0, tau=1e-3), make)


def test_fedadam_without_its_bias_correction() -> None:
    """Flower multiplies the rate by sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)) in round t, a correction that the
    publication leaves out (and Adam's own would have t, not t + 1). It tends to 1 with t: counted from round 2,000 on,
    the two are the same."""
    from flwr.server.strategy import FedAdam

    def make(start: Any) -> Any:
        return FedAdam(initial_parameters=start, eta=0.05, beta_1=0.9, beta_2=0.95, tau=1e-3)

    assert_same_rule(Ours("fedadam", preset="seed", **ADAPTIVE), make, first=2000)
    with pytest.raises(AssertionError):
        assert_same_rule(Ours("fedadam", preset="seed", **ADAPTIVE), make)


@pytest.mark.parametrize("clients", [5, 4])
def test_trimmed_mean(clients: int) -> None:
    """With a quarter, one is cut off at either end of four or five; the rest count alike in both."""
    from flwr.server.strategy import FedTrimmedAvg

    assert_same_rule(Ours("trimmed-mean", beta=0.25), lambda start: FedTrimmedAvg(beta=0.25), clients)


def test_krum() -> None:
    """On a model without BatchNorm, where our score is the published one, and nothing else."""
    from flwr.server.strategy import Krum

    assert_same_rule(Ours("krum", "cnn", attackers=1), lambda start: Krum(num_malicious_clients=1))


def test_multi_krum_without_weights() -> None:
    """Flower weighs the models it keeps by the samples their clients claim; the publication does not, nor do we."""
    from flwr.server.strategy import Krum

    def make(start: Any) -> Any:
        return Krum(num_malicious_clients=1, num_clients_to_keep=3)

    assert_same_rule(Ours("multi-krum", "cnn", attackers=1, keep=3), make, samples=[8] * 5)
