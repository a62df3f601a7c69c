"""Wrappers around a method's exchanges: attacks, privacy, dropout mitigation.

A wrapper changes what a client sends or how the server aggregates it, for every method alike, instead of being a flag
inside each method. The wrapped method does not depend on it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.egress import Egress
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Exchange, Method, Profile, Reply, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors


class WrappedExchange(Exchange):
    """An exchange that delegates to the inner one; a wrapper overrides the step it changes."""

    def __init__(self, inner: Exchange) -> None:
        self.inner, self.name, self.egress = inner, inner.name, inner.egress
        self.min_replies, self.update_prefix = inner.min_replies, inner.update_prefix
        self.spill_to_disk = inner.spill_to_disk
        self.first_contact_prefix = inner.first_contact_prefix

    def when(self, line: Egress, rounds: int) -> str:
        return self.inner.when(line, rounds)

    def prepare(self, state: Tensors, context: RoundContext) -> Tensors:
        return self.inner.prepare(state, context)

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return self.inner.request(state, who, context)

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        return self.inner.reply(client, request, context)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return self.inner.expect(state, who, request)

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return self.inner.aggregate(state, replies, context)


class Wrapped(WrappedExchange, Method):
    """A method whose exchanges are wrapped; everything else is delegated to the inner method."""

    inner: Method

    def __init__(self, inner: Method) -> None:
        WrappedExchange.__init__(self, inner)
        Method.__init__(self, inner.settings, inner.task, inner.training)
        self.needs, self.personal, self.shares = inner.needs, inner.personal, inner.shares

    @abstractmethod
    def wrap(self, exchange: Exchange) -> Exchange:
        """The exchange, wrapped."""

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return [self.wrap(exchange) for exchange in self.inner.exchanges(server, round)]

    def every_exchange(self) -> Sequence[Exchange]:
        return [self.wrap(exchange) for exchange in self.inner.every_exchange()]

    def check(self) -> None:
        self.inner.check()

    @property
    def tunes(self) -> bool:
        return self.inner.tunes

    def training_data(
        self, train: Dataset, bundle: Any, load: Callable[[str], Any], streams: Streams
    ) -> tuple[Dataset, str]:
        return self.inner.training_data(train, bundle, load, streams)

    def check_profiles(self, profiles: Sequence[Profile]) -> None:
        self.inner.check_profiles(profiles)

    def ceiling(self, teacher_outputs: Callable[[], Tensor], data: Dataset) -> float | None:
        return self.inner.ceiling(teacher_outputs, data)

    def rounds(self, given: int) -> int:
        return self.inner.rounds(given)

    def same_with_more_rounds(self, few: int, many: int) -> bool:
        return self.inner.same_with_more_rounds(few, many)

    def selectable(self, round: int, rounds: int) -> bool:
        return self.inner.selectable(round, rounds)

    def start(self, streams: Streams) -> Tensors:
        return self.inner.start(streams)

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return self.inner.models(server)

    def extra_models(self, server: Tensors) -> Mapping[str, Tensors]:
        return self.inner.extra_models(server)

    def skipped(self, server: Tensors) -> Tensors:
        return self.inner.skipped(server)

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        return self.inner.metrics(server)

    def at_client(self, architecture: str) -> nn.Module:
        return self.inner.at_client(architecture)

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return self.inner.personalise(server, state)

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        return self.inner.assemble(architecture, personal)
