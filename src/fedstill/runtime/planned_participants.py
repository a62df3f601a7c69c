"""Who may take part in an experiment's rounds: sampling, dropout and what slices add, checked before any work."""

from __future__ import annotations

from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.core.streams import Streams
from fedstill.participation.dropout import Dropout
from fedstill.participation.policies import Policy
from fedstill.participation.round_participation import Participants
from fedstill.runtime.experiment import Experiment
from fedstill.tasks.classification import Classification


def make_participants(experiment: Experiment, method: Method, labelled: bool) -> Participants:
    """The parts that decide who takes part; with batteries, what a pass of each model costs a device."""
    policy, dropout = experiment.participation.settings, experiment.dropout.settings
    assert isinstance(policy, Policy)
    assert isinstance(dropout, Dropout)
    if experiment.min_replies > experiment.clients:
        raise InputError(f"min_replies is {experiment.min_replies}, but there are only {experiment.clients} clients")
    task, costs = method.task, {}
    assert isinstance(task, Classification)
    added: dict[str, Any] = {one.participation: one for one in experiment.sections().values() if one.participation}
    if "devices" in added:
        from fedstill.models.cost import flops  # which imports models of point clouds, to count their searches

        costs = {name: flops(method.at_client(name), task.shape) for name in task.architectures}
    participants = Participants(
        policy,
        dropout,
        added.get("devices"),
        added.get("clusters"),
        len(task.classes),
        costs,
        experiment.training.epochs,
    )
    if experiment.privacy.name != "none" and (participants.exchanges() or policy.reads_losses):
        raise InputError(
            "privacy counts what leaves in training, and this participation asks clients for more: choose another"
            " policy, and leave `clusters` out"
        )
    if experiment.secure is not None and (participants.exchanges() or policy.reads_losses):
        raise InputError(
            "secure aggregation shows the server only sums, and this participation asks single clients for more: choose"
            " another policy, and leave `clusters` out"
        )
    dropout.check_rounds(method.rounds(experiment.rounds))
    given = {"labels": labelled, "shared-model": bool(method.models(method.start(Streams(0))))}
    participants.check(experiment.clients, [name for name, there in given.items() if there])
    return participants
