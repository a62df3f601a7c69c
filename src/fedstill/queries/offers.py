"""A query to models that peers have offered as files or objects, by one client with its own data and without a run.

The asker is client 0, and the offered models are the clients after it, sorted by name. Peers' data is not known: the
fractions of classes in it are NaN wherever those of a run's clients are shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import digest
from fedstill.core.protocols import Profile
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle, class_number
from fedstill.data.lookup import by_name, hold, load
from fedstill.data.objects import dataset
from fedstill.models import build_model, models
from fedstill.models.classifier import Classifier
from fedstill.models.model_outputs import check_outputs
from fedstill.models.own_models import Model, ModelInput, SplitModel, named_model, own_function
from fedstill.queries.checkpoint_files import PeerFacts, fit_weights, peer_facts, peer_files, read_weights
from fedstill.queries.query_records import QueriedModel
from fedstill.queries.transfer import Asked, CheckedQuery, answer, checked_query
from fedstill.queries.transfer_loss import QueryObserver
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.launch import assembled, launch
from fedstill.runtime.plan import Simulation, make_plan

PeerInput = str | Path | Mapping[str, nn.Module] | Sequence[nn.Module]
_OF_EXPERIMENT = frozenset({"training", "rounds", "seed", "points", "augmentation"})
_OBJECTS = Path("models passed as objects")
_ASKER = "you"


@dataclass(frozen=True)
class OfferedModel:
    """One peer's model, ready to be asked."""

    name: str
    architecture: str
    model: nn.Module
    recall: Mapping[int, float] = field(default_factory=dict)  # on the peer's held-out data, where it reports that

    @property
    def sha256(self) -> str:
        return digest(state_of(self.model))


@dataclass(frozen=True)
class Offers:
    """What a query needs of a run, from offered models: their place, a digest of all, and the models by client."""

    path: Path
    experiment: Experiment
    fingerprint: str  # of the asker's data
    own: nn.Module
    peers: tuple[OfferedModel, ...]

    @property
    def sha256(self) -> str:
        facts = [self.fingerprint, digest(state_of(self.own)), *((one.name, one.sha256) for one in self.peers)]
        return sha256(json.dumps(facts).encode()).hexdigest()

    def built(self, *, client: int) -> nn.Module:
        return self.peers[client - 1].model if client else self.own

    def described(self) -> tuple[QueriedModel, ...]:
        return tuple(
            QueriedModel(name=one.name, model=one.architecture, sha256=one.sha256, recall=dict(one.recall))
            for one in self.peers
        )


@dataclass(frozen=True)
class OfferQuery:
    """A validated query to offered models; without a model of its own the asker trains one alone first."""

    question: CheckedQuery
    offers: Offers
    bundle: Bundle
    has_own: bool

    def answer(self, out: Path, observers: Sequence[QueryObserver] = ()) -> Asked:
        """Train alone where there is no own model yet, as a run in `out` that is resumed and reused; then ask."""
        offers = self.offers
        if not self.has_own:
            examined = self.examine()
            if not examined.answered:  # nothing to learn: nothing is trained
                return examined
            alone = launch(offers.experiment, out=out, bundle=self.bundle, device=self.question.plan.task.device)
            offers = replace(offers, own=alone.built(client=0))
        return _named(answer(replace(self.question, run=offers), observers), offers)

    def examine(self) -> Asked:
        """The probe of the offered models alone; nothing is trained."""
        return _named(self.question.examine(), self.offers)


def _named(asked: Asked, offers: Offers) -> Asked:
    asked.names, asked.offered = (_ASKER, *(one.name for one in offers.peers)), offers.described()
    if asked.traffic:
        asked.traffic = {**asked.traffic, "up": 0}  # the asker's own model is given to nobody
    return asked


def question_to_offers(
    peers: PeerInput,
    classes: str | int | Sequence[str | int],
    data: Any,
    settings: Mapping[str, Any],
    *,
    model: ModelInput | None = None,
    own: str | Path | nn.Module | None = None,
    head: str | None = None,
    method: str = "qkt",
    data_root: Path | None = None,
    device: str = "cpu",
) -> OfferQuery:
    """Validate a query to offered models: every file, the asker's data and model, the classes and the settings."""
    bundle = _own_data(data, data_root)
    told = {key: value for key, value in settings.items() if key.partition(".")[0] in _OF_EXPERIMENT}
    shared = own_function(model) if isinstance(model, str) and ":" in model else model
    source = own if isinstance(own, nn.Module) else shared
    named = _with_head(source, head, bundle)
    experiment = assembled("local-only", None, None, {**_known(bundle.name, named), **told})
    plan = make_plan(experiment, data_root, device, bundle=bundle)
    bundle = plan.bundle  # with as many points as the experiment says
    usual = next((one for one in (shared, source) if one is not None), str(plan.experiment.model))
    offered = _offered(peers, usual, bundle, own)
    plan = _with_peers(plan, offered)
    offers = Offers(
        _OBJECTS if not isinstance(peers, str | Path) else Path(peers),
        plan.experiment,
        plan.fingerprint,
        _own_model(plan, own, source),
        offered,
    )
    rest = {key: value for key, value in settings.items() if key not in told}
    return OfferQuery(checked_query(offers, plan, 0, classes, rest, method), offers, bundle, own is not None)


def _known(data: str, model: str | None) -> dict[str, Any]:
    """The experiment in which the asker trains alone; without a model it is the usual one for such data."""
    return {"data": data, "clients": 1, **({} if model is None else {"model": model})}


def _own_data(data: Any, root: Path | None) -> Bundle:
    """The asker's data, which need not have training samples of every class."""
    if isinstance(data, str | Path):
        return load(by_name(data), root, part=True)
    bundle = dataset(data, part=True)
    hold(bundle)
    return bundle


def _with_head(source: Any, head: str | None, bundle: Bundle) -> str | None:
    """The name of the asker's model; one of its own is split before its last layer, which queries train apart."""
    if source is None or (isinstance(source, str) and head is None and _is_classifier(_built(source, bundle))):
        return None if source is None else str(source)
    if isinstance(source, Model):
        return named_model(source if source.head else replace(source, head=head or _last_layer(source.source, bundle)))
    if isinstance(source, str):
        source = models[source]
    if head is None and _is_classifier(_built(source, bundle)):
        return named_model(source)
    return named_model(Model(source, head=head or _last_layer(source, bundle)))


def _is_classifier(model: nn.Module) -> bool:
    return isinstance(model, Classifier)


def _last_layer(source: Any, bundle: Bundle) -> str:
    """The name of the last linear layer; whether it is the head is checked when the model is split there."""
    named = _built(source, bundle).named_modules()
    layers: list[str] = [name for name, layer in named if isinstance(layer, nn.Linear) and name]
    if not layers:
        raise InputError("queries train a model's head apart, and its last layer was not found: name it, e.g. head=fc")
    return layers[-1]


def _built(source: Any, bundle: Bundle) -> nn.Module:
    """A model in one piece, whose weights are those of its files or of the module that was given."""
    if isinstance(source, str) and ":" in source:
        source = own_function(source)
    if isinstance(source, Model):
        source = replace(source, head=None, name=None)
    name = source if isinstance(source, str) else named_model(source)
    with Streams(0).ambient("teacher"):  # weights that are drawn are the same every time
        return build_model(name, bundle.shape, len(bundle.classes))


def _offered(given: PeerInput, model: Any, bundle: Bundle, own: Any) -> tuple[OfferedModel, ...]:
    """The offered models, each loaded, checked and never trained."""
    if isinstance(given, str | Path):
        folder, beside = Path(given), Path(own) if isinstance(own, str | Path) else None
        files = peer_files(folder, beside)
        facts = peer_facts(folder, files)
        found = [_from_file(file, facts.get(file.stem, PeerFacts()), model, bundle) for file in files]
    else:
        named = given if isinstance(given, Mapping) else {f"peer {at}": one for at, one in enumerate(given)}
        found = [_from_object(str(name), one, bundle) for name, one in named.items()]
    if not found:
        raise InputError("there is no offered model to ask: give one for each peer")
    for one in found:
        one.model.eval().requires_grad_(False)
        check_outputs(one.model, f"{one.architecture} of {one.name}", bundle.shape, len(bundle.classes))
    return tuple(found)


def _from_file(file: Path, facts: PeerFacts, model: Any, bundle: Bundle) -> OfferedModel:
    source = facts.model or model
    built = _built(source, bundle)
    name = source if isinstance(source, str) else str(getattr(source, "__name__", type(source).__name__))
    fit_weights(built, read_weights(file), file, name)
    recall = {class_number(key, bundle.classes): value for key, value in facts.recall.items()}
    return OfferedModel(file.stem, name, built, recall)


def _from_object(name: str, module: nn.Module, bundle: Bundle) -> OfferedModel:
    if not isinstance(module, nn.Module):
        raise InputError(f"the offered model {name} is of type {type(module).__name__}: pass torch modules")
    for key, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"the weights of {name} are not finite: {key!r} holds NaN or infinity")
    return OfferedModel(name, type(module).__name__, _built(module, bundle))


def _own_model(plan: Simulation, own: str | Path | nn.Module | None, source: Any) -> nn.Module:
    """The asker's model: that of its file or the module given; else the one that training starts from."""
    (architecture,) = plan.task.architectures
    fresh = plan.task.build(architecture)
    if own is None:
        return fresh
    if isinstance(own, nn.Module):
        whole = _built(own, plan.bundle)
    else:
        whole = _built(architecture if source is None else source, plan.bundle)
        fit_weights(whole, read_weights(Path(own)), Path(own), architecture)
    if isinstance(fresh, SplitModel) and not isinstance(whole, SplitModel):
        return SplitModel.of(whole, fresh.head_name, plan.bundle.shape)
    return whole


def _with_peers(plan: Simulation, peers: Sequence[OfferedModel]) -> Simulation:
    """The plan of the asker alone, with the peers as further clients that have no samples here."""
    shards = plan.clients.shards
    offsets = torch.cat([shards.offsets, shards.offsets[-1:].repeat(len(peers))])
    profiles = [*plan.profiles, *(Profile(at, 0, one.architecture) for at, one in enumerate(peers, start=1))]
    clients = replace(plan.clients, shards=replace(shards, offsets=offsets))
    return replace(plan, profiles=profiles, clients=clients)
