"""Simulated attacks by some of the clients.

An attack wraps a method's exchanges, so it can be combined with every method. The attackers are drawn once from their
own random stream; all other clients are honest. An attacker trains normally and then changes what it sends, except
under `label-flip`, where it sends an honest update that was trained on wrong labels.

An attack changes the requested weights and running statistics, and other tensors that have a counterpart in the
request, such as SCAFFOLD's control variates. Names, shapes, types, counters and metrics are unchanged, since malformed
replies would be rejected before they could do harm (see `nan`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedstill.core.dataset import Relabelled
from fedstill.core.errors import InputError
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Exchange, Method, RoundContext
from fedstill.core.streams import Streams
from fedstill.methods.base import LOGITS
from fedstill.methods.scaffold import CONTROL
from fedstill.methods.wrappers.choices import Attack, attacks
from fedstill.methods.wrappers.wrapper import Wrapped, WrappedExchange

SHARE = 0.2  # default fraction of the clients


class ByClients(Attack):
    """An attack by some of the clients: a fraction of them, drawn once, or an explicit list."""

    share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="fraction of clients that attack, rounded, at least one client; 0.2 if no attackers are listed",
    )
    clients: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="ids of the attackers, instead of a fraction"
    )

    @model_validator(mode="before")
    @classmethod
    def _usual_share(cls, given: Any) -> Any:
        """Write the default fraction into the settings, so that a run's configuration contains it."""
        if isinstance(given, Mapping) and given.get("share") is None and given.get("clients") is None:
            return {**given, "share": SHARE}
        return given

    @model_validator(mode="after")
    def _one_of_both(self) -> ByClients:
        if self.share is not None and self.clients is not None:
            raise ValueError("give either share or clients")
        return self

    def around(self, method: Method, clients: int, streams: Streams) -> Method:
        return Attacked(method, self, self.attackers(clients, streams))

    def attackers(self, clients: int, streams: Streams) -> frozenset[int]:
        """The ids of the attackers among this many clients."""
        if self.clients is not None:
            if outside := sorted(client for client in self.clients if client >= clients):
                raise InputError(
                    f"attack.clients names client {outside[0]}, but the last of {clients} is {clients - 1}"
                )
            return frozenset(self.clients)
        # The attackers are a prefix of one permutation, so a larger fraction includes the attackers of a smaller one.
        order = streams.draw("attackers").permutation(clients)
        return frozenset(int(client) for client in order[: head_count(self.share or 0.0, clients)])

    def corrupt(self, client: Client) -> None:
        """Changes an attacker's data or state before it replies."""

    def tamper(self, request: Message, reply: Message, streams: Streams) -> Message:
        """The message that an attacker sends instead of its honest reply."""
        return reply


def head_count(share: float, clients: int) -> int:
    """The number of clients in a fraction, halves rounded up; at least one unless the fraction is zero.

    >>> head_count(0.2, 10), head_count(0.25, 10), head_count(0.2, 2), head_count(0.0, 10)
    (2, 3, 1, 0)
    """
    return max(1, int(Fraction(str(share)) * clients + Fraction(1, 2))) if share else 0


class Attacked(Wrapped):
    """A method with attackers among its clients."""

    def __init__(self, inner: Method, attack: ByClients, attackers: frozenset[int]) -> None:
        super().__init__(inner)
        self.attack, self.attackers = attack, attackers

    def wrap(self, exchange: Exchange) -> Exchange:
        return AttackedExchange(exchange, self.attack, self.attackers)


class AttackedExchange(WrappedExchange):
    """An exchange in which the attackers' replies are changed by the attack."""

    def __init__(self, inner: Exchange, attack: ByClients, attackers: frozenset[int]) -> None:
        super().__init__(inner)
        self.attack, self.attackers = attack, attackers

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        if client.profile.id not in self.attackers:
            return super().reply(client, request, context)
        self.attack.corrupt(client)
        return self.attack.tamper(request, super().reply(client, request, context), client.streams.at("attack"))


class ChangedUpdate(ByClients):
    """An attack in which clients train honestly and send a changed update."""

    @abstractmethod
    def update(self, honest: Tensor, draw: np.random.Generator) -> Tensor:
        """The update that replaces an honest one, in double precision."""

    def tamper(self, request: Message, reply: Message, streams: Streams) -> Message:
        changed = dict(reply)
        for name, tensor in reply.items():
            if not tensor.is_floating_point() or (name not in request and name != LOGITS):
                continue
            # Replies contain complete tensors, except for SCAFFOLD's control variates, of which they contain the
            # change; logits have no reference value in the request.
            moved = name in request and not name.startswith(CONTROL)
            start = request[name].double() if moved else torch.zeros_like(tensor, dtype=torch.float64)
            update = self.update(tensor.double() - start, streams.draw(name))
            changed[name] = (start + update).to(tensor.dtype)
        return Message(changed)


@attacks.register("sign-flip")
class SignFlip(ChangedUpdate):
    """Attackers send the negated, scaled update: w_g - scale (w_i - w_g)."""

    # With 20 % attackers the plain mean then moves backwards: 0.8 - 0.2 * 5 = -0.2 of an honest step.
    scale: float = Field(5.0, gt=0, description="norm of the attack, in units of honest updates")

    def update(self, honest: Tensor, draw: np.random.Generator) -> Tensor:
        return -self.scale * honest


@attacks.register("noise")
class Noise(ChangedUpdate):
    """Attackers send Gaussian noise around the model they received: w_g + scale N(0, 1)."""

    scale: float = Field(1.0, gt=0, description="standard deviation of the noise")

    def update(self, honest: Tensor, draw: np.random.Generator) -> Tensor:
        return self.scale * torch.from_numpy(np.asarray(draw.standard_normal(tuple(honest.shape))))


@attacks.register("nan")
class NotANumber(ChangedUpdate):
    """Attackers send NaN; such replies are rejected, and the round continues."""

    def update(self, honest: Tensor, draw: np.random.Generator) -> Tensor:
        return torch.full_like(honest, torch.nan)


@attacks.register("huge")
class Huge(ChangedUpdate):
    """Attackers scale their update, by default a million times: w_g + scale (w_i - w_g)."""

    scale: float = Field(1e6, gt=0, description="factor of the update")

    def update(self, honest: Tensor, draw: np.random.Generator) -> Tensor:
        return self.scale * honest


@attacks.register("label-flip")
class LabelFlip(ByClients):
    """Attackers train on flipped labels: y becomes C - 1 - y, or y + shift."""

    shift: int | None = Field(
        None,
        ge=1,
        description="shift of the class numbers, modulo their count; unset: the order of the classes is reversed",
    )

    def around(self, method: Method, clients: int, streams: Streams) -> Method:
        classes = len(getattr(method.task, "classes", ()))
        if classes < 2:
            raise InputError("label-flip needs a task with two classes or more: choose another attack")
        if self.shift is not None and self.shift % classes == 0:
            raise InputError(f"attack.shift is {self.shift}, which leaves labels of {classes} classes as they are")
        return super().around(method, clients, streams)

    def corrupt(self, client: Client) -> None:
        classes = len(client.task.classes)  # type: ignore[attr-defined]  # seen to in `around`
        wrong = torch.arange(classes).flip(0) if self.shift is None else (torch.arange(classes) + self.shift) % classes
        client.data = Relabelled(client.data, wrong)
