"""SCAFFOLD.

*SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, Karimireddy et al., 2020,
https://arxiv.org/abs/1910.06378 (option II for the control variates, server rate 1)

    y_i <- y_i - eta (g_i(y_i) + c - c_i)             K times, from y_i = x
    c_i+ = c_i - c + (x - y_i) / (K eta)
    x   <- the mean of the y_i
    c   <- c + (1/N) sum_i (c_i+ - c_i)               N: all clients, sampled or not

K is the number of steps actually taken. A client's control variate is committed only once its reply has been accepted;
otherwise a failed upload would move the mean of the c_i away from c.

Option II holds for plain SGD with one learning rate for all parameters. With `correction: gradient` the term c - c_i is
added to the gradient before any local optimiser (Adam, momentum), and c_i+ is the mean of the client's uncorrected
gradients over its K steps. Under plain SGD without weight decay the two agree: substitute the step into the formula
above. With weight decay option II counts the decay as part of the gradient, and the mean does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Correct
from fedstill.core.kinds import PARAMETERS, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Profile, Reply, RoundContext, Shape
from fedstill.core.streams import Streams
from fedstill.core.sums import Summand
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, WEIGHTS, methods, same_as, train, work_report, zeros_like
from fedstill.methods.fedavg import FedAvg, ModelSettings
from fedstill.methods.gradients import correction, gradients_of

CONTROL = "control/"


class ScaffoldSettings(ModelSettings):
    correction: Literal["step", "gradient"] = Field(
        "step",
        description="what is corrected: plain SGD steps, as published, or the gradient before any optimiser",
    )


@methods.register("scaffold")
class Scaffold(FedAvg):
    """Stochastic controlled averaging: control variates correct client drift, at twice the upload size."""

    Options = ScaffoldSettings
    settings: ScaffoldSettings
    local_updates = False
    refuses: ClassVar = {
        "local_update": "scaffold corrects the gradient of each step by control variates, and a local update takes its"
        " steps itself: leave training.local_update out, or use fedavg"
    }
    from_sums = True
    egress = (*FedAvg.egress, Egress("control/*", "parameters", "the change of the client's control variate"))
    defaults: ClassVar = {"training": {"optimiser": "sgd", "momentum": 0.0}}

    def check(self) -> None:
        if self.settings.correction != "step":
            return
        if self.training.optimiser != "sgd" or self.training.momentum:
            raise InputError(
                "scaffold corrects plain SGD steps: set training.optimiser=sgd and training.momentum=0, or"
                " method.correction=gradient for any other optimiser"
            )
        # These may only come from a model's defaults: a detector's defaults clip gradients and slow down its encoder.
        clips, slows = self.training.clip is not None, self.training.encoder_rate != 1
        if clips or slows:
            why = "clipping cuts short" if clips else "an encoder takes at a rate of its own"
            raise InputError(
                f"scaffold finds its control variates from the steps taken, which {why}: set training.clip=null and"
                " training.encoder_rate=1, or method.correction=gradient"
            )

    def start(self, streams: Streams) -> Tensors:
        server = super().start(streams)
        return {**server, **under(CONTROL, zeros_like(part(server, WEIGHTS)))}

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message({name: tensor for name, tensor in state.items() if name.startswith((MODEL, CONTROL))})

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        model = client.task.build(client.profile.architecture, request.part(MODEL))
        control = request.part(CONTROL)
        own = part(client.state, CONTROL) or zeros_like(control)
        push = {name: control[name] - own[name] for name in control}
        correct = correction(model, push=push)
        tally = _Tally(model, correct) if self.settings.correction == "gradient" else None
        trained = train(client, model, self.training, context, correct=tally or correct)
        state = state_of(model)
        if tally is not None:
            new = tally.mean(trained.steps)
        else:
            before, scale = request.part(WEIGHTS), trained.steps * self.training.rate_in(context.round, context.rounds)
            new = {name: (before[name] - state[PARAMETERS + name]) / scale - push[name] for name in control}
        client.state = {**client.state, **under(CONTROL, new)}
        changes = {name: new[name] - own[name] for name in control}
        return Message({**under(MODEL, state), **under(CONTROL, changes), **work_report(trained)})

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return {**super().expect(state, who, request), **same_as(under(CONTROL, part(state, CONTROL)))}

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        moved = {}
        for name, control in part(state, CONTROL).items():
            changes = torch.stack([reply.message[CONTROL + name].double() for reply in replies]).sum(dim=0)
            moved[name] = (control.double() + changes / context.clients).to(control.dtype)
        return {**super().aggregate(state, replies, context), **under(CONTROL, moved)}

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        return [1.0 for _ in replies]

    @property
    def summed(self) -> Sequence[Summand] | None:  # type: ignore[override]
        mean = super().summed
        return None if mean is None else (*mean, Summand(CONTROL + "*", "update"))

    def contribution(self, request: Message, reply: Message) -> Tensors:
        """The changes of a control variate are differences already."""
        return {**super().contribution(request, reply), **_doubled(under(CONTROL, reply.part(CONTROL)))}

    def sum_weight(self, who: Profile) -> int:
        return 1


def _doubled(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in tensors.items()}


class _Tally:
    """Accumulates a model's gradients step by step, before they are corrected."""

    def __init__(self, model: nn.Module, then: Correct) -> None:
        self.then, self.named = then, dict(model.named_parameters())
        self.sums = {name: torch.zeros_like(weight) for name, weight in self.named.items()}

    def __call__(self, model: nn.Module) -> None:
        for name, gradient in gradients_of(self.named).items():
            self.sums[name] += gradient
        self.then(model)

    def mean(self, steps: int) -> dict[str, Tensor]:
        return {name: (total / steps).cpu() for name, total in self.sums.items()}
