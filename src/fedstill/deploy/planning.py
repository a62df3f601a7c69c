"""Plans where nobody has all the data: the server's, and a site's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from fedstill.config import Experiment
from fedstill.core.plugins import loaded_plugins
from fedstill.core.protocols import Client, Profile, Turn
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.data.bundle import Bundle
from fedstill.deploy.roster import SiteFacts
from fedstill.federation.clients import parted
from fedstill.federation.on_site import OnSiteEvaluator
from fedstill.federation.plan import (
    Plan,
    check_needs,
    check_on_site,
    chosen_policy,
    make_method,
    settled,
    task_of_kind,
)
from fedstill.tasks.segmentation import task_kind


@dataclass(frozen=True)
class Question:
    """What all sites' data is about: enough to make a task without any of it."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    point_labels: bool
    labelled: bool

    @classmethod
    def of(cls, roster: Sequence[SiteFacts]) -> Question:
        first = roster[0]
        shape = (min(facts.shape[0] for facts in roster), *first.shape[1:]) if first.kind == "cloud" else first.shape
        return cls(first.classes, shape, first.point_labels, all(facts.labelled for facts in roster))


def settled_for(experiment: Experiment, roster: Sequence[SiteFacts]) -> tuple[Experiment, Question]:
    """The experiment with every default filled in for the sites' data, and what that data is about."""
    question, kind = Question.of(roster), roster[0].kind
    experiment = settled(experiment, kind, question.point_labels, question.shape[0])
    if experiment.points is not None:
        question = replace(question, shape=(experiment.points, *question.shape[1:]))
    return experiment, question


def sites_plan(
    experiment: Experiment,
    question: Question,
    profiles: Sequence[Profile],
    fingerprint: str,
    own: Bundle | None = None,
) -> Plan:
    """The plan of a settled experiment: the server's, which has no data, or that of a site with its `own`."""
    assert experiment.model is not None
    kind = task_kind(question.point_labels, experiment.model, "the sites' data")
    task = task_of_kind(kind, experiment, question.classes, question.shape)
    streams = Streams(experiment.seed)
    method = make_method(experiment, task, streams)
    check_needs(method, experiment, question.labelled)
    check_on_site(experiment, method)
    return Plan(
        experiment,
        experiment.identity(fingerprint, loaded_plugins().values()),
        fingerprint,
        task,
        method,
        chosen_policy(experiment),
        list(profiles),
        _NoClients() if own is None else OwnClient(task, own, experiment.validation),
        OnSiteEvaluator(task, streams, method.rounds(experiment.rounds), bool(experiment.validation)),
        streams,
        [],
        None,
    )


def server_plan(experiment: Experiment, roster: Sequence[SiteFacts]) -> tuple[Plan, Question]:
    """The server's plan, from what the sites say of their data; client k is the k-th of them.

    What a site keeps to select a round by it keeps of its own rows, and only it can say how many are left: see
    `with_samples`.
    """
    experiment, question = settled_for(experiment, roster)
    fingerprint = sha256(json.dumps([facts.fingerprint for facts in roster]).encode()).hexdigest()
    architecture = str(experiment.model)
    profiles = [Profile(client, facts.samples, architecture) for client, facts in enumerate(roster)]
    return sites_plan(experiment, question, profiles, fingerprint), question


def with_samples(plan: Plan, samples: Sequence[int]) -> Plan:
    """The plan with as many training samples for each client as its site says it has left."""
    profiles = [replace(who, samples=count) for who, count in zip(plan.profiles, samples, strict=True)]
    return replace(plan, profiles=profiles)


class _NoClients:
    """A server has no clients to make: sites make their own."""

    def __call__(self, profile: Profile, state: Tensors, turn: Turn) -> Client:
        raise NotImplementedError("clients of a deployment are made at their sites")


@dataclass(frozen=True)
class OwnClient:
    """A site has one client, over all the data it has."""

    task: Task
    bundle: Bundle
    share: float  # kept to select a round by

    def __call__(self, profile: Profile, state: Tensors, turn: Turn) -> Client:
        data, validation = parted(self.bundle.train, self.share, turn.streams.seed, profile.id)
        streams = turn.streams.at("client", profile.id)
        return Client(profile, self.task, data, streams, state, test=self.bundle.test, validation=validation)
