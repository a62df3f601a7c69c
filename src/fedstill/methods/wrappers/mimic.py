"""MimiC: every reply is corrected so that it looks like an update of all.

*MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates*, Sun, Mao and Zhang, 2023,
https://arxiv.org/abs/2306.12212

    u_i   = w_i - w                          the update of client i in this round
    v_i   = u_i + c_i                        what the server takes instead; c_i = 0 for a client heard first
    V     = sum_i p_i v_i                    over those that replied, p_i as the method weighs them
    c_i  <- V - u_i                          for those that replied
    merge as the method does, of w + v_i

So c_i is how far a client was from all when it was last heard. Where the same clients reply in every round the c_i add
up to nothing, and V is the plain mean of the u_i, up to rounding; once some are missing, what the others are known to
differ from all is taken out. Clients notice nothing.

Where this departs from the paper:

* There everybody replies in the first round. Here a client that is heard for the first time later is taken as it is.
* There clients count alike; here as the method weighs them.
* V is the mean of what is merged, also where a server's optimiser (momentum, Adam) makes a longer or shorter step of
  it: an update of a client can be compared with that mean only.
* As in the authors' program u_i is the change of the weights, rates and all: where rates decay, an old correction is
  one at an older rate.
* Running statistics are averaged as they come: a corrected variance could be negative.

The server keeps the weights of one model for each client ever heard, in single precision, and every checkpoint has
them: with many clients or large models that is what this cure costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedstill.core.message import Message
from fedstill.core.protocols import Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL
from fedstill.methods.wrappers.mitigation import Mitigated

CORRECTION = "mimic/"  # mimic/CLIENT/...: c_i, of clients that were heard


class MimiC(Mitigated):
    """A method whose server corrects each reply by how its client differed from all when it was last heard."""

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        weights = self.inner.weights(replies)
        shares = [weight / sum(weights) for weight in weights]
        messages = [dict(reply.message) for reply in replies]
        corrections: dict[str, Tensor] = {}
        for name in self.shared_weights(state):
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
