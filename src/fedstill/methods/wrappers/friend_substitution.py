"""Friend substitution: a client that drops out is represented by the most similar client that replied.

*Combating Client Dropout in Federated Learning via Friend Model Substitution*, Wang and Xu, 2022,
https://arxiv.org/abs/2205.13222 (FL-FDMS; without its cheaper variant that stops comparing clear cases)

    u_i    = w_i - w                                         the update of client i
    r_ij   = (1 + cos(u_i, u_j)) / 2                         in every round in which both replied
    R_ij   = the mean of r_ij over those rounds
    w_i   <- w_j,  j = argmax R_ij among those that replied  for each client i that dropped out
    aggregate as the method does, over all who were sampled

A substitute has the weight of the dropped client's samples, with the friend's model and steps. Ties are broken by the
smaller client id.

Differences from the paper:

* In the paper all clients take part in the first round, so every pair is known from then on. Here a pair is known once
  both replied in one round; a dropped client without a known friend among the replies is not substituted.
* In the paper clients have equal weight; here the method's weights are used.
* The cosine is computed over weights, without BatchNorm's running statistics, whose scale differs. A zero update has no
  direction and does not enter any similarity.
* Other tensors of a reply are changes of the sender's own state, such as SCAFFOLD's control variate. The state of the
  dropped client did not change, so its substitute contributes zero: otherwise the server's control variate would not be
  the clients' mean.

Only clients that dropped out or whose battery became empty are substituted. A client that was rejected, failed or
abstained is left out, as without mitigation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedstill.core.message import Message
from fedstill.core.protocols import BLAMELESS, Exchange, Failure, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.wrappers.wrapper import Wrapped

SIMILARITY, TOGETHER = "friends/similarity", "friends/together"  # per pair: R_ij, and in how many rounds both replied
SUBSTITUTED = "friends/substituted"  # number of substitutions in all rounds so far
OF_THE_MODEL = (MODEL, "steps", "loss/")  # tensors that a friend's reply can provide for another client


class FriendSubstitution(Wrapped):
    """A method in which friends substitute for dropped clients."""

    inner: FedAvg

    def __init__(self, inner: FedAvg, clients: int) -> None:
        super().__init__(inner)
        self.clients = clients

    def wrap(self, exchange: Exchange) -> Exchange:
        """Wraps only the exchange whose replies are models; recalibration and fine-tuning are unchanged."""
        return self if exchange is self.inner else exchange

    def start(self, streams: Streams) -> Tensors:
        pairs = (self.clients, self.clients)
        strangers = {SIMILARITY: torch.zeros(pairs), TOGETHER: torch.zeros(pairs, dtype=torch.int32)}
        return {**self.inner.start(streams), **strangers, SUBSTITUTED: torch.tensor(0)}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        found = substitutes(state, replies, context.failures)
        everybody = sorted([*replies, *found], key=lambda reply: reply.profile.id)
        merged = self.inner.aggregate(state, everybody, context)
        return {**merged, **self.acquainted(state, replies), SUBSTITUTED: state[SUBSTITUTED] + len(found)}

    def acquainted(self, state: Tensors, replies: Sequence[Reply]) -> Tensors:
        """The updated pair similarities after a round with these replies."""
        alike = similarities(state, [reply.message for reply in replies], self.inner.shared_weights(state))
        ids = torch.tensor([reply.profile.id for reply in replies])
        pairs = (ids[:, None], ids[None, :])
        similarity, together = state[SIMILARITY].clone(), state[TOGETHER].clone()
        before, rounds = similarity[pairs].double(), together[pairs]
        mean = (before * rounds + alike) / (rounds + 1)
        similarity[pairs] = torch.where(alike.isnan(), before, mean).float()
        together[pairs] = rounds + (~alike.isnan()).int()
        return {SIMILARITY: similarity, TOGETHER: together}

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        return {**self.inner.metrics(server), "substituted": float(server[SUBSTITUTED])}


def substitutes(state: Tensors, replies: Sequence[Reply], lost: Sequence[Failure]) -> list[Reply]:
    """The substitute replies for clients that dropped out."""
    heard = {reply.profile.id for reply in replies}
    missed = {one.profile.id: one.profile for one in lost if one.reason in BLAMELESS and one.profile.id not in heard}
    friends = {client: friend_of(client, state, replies) for client in missed}
    return [
        Reply(missed[client], said_for_another(friend.message), None)
        for client, friend in friends.items()
        if friend is not None
    ]


def friend_of(client: int, state: Tensors, replies: Sequence[Reply]) -> Reply | None:
    """The reply of the client most similar to this one; None if it shares no round with any of them."""
    similarity, together = state[SIMILARITY][client], state[TOGETHER][client]
    known = [reply for reply in replies if together[reply.profile.id] > 0]
    return max(known, key=lambda reply: (float(similarity[reply.profile.id]), -reply.profile.id), default=None)


def said_for_another(message: Message) -> Message:
    """A friend's reply without the tensors that describe the friend's own state."""
    own = {name: torch.zeros_like(tensor) for name, tensor in message.items() if not name.startswith(OF_THE_MODEL)}
    return Message({**message, **own}) if own else message


def similarities(state: Tensors, messages: Sequence[Message], names: Sequence[str]) -> Tensor:
    """r_ij of all pairs; NaN on the diagonal and for clients with a zero update.

    >>> start = {"w": torch.tensor([1.0, 1.0])}
    >>> ends = [Message({"w": torch.tensor(end)}) for end in ([2.0, 1.0], [1.0, 3.0], [0.5, 1.0])]
    >>> similarities(start, ends, ["w"])  # a right angle, the other way, a right angle
    tensor([[   nan, 0.5000, 0.0000],
            [0.5000,    nan, 0.5000],
            [0.0000, 0.5000,    nan]], dtype=torch.float64)
    """
    products = torch.zeros(len(messages), len(messages), dtype=torch.float64)
    for name in names:
        updates = torch.stack([message[name].double() - state[name] for message in messages]).reshape(len(messages), -1)
        products += updates @ updates.T
    norms = products.diagonal().sqrt()
    cosines = (products + products.T) / 2 / (norms[:, None] * norms[None, :])
    return ((1 + cosines.clamp(-1, 1)) / 2).fill_diagonal_(torch.nan)
