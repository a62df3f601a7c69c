"""Who takes part, from an experiment: refused here where its parts do not go together."""

from __future__ import annotations

from fedstill.config import Experiment
from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.core.streams import Streams
from fedstill.models.cost import flops
from fedstill.participation import Dropout, Participants, Policy
from fedstill.participation.power_of_choice import PowerOfChoice
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
    if experiment.fleet is not None:
        costs = {name: flops(method.at_client(name), task.shape) for name in task.architectures}
    participants = Participants(
        policy, dropout, experiment.fleet, experiment.clusters, len(task.classes), costs, experiment.training.epochs
    )
    if experiment.privacy.name != "none" and (participants.exchanges() or isinstance(policy, PowerOfChoice)):
        raise InputError(
            "privacy counts what leaves in training, and this participation asks clients for more: choose another"
            " policy, and leave `clusters` out"
        )
    given = {"labels": labelled, "shared-model": bool(method.models(method.start(Streams(0))))}
    participants.check(experiment.clients, [name for name, there in given.items() if there])
    return participants
