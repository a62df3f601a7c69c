"""From an experiment to its parts: everything that can be refused is refused here, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedstill.core.dataset import Dataset, Proxy, Subset, class_counts, column, has_several_labels
from fedstill.core.errors import InputError
from fedstill.core.hardware import check_device
from fedstill.core.origins import is_outside
from fedstill.core.protocols import ClientFactory, Method, Profile
from fedstill.core.records import TeacherRecord
from fedstill.core.streams import Streams
from fedstill.data.augmentation import Augmentation
from fedstill.data.bundle import Bundle
from fedstill.data.data_settings import identity_name
from fedstill.data.lookup import as_named, load
from fedstill.data.partitions import Shards, group_labels, partition, partitions
from fedstill.data.point_labels import groups_of, has_point_labels, partition_labels, shape_kinds
from fedstill.data.splits import split_validation
from fedstill.methods import methods
from fedstill.methods.wrappers.choices import Aggregation, Attack, Mitigation, Privacy
from fedstill.models import models
from fedstill.models.model_outputs import check_outputs, check_trainable
from fedstill.models.own_models import check_features
from fedstill.participation.dropout import Dropout
from fedstill.participation.policies import Policy
from fedstill.participation.round_participation import Participants
from fedstill.runtime.defaults import resolve
from fedstill.runtime.evaluation import CentralEvaluator
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.identity import Identity, Known, fingerprint_of, identify
from fedstill.runtime.initial_weights import with_initial
from fedstill.runtime.method_inputs import PlanContext, inputs_for
from fedstill.runtime.on_site_evaluation import OnSiteEvaluator
from fedstill.runtime.planned_participants import make_participants
from fedstill.runtime.round_ranking import check_ranking
from fedstill.runtime.simulated_clients import SimulatedClients, SimulatedProfiles, parted
from fedstill.runtime.teacher_loader import TeacherLoader
from fedstill.runtime.training_checks import check_training, trained_as
from fedstill.tasks.classification import Classification
from fedstill.tasks.task_choice import task_kind, tasks


@dataclass(frozen=True)
class Plan:
    """A run that can be started: its experiment with every default filled in, and its parts."""

    experiment: Experiment
    identified: Identity
    fingerprint: str  # of the data
    task: Classification
    method: Method
    participants: Participants
    profiles: Sequence[Profile]
    clients: ClientFactory
    evaluator: CentralEvaluator | OnSiteEvaluator
    streams: Streams
    teachers: list[TeacherRecord]  # each one's name and metrics
    ceiling: float | None  # what accuracy on the proxy's labels its teachers leave room for, where that is known

    @property
    def identity(self) -> str:
        return self.identified.name

    @property
    def rounds(self) -> int:
        return self.method.rounds(self.experiment.rounds)

    @property
    def folder_name(self) -> str:
        data = "".join(letter if letter.isalnum() else "-" for letter in Path(identity_name(self.experiment.data)).stem)
        return f"{self.experiment.method.name}-{data}-{self.identity}"


@dataclass(frozen=True)
class Simulation(Plan):
    """A plan whose clients are cut from one data set, which is here."""

    clients: SimulatedClients
    bundle: Bundle


def make_plan(
    experiment: Experiment,
    data_root: Path | None = None,
    device: str = "cpu",
    *,
    bundle: Bundle | None = None,
    staff: TeacherLoader | None = None,
    known: Known | None = None,
) -> Simulation:
    """The plan of an experiment; data that is loaded already and teachers that others know can be handed over."""
    check_device(device)
    bundle = load(experiment.data, data_root) if bundle is None else as_named(bundle, experiment.data)
    experiment, bundle = resolve(experiment, bundle)
    check_sites(experiment, bundle)
    experiment, initial = with_initial(experiment, bundle.shape, len(bundle.classes))
    task = replace(make_task(experiment, bundle, device), initial=initial)
    task.check_data(bundle.train, bundle.test, experiment.data)
    streams = Streams(experiment.seed)
    staff = staff or TeacherLoader()
    experiment, teachers = staff.load(experiment, bundle, device)
    labelled = bundle.train.labels() is not None
    train, validation = held_out(experiment, bundle, streams)
    context = PlanContext(experiment, task, bundle.kind, data_root, teachers, validation=validation)
    method, shared = make_method(context, streams, labelled)
    train, proxy = method.training_data(train, bundle, lambda name: _load_proxy(name, data_root), streams)
    participants = make_participants(experiment, method, labelled)
    fingerprint = fingerprint_of(experiment, bundle.fingerprint(), task, proxy, "" if shared is None else shared.digest)
    kinds, count = partition_labels(experiment.partition.name, train, len(bundle.classes))
    cut = experiment.partition.settings.model_dump()
    shards = partition(
        experiment.partition.name, kinds, experiment.clients, count, streams, cut, groups=groups_of(train)
    )
    on_site = experiment.evaluation == "on-site"
    if on_site:
        check_on_site(experiment, method)

    def counts(client: int) -> Tensor:
        return class_counts(shards.of(train, client), len(bundle.classes))

    if method.tunes and validation is None:
        raise InputError("tune needs samples that clients do not have: set validation=0.1, and evaluation=central")
    share = experiment.validation if on_site else 0.0
    sizes = shards.sizes()
    if share:
        parts = [shards.of(train, client) for client in range(experiment.clients)]
        sizes = torch.tensor(
            [len(parted(part, share, experiment.seed, client)[0]) for client, part in enumerate(parts)]
        )
    profiles = SimulatedProfiles(sizes, experiment.architectures)
    method.check_profiles(profiles)
    return Simulation(
        experiment,
        identify(experiment, fingerprint, known, bundle.unknown),
        bundle.fingerprint(),
        task,
        method,
        participants,
        profiles,
        SimulatedClients(
            task,
            train,
            shards,
            _test_shards(experiment, bundle, train, kinds, streams) if on_site else None,
            share,
            shared,
            validation if method.tunes else None,
        ),
        OnSiteEvaluator.of(experiment, method, task, streams)
        if on_site
        else CentralEvaluator(
            task, bundle.test, validation, counts, bundle.site_names, experiment.partition.name == "sites"
        ),
        streams,
        staff.examine(experiment, teachers, task, bundle, train),
        staff.ceiling(experiment, teachers, method, task, train),
        bundle,
    )


def make_task(experiment: Experiment, bundle: Bundle, device: str = "cpu") -> Classification:
    """The task of an experiment on a data set; a model that cannot read that data is refused."""
    assert experiment.model is not None
    points, every = has_point_labels(bundle.train), dict.fromkeys(experiment.architectures)
    several = has_several_labels(bundle.train)
    kinds = [task_kind(bundle.kind, points, model, experiment.data, several) for model in every]
    check_augmentation(experiment, bundle.kind, bundle.shape)
    return task_of_kind(kinds[0], experiment, bundle.classes, bundle.shape, device)


def task_of_kind(
    kind: type[Classification],
    experiment: Experiment,
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    device: str = "cpu",
) -> Classification:
    assert experiment.model is not None
    augmentation = _augmentation(experiment)
    task = kind(classes, shape, tuple(dict.fromkeys(experiment.architectures)), device, augmentation)
    task = trained_as(replace(task.configured(experiment), counts_scores=experiment.site_metrics), experiment.training)
    counted = experiment.evaluation == "central" or experiment.site_metrics
    whole = kind in (tasks["classification"], tasks["multilabel"])
    check_ranking(experiment.select_by, whole, counted)
    for architecture in task.architectures:
        model = task.build(architecture)
        if is_outside(models[architecture]) and not kind.finds_boxes:
            points, several = (issubclass(kind, tasks[name]) for name in ("segmentation", "multilabel"))
            check_outputs(model.cpu(), architecture, shape, len(classes), points, several)
            check_trainable(model, architecture)
    return task


def check_augmentation(experiment: Experiment, kind: str, shape: tuple[int, ...]) -> None:
    """Refuse an augmentation that is not for such data."""
    _augmentation(experiment).check(kind, shape)


def _augmentation(experiment: Experiment) -> Augmentation:
    assert experiment.augmentation is not None
    augmentation = experiment.augmentation.settings
    assert isinstance(augmentation, Augmentation)
    return augmentation


def make_method(context: PlanContext, streams: Streams, labelled: bool) -> tuple[Method, Proxy | None]:
    """The method with privacy around it, and around that whatever its clients may be up to; and the shared samples."""
    experiment, task, kind = context.experiment, context.task, context.method
    if "teaching" not in kind.wants and (context.teachers or experiment.objective is not None):
        raise InputError(f"{experiment.method.name} has no use for teachers or an objective: use `fedstill distill`")
    for name, section in experiment.sections().items():
        if section.task and not isinstance(task, tasks[section.task]):
            raise InputError(f"{name} is for models of {section.task}, and {experiment.model} is none: leave it out")
        section.check_experiment(experiment.clients, tuple(task.classes), kind)
    if isinstance(task, tasks["multilabel"]):
        _check_several(experiment, kind)
    check_architectures(experiment, task, kind)
    inputs = inputs_for(context)
    given = (inputs,) if kind.wants else ()
    method = kind(experiment.method.settings, task, experiment.training, *given)
    check_needs(method, experiment, labelled)
    check_training(method, task, experiment, labelled)
    return _wrapped(method, experiment, streams), inputs.get("shared samples")


def _check_several(experiment: Experiment, kind: type[Method]) -> None:
    """Refuse what is for samples with one class each."""
    if "several labels" in kind.refuses:
        raise InputError(kind.refuses["several labels"])
    for name in experiment.sections():
        raise InputError(f"{name} is for samples with one class each, and these have several: leave it out")
    if experiment.attack.name == "label-flip":
        raise InputError("attack=label-flip is for samples with one class each, and these have several: leave it out")


def _wrapped(method: Method, experiment: Experiment, streams: Streams) -> Method:
    """The method with privacy, dropout mitigation and attacks around it; refused where they do not go together."""
    policy, dropout = experiment.participation.settings, experiment.dropout.settings
    privacy, attack = experiment.privacy.settings, experiment.attack.settings
    mitigation = experiment.mitigation.settings
    assert isinstance(policy, Policy)
    assert isinstance(dropout, Dropout)
    assert isinstance(privacy, Privacy)
    assert isinstance(mitigation, Mitigation)
    assert isinstance(attack, Attack)
    policy.check(experiment.clients)
    method.check_cohort(policy.cohort(experiment.clients))
    if experiment.attack.name != "none" and "attack" in method.refuses:
        raise InputError(method.refuses["attack"])
    if privacy.needs_even_chances and not policy.even:
        raise InputError(
            "privacy.sampling=secret counts on every client having the same chance to be sampled, and these have not:"
            " leave it out, or give all the same availability"
        )
    if experiment.privacy.name != "none" and experiment.norm_limit is not None:
        raise InputError("norm_limit would refuse replies by their private content: leave it out, privacy clips them")
    if experiment.mitigation.name == "friend-substitution" and dropout.replace:
        raise InputError(
            "a dropped client would count twice, by its replacement and by its friend: leave dropout.replace out, or"
            " mitigation=friend-substitution"
        )
    if experiment.secure is not None:
        return _secured(method, experiment, policy.cohort(experiment.clients))
    if privacy.in_sums:
        raise InputError(
            f"privacy={experiment.privacy.name} adds noise to sums, of which the server must see nothing else: set"
            " secure=true, or choose privacy=client-level"
        )
    method = privacy.around(method, experiment.clients, policy.cohort(experiment.clients))
    method = mitigation.around(method, experiment.clients)
    return attack.around(method, experiment.clients, streams)


def _secured(method: Method, experiment: Experiment, cohort: int) -> Method:
    """The method with secure aggregation; refused with whatever needs single replies, or clients that come later."""
    dropout = experiment.dropout.settings
    assert isinstance(dropout, Dropout)
    assert experiment.secure is not None
    settings = experiment.secure.settings
    assert isinstance(settings, Aggregation)
    privacy = experiment.privacy.settings
    assert isinstance(privacy, Privacy)
    needs = {
        "mitigation": "the server makes up for single clients that drop out: leave mitigation out, or secure",
        "attack": "a simulated attack would pass the checks that clients make themselves: leave attack out, or secure",
    }
    for section, why in needs.items():
        if experiment.__dict__[section].name != "none":
            raise InputError(f"secure aggregation shows the server only sums, and with {section} {why}")
    if experiment.norm_limit is not None:
        raise InputError(
            "norm_limit measures single replies at the server, which sees only sums: set secure.norm in its place, with"
            " which each client checks its own update"
        )
    if dropout.replace:
        raise InputError(
            "replacement clients would come after the others have agreed on keys: leave dropout.replace out, or secure"
        )
    if privacy.in_sums or privacy.with_sums:
        method = privacy.around(method, experiment.clients, min(settings.needed(cohort), cohort))
    elif experiment.privacy.name != "none":
        raise InputError(
            "secure aggregation shows the server only sums, and privacy=client-level is added to single updates: choose"
            " privacy=distributed, or leave secure out"
        )
    return settings.around(method, experiment.clients, cohort)


def check_sites(experiment: Experiment, bundle: Bundle) -> None:
    """Data with sites has as many clients, and each has training samples."""
    if experiment.partition.name != "sites" or not bundle.sites:
        return
    if bundle.sites != experiment.clients:
        raise InputError(f"the data has {bundle.sites} sites, and clients is {experiment.clients}: leave clients out")
    held = column(bundle.train, "site")
    if held is not None and (missing := sorted({*range(bundle.sites)} - set(held.tolist()))):
        named = bundle.site_names[missing[0]] if bundle.site_names else missing[0]
        raise InputError(f"site {named} has no training samples: add some, or leave its test samples out")


def check_on_site(experiment: Experiment, method: Method) -> None:
    if "on-site" in method.refuses:
        raise InputError(method.refuses["on-site"])


def _load_proxy(name: str, root: Path | None) -> Bundle:
    """Data to distil on, which can be files of many formats: their readers are imported only for students."""
    from fedstill.data.unlabelled import load_proxy

    return load_proxy(name, root)


def _test_shards(
    experiment: Experiment, bundle: Bundle, train: Dataset, like: Tensor, streams: Streams
) -> tuple[Dataset, Shards]:
    """Test data cut as the training data is, so that a site's two parts are of the same classes."""
    name, settings = experiment.partition.name, experiment.partition.settings.model_dump()
    kinds, count = partition_labels(name, bundle.test, len(bundle.classes))
    classes = max(len(bundle.classes), count)
    groups, trained = groups_of(bundle.test), groups_of(train)
    like = like if trained is None or partitions[name].by_site else group_labels(like, trained)[0]
    shards = partition(name, kinds, experiment.clients, classes, streams, settings, like=like, groups=groups)
    return bundle.test, shards


def held_out(experiment: Experiment, bundle: Bundle, streams: Streams) -> tuple[Dataset, Dataset | None]:
    """Training and validation data. A share is cut before anyone gets a shard; or by each client, from its own."""
    if not experiment.validation or experiment.evaluation == "on-site":
        return bundle.train, None
    kinds, groups = shape_kinds(bundle.train), groups_of(bundle.train)
    train, validation = split_validation(kinds, experiment.validation, streams, groups=groups)
    return Subset(bundle.train, train), Subset(bundle.train, validation)


def check_architectures(experiment: Experiment, task: Classification, kind: type[Method]) -> None:
    """A method that averages weights needs one model for all."""
    if len(task.architectures) > 1 and "one-architecture" in kind.needs:
        able = [name for name in methods if "one-architecture" not in methods[name].needs]
        mixed = " and ".join(task.architectures)
        raise InputError(
            f"{experiment.method.name} averages weights, and clients with {mixed} have none in common: give all one"
            f" model, or choose {', '.join(able)}"
        )


def check_needs(method: Method, experiment: Experiment, labelled: bool) -> None:
    """A method says what it needs; what this experiment cannot give is refused here."""
    given = {"features", "teacher", "one-architecture"}  # who has no teacher was refused when the method was made
    if labelled:
        given.add("labels")
    if "features" in method.needs:
        check_features(experiment.method.name, method.task)
    if missing := sorted(method.needs - given):
        raise InputError(
            f"{experiment.method.name} needs {' and '.join(missing)}, which {experiment.data}"
            f" with {', '.join(method.task.architectures)} does not have"
        )
    method.check()
