"""Query-based knowledge transfer.

*Query-based Knowledge Transfer for Heterogeneous Learning Environments*, Alballa et al., 2025,
https://arxiv.org/abs/2504.09205

A client that lacks a class asks its peers' models for it, in one round (see `peers.py`), on its own data: what they say
of samples of other classes is what it learns from (see `transfer_loss.py`). With no class to ask for, or no peer
that knows one, it keeps the model it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.errors import InputError
from fedstill.core.fit import Trained, together
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import part, under
from fedstill.core.protocols import Client, RoundContext
from fedstill.core.training import Training
from fedstill.methods.base import MODEL, methods
from fedstill.models.classifier import Classifier
from fedstill.queries.peers import QUERY, PeerMethod, PeerSettings, probed
from fedstill.queries.query import Answered, recalls
from fedstill.queries.transfer_loss import TERMS, QueryLesson, Watch, class_mask, knows, learn, query_loss, refine


class TransferSettings(PeerSettings):
    """How much and from whom is learnt."""

    transfer_epochs: int = Field(25, ge=1, description="of the whole model on the client's data")
    alpha: float = Field(1.0, ge=0, description="weight of what teachers say, beside labels")
    temperature: float = Field(1.0, gt=0, description="of probabilities that are compared")


class QKTSettings(TransferSettings):
    query_weight: float = Field(1.5, ge=0, description="lambda: weight of classes that are asked for; local ones: 1")
    threshold: float = Field(0.01, ge=0, le=1, description="least probability of a class in noise to be known")
    noise: int = Field(20, ge=1, description="samples of noise that a model is probed with")
    noise_scale: float = Field(1.0, gt=0, description="standard deviation of that noise; inputs lie in -1 to 1")
    filter: bool = Field(True, description="learn only from peers that know a class asked for")
    mask: bool = Field(True, description="of what they say, heed local classes and those asked for only")
    refine: bool = Field(True, description="put the head back to what it was, and let it learn once more by itself")
    head_epochs: int | None = Field(None, ge=1, description="of the head by itself; none: as many as of the whole")
    frozen: float = Field(0.0, ge=0, le=1, description="share of the head's weights, the most important, that stay")
    tune: bool = Field(
        False,
        description="stop each phase after the epoch that is best on the run's validation share. No client has such"
        " samples of what it asks for: it shows what could be gained, in simulations only",
    )


@methods.register("qkt")
class QKT(PeerMethod):
    """A client asks its peers' models for a class it lacks, and learns it in one round on its own data."""

    Options = QKTSettings
    settings: QKTSettings
    terms = TERMS
    watch: Watch | None = None  # told after each epoch, which then runs by itself

    @property
    def tunes(self) -> bool:
        return self.settings.tune

    def learn(self, client: Client, peers: Mapping[int, nn.Module], context: RoundContext) -> Trained:
        query = torch.nonzero(client.state[QUERY]).flatten().tolist()
        teachers = self.teachers(client, peers, query)
        if not teachers:
            return Trained(0, {})
        model = client.task.build(client.profile.architecture, part(client.state, MODEL))
        assert isinstance(model, Classifier)
        head = {name: tensor.clone() for name, tensor in model.head.state_dict().items()}
        done = [self.first(client, model, list(peers.values()), teachers, query)]
        if self.settings.refine:
            done.append(self.second(client, model, head, teachers, query))
        client.state = {**client.state, **under(MODEL, state_of(model))}
        return together(done)

    def teachers(self, client: Client, peers: Mapping[int, nn.Module], query: list[int]) -> list[nn.Module]:
        """The peers that know something of what is asked for; nobody is asked where nothing is wanted."""
        if not query:
            return []
        if not self.settings.filter:
            return list(peers.values())
        known = {number: self.probed(client, number, model) for number, model in peers.items()}
        return [model for number, model in peers.items() if knows(known[number], query, self.settings.threshold)]

    def probed(self, client: Client, number: int, model: nn.Module) -> Tensor:
        """What a peer's model knows, as this client sees it."""
        return probed(client, number, model, self.settings.noise, self.settings.noise_scale)

    def first(
        self,
        client: Client,
        model: nn.Module,
        peers: list[nn.Module],
        teachers: list[nn.Module],
        query: list[int],
    ) -> Trained:
        """The whole model learns from those who know."""
        best = self.best(client, query)
        lesson = self.lesson(client, teachers, query, "whole", self.settings.transfer_epochs)
        trained = learn(model, replace(lesson, watch=best or self.watch))
        if best:
            load_state(model, best.state)
        return trained

    def second(
        self,
        client: Client,
        model: Classifier,
        head: Mapping[str, Tensor],
        teachers: list[nn.Module],
        query: list[int],
    ) -> Trained:
        """The head as it was learns by itself."""
        best = self.best(client, query)
        epochs = self.settings.head_epochs or self.settings.transfer_epochs
        lesson = self.lesson(client, teachers, query, "head", epochs)
        trained = refine(model, head, replace(lesson, watch=best or self.watch), self.settings.frozen)
        if best:
            load_state(model, best.state)
        return trained

    def lesson(
        self, client: Client, teachers: list[nn.Module], query: list[int], phase: str, epochs: int
    ) -> QueryLesson:
        """What a client is taught in a phase, on its own data."""
        settings = self.settings
        loss = query_loss(self.mask_of(client, query, settings.mask), settings.alpha, settings.temperature)
        training, streams = self.for_epochs(epochs), client.streams.at(phase)
        return QueryLesson(
            client.task, teachers, client.data, loss, training, streams, client.meter, settings.temperature
        )

    def best(self, client: Client, query: list[int]) -> BestEpoch | None:
        return BestEpoch(client, tuple(query)) if self.settings.tune else None

    def mask_of(self, client: Client, query: list[int], masks: bool) -> Tensor:
        classes = len(self.task.classes)
        labels = client.data.labels()
        assert labels is not None
        if not masks:
            return torch.ones(classes)
        return class_mask(classes, labels.unique().tolist(), query, self.settings.query_weight)

    def for_epochs(self, epochs: int) -> Training:
        return self.training.model_copy(update={"epochs": epochs})


class BestEpoch:
    """The model after the epoch with the best average accuracy on samples that show what could be gained."""

    def __init__(self, client: Client, query: tuple[int, ...]) -> None:
        labels = client.data.labels()
        if client.validation is None or labels is None:
            raise InputError("tune needs a validation share, and there is none here: set validation=0.1")
        self.client, self.query = client, query
        self.counts = torch.bincount(labels, minlength=len(client.state[QUERY]))
        self.accuracy = -1.0
        self.state: dict[str, Tensor] = {}

    def __call__(self, phase: str, epoch: int, model: nn.Module) -> None:
        assert self.client.validation is not None
        found = recalls(self.client.task.score([model], self.client.validation)["confusion"])
        accuracy = Answered(found, found, self.counts, self.query).accuracy(found)
        if accuracy > self.accuracy:
            self.accuracy, self.state = accuracy, state_of(model)


class NaiveSettings(QKTSettings):
    filter: bool = Field(False, description="learn only from peers that know a class asked for")
    mask: bool = Field(False, description="of what they say, heed local classes and those asked for only")
    refine: bool = Field(False, description="put the head back to what it was, and let it learn once more by itself")


@methods.register("naive-kd")
class NaiveKD(QKT):
    """Every client learns from all peers' models and all they say, in one round on its own data."""

    Options = NaiveSettings
