"""FedDyn.

*Federated Learning Based on Dynamic Regularization*, Acar et al., 2021, https://arxiv.org/abs/2111.04263

    w_i <- argmin  L_i(w) - <h_i, w> + alpha/2 ||w - w_g||^2
    h_i <- h_i - alpha (w_i - w_g)
    h   <- h - (alpha/N) sum_i (w_i - w_g)           over those that replied; N: all clients
    w   <- mean(w_i) - h/alpha

The corrected model w is the shared model and the start of the next round; the plain mean is evaluated as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field

from fedstill.core.kinds import PARAMETERS, state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Profile, Reply, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.sums import Sums
from fedstill.core.task import Tensors
from fedstill.methods.base import MODEL, WEIGHTS, methods, train, work_report, zeros_like
from fedstill.methods.fedavg import FedAvg, ModelSettings
from fedstill.methods.gradients import correction

DRIFT, PLAIN = "drift/", "plain/"


class FedDynSettings(ModelSettings):
    alpha: float = Field(0.01, gt=0, description="strength of the regulariser")


@methods.register("feddyn")
class FedDyn(FedAvg):
    """Federated learning with dynamic regularisation, which aligns local optima with the global optimum."""

    Options = FedDynSettings
    settings: FedDynSettings
    local_updates = False
    from_sums = True
    refuses: ClassVar = {
        "local_update": "feddyn adds its regulariser to the gradient of each step, and a local update takes its steps"
        " itself: leave training.local_update out, or use fedavg"
    }

    def start(self, streams: Streams) -> Tensors:
        server = super().start(streams)
        drift = zeros_like({name: server[name] for name in self.moving(server)})
        return {**server, **under(DRIFT, drift), **under(PLAIN, part(server, MODEL))}

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        model = client.task.build(client.profile.architecture, request.part(MODEL))
        start, alpha = request.part(WEIGHTS), self.settings.alpha
        own = part(client.state, DRIFT) or zeros_like(start)
        tilt = correction(model, push={name: -own[name] for name in own}, pull=alpha, anchor=start)
        trained = train(client, model, self.training, context, correct=tilt)
        state = state_of(model)
        drift = {name: own[name] - alpha * (state[PARAMETERS + name] - start[name]) for name in start}
        client.state = {**client.state, **under(DRIFT, drift)}
        return Message({**under(MODEL, state), **work_report(trained)})

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        moves = {
            name: torch.stack([reply.message[name].double() - state[name] for reply in replies]).sum(dim=0)
            for name in self.moving(state)
        }
        return self._corrected(state, super().aggregate(state, replies, context), moves, context)

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        merged = super().aggregate(state, [self.mean_reply(state, sums)], context)
        return self._corrected(state, merged, sums.totals, context)

    def _corrected(self, state: Tensors, merged: Tensors, moves: Tensors, context: RoundContext) -> Tensors:
        """The next state from the mean model and the sum of the clients' updates."""
        alpha, corrected, drift = self.settings.alpha, {}, {}
        for name in self.moving(state):
            held = state[DRIFT + name].double() - alpha / context.clients * moves[name]
            drift[name] = held.to(state[name].dtype)
            corrected[name] = (merged[name].double() - held / alpha).to(state[name].dtype)
        return {**merged, **corrected, **under(DRIFT, drift), **under(PLAIN, part(merged, MODEL))}

    def extra_models(self, server: Tensors) -> Mapping[str, Tensors]:
        recalibrated = self.settings.buffers == "recalibrate"  # only the corrected model is recalibrated, not this one
        return {"plain average, not recalibrated" if recalibrated else "plain average": part(server, PLAIN)}

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        return [1.0 for _ in replies]

    def sum_weight(self, who: Profile) -> int:
        return 1
