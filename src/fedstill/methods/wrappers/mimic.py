"""MimiC: every reply is corrected so that the aggregate mimics the central update, the mean over all clients.

*MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates*, Sun, Mao and Zhang, 2023,
https://arxiv.org/abs/2306.12212

    u_i   = w_i - w                          the update of client i in this round
    v_i   = u_i + c_i                        what the server takes instead; c_i = 0 at a client's first reply
    V     = sum_i p_i v_i                    over those that replied, p_i as the method weighs them
    c_i  <- V - u_i                          for those that replied
    aggregate w + v_i as the method does

So c_i is the difference between the mean and the client's update when it last replied. If the same clients reply in
every round the c_i sum to zero, and V is the plain mean of the u_i, up to rounding. If some are missing, the known
difference of the others from the mean is removed. Clients and messages do not change.

Differences from the paper:

* In the paper every client replies in the first round. Here the first reply of a client is never corrected.
* In the paper clients have equal weight; here the method's weights are used.
* V is the mean of the aggregated updates, even if a server optimiser (momentum, Adam) scales the step: a client's
  update is comparable only with that mean.
* As in the authors' code u_i is the change of the weights, including the learning rate: if the rate decays, an old
  correction is scaled by an older rate.
* Running statistics are averaged uncorrected, since a corrected variance could be negative.

The server stores single-precision weights of one model for each client that ever replied, and every checkpoint contains
them: this is the cost of the mitigation with many clients or large models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedstill.core.message import Message
from fedstill.core.protocols import Exchange, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.wrappers.wrapper import Wrapped

CORRECTION = "mimic/"  # mimic/CLIENT/...: c_i of clients that have replied


class MimiC(Wrapped):
    """A method whose server corrects each reply by its client's last known difference from the mean update."""

    inner: FedAvg

    def wrap(self, exchange: Exchange) -> Exchange:
        """Wraps only the exchange whose replies are models; recalibration and fine-tuning are unchanged."""
        return self if exchange is self.inner else exchange

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        weights = self.inner.weights(replies)
        shares = [weight / sum(weights) for weight in weights]
        messages = [dict(reply.message) for reply in replies]
        corrections: dict[str, Tensor] = {}
        for name in self.inner.shared_weights(state):
            start = state[name].double()
            updates = [reply.message[name].double() - start for reply in replies]
            central = torch.zeros_like(start)
            for reply, share, update, message in zip(replies, shares, updates, messages, strict=True):
                if (known := state.get(_place(reply, name))) is not None:
                    update = update + known
                    message[name] = (start + update).to(message[name].dtype)
                central += share * update
            for reply, update in zip(replies, updates, strict=True):
                corrections[_place(reply, name)] = (central - update).float()
        corrected = [replace(one, message=Message(sent)) for one, sent in zip(replies, messages, strict=True)]
        return {**self.inner.aggregate(state, corrected, context), **corrections}


def _place(reply: Reply, name: str) -> str:
    return f"{CORRECTION}{reply.profile.id}/{name.removeprefix(MODEL)}"
