"""Something around a method's exchanges: attacks, privacy. The method inside does not know.

A wrapper changes what a client sends or what the server makes of it, for every method alike, instead of being a flag
inside each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from fedstill.core.dataset import Proxy
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Exchange, Method, Profile, Reply, Shape, Turn
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors


class WrappedExchange(Exchange):
    """An exchange that does what the inner one does; a wrapper overrides the step it changes."""

    def __init__(self, inner: Exchange) -> None:
        self.inner, self.name, self.egress = inner, inner.name, inner.egress
        self.least, self.update, self.bulky = inner.least, inner.update, inner.bulky
        self.once = inner.once

    def prepare(self, state: Tensors, turn: Turn) -> Tensors:
        return self.inner.prepare(state, turn)

    def request(self, state: Tensors, who: Profile, turn: Turn) -> Message | None:
        return self.inner.request(state, who, turn)

    def reply(self, client: Client, request: Message, turn: Turn) -> Message:
        return self.inner.reply(client, request, turn)

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return self.inner.expect(state, who, request)

    def merge(self, state: Tensors, replies: Sequence[Reply], turn: Turn) -> Tensors:
        return self.inner.merge(state, replies, turn)


class Wrapped(WrappedExchange, Method):
    """A method whose exchanges are wrapped; all else is the inner method's."""

    inner: Method

    def __init__(self, inner: Method) -> None:
        WrappedExchange.__init__(self, inner)
        Method.__init__(self, inner.settings, inner.task, inner.training)
        self.needs, self.personal, self.shares = inner.needs, inner.personal, inner.shares

    @abstractmethod
    def wrap(self, exchange: Exchange) -> Exchange:
        """The exchange with what this wrapper puts around it."""

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return [self.wrap(exchange) for exchange in self.inner.exchanges(server, round)]

    def every_exchange(self) -> Sequence[Exchange]:
        return [self.wrap(exchange) for exchange in self.inner.every_exchange()]

    def check(self) -> None:
        self.inner.check()

    def shared_samples(self) -> str | None:
        return self.inner.shared_samples()

    def provide(self, proxy: Proxy) -> None:
        self.inner.provide(proxy)

    def rounds(self, given: int) -> int:
        return self.inner.rounds(given)

    def counts(self, round: int, rounds: int) -> bool:
        return self.inner.counts(round, rounds)

    def start(self, streams: Streams) -> Tensors:
        return self.inner.start(streams)

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        return self.inner.models(server)

    def also(self, server: Tensors) -> Mapping[str, Tensors]:
        return self.inner.also(server)

    def facts(self, server: Tensors) -> Mapping[str, float]:
        return self.inner.facts(server)

    def at_client(self, architecture: str) -> nn.Module:
        return self.inner.at_client(architecture)

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return self.inner.personalise(server, state)

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        return self.inner.assemble(architecture, personal)
