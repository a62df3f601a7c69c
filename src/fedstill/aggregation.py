"""Server rules on plain `state_dict`s, for a federated program without Fedstill's loop.

>>> import torch
>>> clients = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}]
>>> average(clients, weights=[10, 20])
{'w': tensor([3.])}
>>> rule = FedAvgM(lr=1.0, momentum=0.5)
>>> model = {"w": torch.tensor([0.0])}
>>> for _ in range(2):  # both rounds move by the mean, 2.5; the second also by half the first
...     model = rule(model, [{"w": model["w"] + 1.0}, {"w": model["w"] + 4.0}])
>>> model
{'w': tensor([6.2500])}

The rules are those of the methods of the same names and share their code. Only parameters go through a rule. Running
statistics of BatchNorm are averaged and integer counters (`num_batches_tracked`) take the maximum and stay integers.
The robust rules (`median`, `trimmed_mean`, `krum`, `multi_krum`, `clipped_mean`) take the median of counters, and of
statistics too unless their own rule covers them.

A `state_dict` does not tell parameters from buffers. Pass `model=`, any module of the same architecture, to tell them
exactly. Without it, floats are parameters unless they are called `running_mean` or `running_var` beside another tensor
of the same normalisation layer; other float buffers are then treated as parameters.

Sums run in double precision on the CPU, in the order of the clients given. Results have the types and devices of the
global state, or else of the first client's state. Values are not checked: refuse models that are not finite before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from fedstill.core.settings import make_settings
from fedstill.methods import adaptive, fedavg, fedavgm, fedmedian, fednova
from fedstill.methods import clipped_mean as clipping
from fedstill.methods import krum as krum_rules
from fedstill.methods import trimmed_mean as trimming
from fedstill.methods.server_rule import ServerRule

__all__ = [
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedYogi",
    "average",
    "clipped_mean",
    "krum",
    "median",
    "multi_krum",
    "normalised_average",
    "trimmed_mean",
]

State = Mapping[str, Tensor]


def average(
    states: Sequence[State], weights: Sequence[float] | None = None, *, model: nn.Module | None = None
) -> dict[str, Tensor]:
    """The weighted mean of models (FedAvg); without weights, all count alike.

    *Communication-Efficient Learning of Deep Networks from Decentralized Data*, McMahan et al., 2017,
    https://arxiv.org/abs/1602.05629
    """
    return _apply(fedavg.FedAvg, model, states, weights)


def median(states: Sequence[State], *, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The coordinate-wise median; of an even number of models, the mean of the middle two.

    *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, Yin et al., 2018,
    https://arxiv.org/abs/1803.01498

    >>> import torch
    >>> median([{"w": torch.tensor([value])} for value in (1.0, 2.0, 900.0)])
    {'w': tensor([2.])}
    """
    return _apply(fedmedian.FedMedian, model, states)


def trimmed_mean(states: Sequence[State], trim: float = 0.2, *, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The mean of each coordinate without the fraction `trim` of the smallest and as many of the largest values.

    *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, Yin et al., 2018,
    https://arxiv.org/abs/1803.01498

    >>> import torch
    >>> trimmed_mean([{"w": torch.tensor([value])} for value in (1.0, 9.0, 2.0, 3.0, -90.0)], trim=0.2)
    {'w': tensor([2.])}
    """
    return _apply(trimming.TrimmedMean, model, states, beta=trim)


def krum(states: Sequence[State], attackers: int | None = None, *, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The model that is closest to its nearest neighbours (Krum), among n >= 2 attackers + 3 models.

    *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, Blanchard et al., 2017,
    https://arxiv.org/abs/1703.02757

    Without `attackers` it is as many as the number of models allows; of fewer than three models it is the median.

    >>> import torch
    >>> krum([{"w": torch.tensor([value])} for value in (0.0, 1.0, 2.0, 4.0, 100.0)], attackers=1)
    {'w': tensor([1.])}
    """
    krum_rules.check_attackers(attackers, len(states))
    return _apply(krum_rules.Krum, model, states, attackers=attackers)


def multi_krum(
    states: Sequence[State],
    attackers: int | None = None,
    keep: int | None = None,
    *,
    model: nn.Module | None = None,
) -> dict[str, Tensor]:
    """The mean of the `keep` models that Krum prefers; by default all but the attackers.

    >>> import torch
    >>> multi_krum([{"w": torch.tensor([value])} for value in (0.0, 1.0, 2.0, 4.0, 100.0)], attackers=1)
    {'w': tensor([1.7500])}
    """
    krum_rules.check_attackers(attackers, len(states))
    return _apply(krum_rules.MultiKrum, model, states, attackers=attackers, keep=keep)


def clipped_mean(
    global_state: State,
    states: Sequence[State],
    norm: float | Literal["median"] = "median",
    *,
    model: nn.Module | None = None,
) -> dict[str, Tensor]:
    """The mean of the clients' updates, each clipped to a norm: a number, or the median norm of these updates.

    *Can You Really Backdoor Federated Learning?*, Sun et al., 2019, https://arxiv.org/abs/1911.07963

    >>> import torch
    >>> clipped_mean({"w": torch.zeros(1)}, [{"w": torch.tensor([1.0])}, {"w": torch.tensor([90.0])}], norm=2.0)
    {'w': tensor([1.5000])}
    """
    return _apply(clipping.ClippedMean, model, states, start=global_state, norm=norm)


def normalised_average(
    global_state: State,
    states: Sequence[State],
    steps: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    momentum: float = 0.0,
    model: nn.Module | None = None,
) -> dict[str, Tensor]:
    """FedNova: each update is divided by the steps its client took, and their mean multiplied by the mean steps.

    *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization*, Wang et al., 2020,
    https://arxiv.org/abs/2007.07481

    `momentum` is that of the clients' SGD, if it starts from zero in each round.

    >>> import torch
    >>> clients = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([9.0])}]
    >>> normalised_average({"w": torch.zeros(1)}, clients, steps=[1, 3])  # 2 steps of (1 + 3) / 2
    {'w': tensor([4.])}
    """
    return _apply(fednova.FedNova, model, states, weights, global_state, steps, momentum)


class _ServerOptimiser:
    """A server optimiser: called once a round with the global model, the clients' models and their weights."""

    def __init__(self, kind: type[fedavg.FedAvg], model: nn.Module | None, **settings: object) -> None:
        self._rule = _rule(kind, model, 0.0, settings)

    def __call__(
        self, global_state: State, client_states: Sequence[State], weights: Sequence[float] | None = None
    ) -> dict[str, Tensor]:
        """The next global `state_dict`; without weights, all clients count alike."""
        return self._rule(global_state, client_states, weights)

    def state_dict(self) -> dict[str, Tensor]:
        """The moments of the optimiser, to be saved with the model; empty before the first round."""
        return dict(self._rule.memory)

    def load_state_dict(self, state: State) -> None:
        """Continue with saved moments."""
        self._rule.memory = dict(state)


class FedAvgM(_ServerOptimiser):
    """FedAvg with server momentum: v <- momentum v + (mean - w), w <- w + lr v.

    *Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification*, Hsu, Qi and Brown,
    2019, https://arxiv.org/abs/1909.06335
    """

    def __init__(self, lr: float = 1.0, momentum: float = 0.9, *, model: nn.Module | None = None) -> None:
        super().__init__(fedavgm.FedAvgM, model, eta=lr, beta=momentum)


class FedAdam(_ServerOptimiser):
    """Adam as the server optimiser, without bias correction, as published; the second moment starts at tau^2.

    *Adaptive Federated Optimization*, Reddi et al., 2021, https://arxiv.org/abs/2003.00295

    >>> import torch
    >>> rule = FedAdam(lr=1.0, beta1=0.0, beta2=0.0, tau=1.0)  # w + 3 / (sqrt(9) + 1)
    >>> rule({"w": torch.zeros(1)}, [{"w": torch.tensor([3.0])}])
    {'w': tensor([0.7500])}
    """

    def __init__(
        self,
        lr: float = 0.05,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        *,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(adaptive.FedAdam, model, eta=lr, beta1=beta1, beta2=beta2, tau=tau)


class FedYogi(_ServerOptimiser):
    """Yogi as the server optimiser: `FedAdam` with bounded changes of the second moment."""

    def __init__(
        self,
        lr: float = 0.05,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        *,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(adaptive.FedYogi, model, eta=lr, beta1=beta1, beta2=beta2, tau=tau)


class FedAdagrad(_ServerOptimiser):
    """Adagrad as the server optimiser: `FedAdam` with a second moment that accumulates."""

    def __init__(
        self, lr: float = 0.05, beta1: float = 0.9, tau: float = 1e-3, *, model: nn.Module | None = None
    ) -> None:
        super().__init__(adaptive.FedAdagrad, model, eta=lr, beta1=beta1, tau=tau)


def _apply(
    kind: type[fedavg.FedAvg],
    model: nn.Module | None,
    states: Sequence[State],
    weights: Sequence[float] | None = None,
    start: State | None = None,
    steps: Sequence[int] | None = None,
    momentum: float = 0.0,
    **settings: object,
) -> dict[str, Tensor]:
    """One use of a rule that remembers nothing."""
    current = start if start is not None else states[0] if states else {}
    return _rule(kind, model, momentum, settings)(current, states, weights, steps)


def _rule(
    kind: type[fedavg.FedAvg], model: nn.Module | None, momentum: float, settings: Mapping[str, object]
) -> ServerRule:
    return ServerRule(kind, make_settings(kind.Options, settings, kind.__name__), model, momentum)
