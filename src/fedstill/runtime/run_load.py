"""How much work a run has, counted from its settings, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fedstill.runtime.experiment import Experiment


@dataclass(frozen=True)
class StepCost:
    """CPU seconds of parts of a run, and the bytes that its process takes at most."""

    step: float  # a client's step on one batch
    client: float  # a client in a round, beside its steps
    sample: float  # of test data, for one evaluated model
    once: float  # a run, beside its rounds
    memory: int
    batch: float = 0.0  # a client's batch in a round, beside the steps on it: of what it learns from its peers
    server: float = 0.0  # a round at the server, however many clients there are: of distillation on shared samples


@dataclass(frozen=True)
class Load:
    """How much of each a run has."""

    steps: float
    clients: float
    samples: float
    test: int
    batches: float = 0.0  # of the clients in a round, however many steps are taken on each
    rounds: int = 0

    def seconds(self, cost: StepCost) -> float:
        """CPU seconds of one core."""
        ended = 3 * self.test * cost.sample  # predictions of the last and the best model, and their metrics
        trained = self.steps * cost.step + self.batches * cost.batch + self.clients * cost.client
        return trained + self.rounds * cost.server + self.samples * cost.sample + cost.once + ended


def held_samples(experiment: Experiment, train: int) -> float:
    """The training samples of a client, on average."""
    return train * (1 - experiment.validation) / experiment.clients


def load_of(experiment: Experiment, train: int, test: int, personal: bool) -> Load:
    """Counted from the settings; clients hold equal shares, and batteries do not run empty.

    >>> from fedstill.runtime.assemble import make_experiment
    >>> made = make_experiment({"method": "fedavg", "clients": 4, "rounds": 2, "training": {"epochs": 3, "batch": 10}})
    >>> load_of(made, train=100, test=50, personal=False)
    Load(steps=72.0, clients=8.0, samples=100.0, test=50, batches=24.0, rounds=2)
    """
    training = experiment.training
    held = held_samples(experiment, train)
    cohort = experiment.participation.settings.cohort(experiment.clients)  # type: ignore[attr-defined]
    computed = experiment.dropout.settings.computed()  # type: ignore[attr-defined]
    in_rounds = cohort * experiment.rounds * computed
    batches = in_rounds * max(1, ceil(held / training.batch))
    models = 1 + (experiment.clients if personal else 0)
    evaluated = -(-experiment.rounds // experiment.evaluate_every)
    samples = evaluated * models * (test + train * experiment.validation)
    return Load(batches * training.epochs, in_rounds, samples, test, batches, experiment.rounds)
