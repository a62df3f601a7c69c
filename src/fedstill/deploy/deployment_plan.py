"""Plans without access to all the data: the server's, and a site's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from fedstill.core.dataset import Proxy
from fedstill.core.keyring import Keyring
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.data.bundle import Bundle, Kind
from fedstill.data.data_kinds import data_kinds
from fedstill.deploy.site_registry import SiteFacts
from fedstill.runtime.defaults import point_features, settled
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.identity import fingerprint_of, identify
from fedstill.runtime.initial_weights import with_initial
from fedstill.runtime.method_inputs import PlanContext
from fedstill.runtime.on_site_evaluation import OnSiteEvaluator
from fedstill.runtime.plan import (
    Plan,
    check_augmentation,
    check_on_site,
    make_method,
    task_of_kind,
)
from fedstill.runtime.planned_participants import make_participants
from fedstill.runtime.simulated_clients import parted
from fedstill.tasks.task_choice import task_kind


@dataclass(frozen=True)
class DataFacts:
    """The label space that all sites share: enough to construct a task without data."""

    classes: tuple[str, ...]
    kind: Kind
    shape: tuple[int, ...]
    point_labels: bool
    labelled: bool
    several_labels: bool = False

    @classmethod
    def of(cls, enrolled: Sequence[SiteFacts]) -> DataFacts:
        first = enrolled[0]
        shape = (
            first.shape
            if not data_kinds[first.kind].points
            else (min(one.shape[0] for one in enrolled), *first.shape[1:])
        )
        labelled = all(facts.labelled for facts in enrolled)
        return cls(first.classes, first.kind, shape, first.point_labels, labelled, first.several_labels)


def settled_for(experiment: Experiment, enrolled: Sequence[SiteFacts]) -> tuple[Experiment, DataFacts]:
    """The experiment with every default filled in for the sites' data, and what that data is about."""
    question = DataFacts.of(enrolled)
    experiment = settled(experiment, question.kind, question.point_labels, question.shape[0], question.several_labels)
    if experiment.points is not None:
        question = replace(question, shape=(experiment.points, *_columns(experiment, question)))
    return experiment, question


def _columns(experiment: Experiment, question: DataFacts) -> tuple[int, ...]:
    """The columns of points with the features that the experiment asks for; sites add them to their data."""
    columns = data_kinds[question.kind].columns
    features = point_features(experiment)
    return question.shape[1:] if columns is None or not features else (columns(features),)


def sites_plan(
    experiment: Experiment,
    question: DataFacts,
    profiles: Sequence[Profile],
    fingerprint: str,
    own: Bundle | None = None,
    data_root: Path | None = None,
    may_share: Callable[[str], None] | None = None,
    initial: Tensors | None = None,
    device: str = "cpu",
    own_query: tuple[str, ...] | None = None,
    keyring: Keyring | None = None,
) -> Plan:
    """The plan of a settled experiment: the server's, which has no data, or that of a site with its `own`."""
    assert experiment.model is not None
    several = question.several_labels
    kind = task_kind(question.kind, question.point_labels, experiment.model, "the sites' data", several)
    check_augmentation(experiment, question.kind, question.shape)
    task = replace(task_of_kind(kind, experiment, question.classes, question.shape, device), initial=initial or {})
    streams = Streams(experiment.seed)
    context = PlanContext(experiment, task, question.kind, data_root, may_read=may_share, own_query=own_query)
    method, proxy = make_method(context, streams, question.labelled)
    check_on_site(experiment, method)
    fingerprint = fingerprint_of(experiment, fingerprint, task, shared="" if proxy is None else proxy.digest)
    return Plan(
        experiment,
        identify(experiment, fingerprint),
        fingerprint,
        task,
        method,
        make_participants(experiment, method, question.labelled),
        list(profiles),
        _NoClients(proxy) if own is None else OwnClient(task, own, experiment.validation, proxy, keyring),
        OnSiteEvaluator.of(experiment, method, task, streams),
        streams,
        [],
        None,
    )


def server_plan(
    experiment: Experiment, enrolled: Sequence[SiteFacts], data_root: Path | None = None, device: str = "cpu"
) -> tuple[Plan, DataFacts]:
    """The server's plan, from what the sites say of their data; client k is the k-th of them.

    What a site keeps to select a round by it keeps of its own rows, and only it can say how many are left: see
    `with_samples`.
    """
    experiment, question = settled_for(experiment, enrolled)
    experiment, initial = with_initial(experiment, question.shape, len(question.classes))
    fingerprint = sha256(json.dumps([facts.fingerprint for facts in enrolled]).encode()).hexdigest()
    models = experiment.architectures
    profiles = [Profile(client, facts.samples, models[client]) for client, facts in enumerate(enrolled)]
    plan = sites_plan(experiment, question, profiles, fingerprint, data_root=data_root, initial=initial, device=device)
    return plan, question


def with_samples(plan: Plan, samples: Sequence[int]) -> Plan:
    """The plan with each client's number of training samples as its site reports it."""
    profiles = [replace(who, samples=count) for who, count in zip(plan.profiles, samples, strict=True)]
    plan.method.check_profiles(profiles)
    return replace(plan, profiles=profiles)


def shared_digest(plan: Plan) -> str:
    """The digest of the samples that server and sites share, as they are on this machine; empty if they share none."""
    assert isinstance(plan.clients, OwnClient | _NoClients)
    return "" if plan.clients.proxy is None else plan.clients.proxy.digest


@dataclass(frozen=True)
class _NoClients:
    """A server constructs no clients: each site constructs its own."""

    proxy: Proxy | None  # samples that everybody has

    def __call__(self, profile: Profile, state: Tensors, context: RoundContext) -> Client:
        raise NotImplementedError("clients of a deployment are made at their sites")


@dataclass(frozen=True)
class OwnClient:
    """A site has one client, on all of its data."""

    task: Task
    bundle: Bundle
    share: float  # kept to select a round by
    proxy: Proxy | None  # samples that everybody has
    keyring: Keyring | None = None  # its secrets, with secure aggregation

    def __call__(self, profile: Profile, state: Tensors, context: RoundContext) -> Client:
        data, validation = parted(self.bundle.train, self.share, context.streams.seed, profile.id)
        streams = context.streams.at("client", profile.id)
        test = self.bundle.test
        return Client(
            profile,
            self.task,
            data,
            streams,
            state,
            test=test,
            proxy=self.proxy,
            validation=validation,
            keyring=self.keyring,
        )
