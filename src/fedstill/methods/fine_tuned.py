"""FedAvg followed by local fine-tuning on every client.

It is called FT-FedAvg, a personalisation baseline, in *Query-based Knowledge Transfer for Heterogeneous Learning
Environments*, Alballa et al., 2025, https://arxiv.org/abs/2504.09205, appendix A.2, and is studied in *Salvaging
Federated Learning by Local Adaptation*, Yu et al., 2020, https://arxiv.org/abs/2002.04758

    w    as in FedAvg, for the configured number of rounds
    v_i <- local training from w, for `tuning_epochs`       (one round more; each client i of its cohort)

v_i never leaves its client, and the fine-tuning round aggregates nothing: the shared model matches FedAvg bit for bit.
The learning rate is that of the last shared round. A client outside the cohort of the fine-tuning round has no personal
model and uses the shared one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import Field

from fedstill.core.egress import Egress, in_rounds
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, part, under
from fedstill.core.protocols import Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.sums import Sums
from fedstill.core.task import Tensors
from fedstill.core.training import Training
from fedstill.methods.base import MODEL, WORK_EGRESS, methods, train, work_expected, work_report
from fedstill.methods.fedavg import FedAvg, FedAvgSettings

PERSONAL = "personal/"
ROUNDS = "rounds"  # total number of rounds: exchanges depend on state and round alone


class FineTunedSettings(FedAvgSettings):
    tuning_epochs: int | None = Field(
        None, ge=1, description="epochs of each client's fine-tuning at the end; none: twice those of a round"
    )


@methods.register("fine-tuned")
class FineTuned(FedAvg):
    """FedAvg, then one round in which each client fine-tunes the shared model and keeps the result."""

    Options = FineTunedSettings
    settings: FineTunedSettings
    personal = True
    from_sums = True

    def rounds(self, given: int) -> int:
        return given + 1

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        """The last round only fine-tunes, unless no round was aggregated before."""
        last = ROUNDS in server and round == int(server[ROUNDS]) - 1
        return (Tuning(self),) if last else super().exchanges(server, round)

    def every_exchange(self) -> Sequence[Exchange]:
        return (*super().exchanges({}, 0), Tuning(self))

    def when(self, line: Egress, rounds: int) -> str:
        """Models leave in all rounds but the last, in which clients fine-tune and keep the result."""
        return in_rounds(range(rounds - 1), rounds) if line.name.startswith(MODEL) else super().when(line, rounds)

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        return super().reply(client, request, _shared(context))

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return {**super().aggregate(state, replies, _shared(context)), ROUNDS: torch.tensor(context.rounds)}

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        return part(state, PERSONAL) or None

    @property
    def tuning(self) -> Training:
        epochs = self.settings.tuning_epochs or 2 * self.training.epochs
        return self.training.model_copy(update={"epochs": epochs})


class Tuning(Exchange):
    """The last round: a client receives the shared model, fine-tunes it, and keeps the result."""

    name = "tune"
    egress = WORK_EGRESS
    summed = ()  # nothing but metrics

    def __init__(self, method: FineTuned) -> None:
        self.method = method

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        return Message(under(MODEL, part(state, MODEL)))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        model = client.task.build(client.profile.architecture, request.part(MODEL))
        trained = train(client, model, self.method.tuning, replace(_shared(context), round=context.round - 1))
        client.state = {**client.state, **under(PERSONAL, state_of(model))}
        return Message(work_report(trained))

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        return work_expected(self.method.task.terms)

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        return state

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        return state


def _shared(context: RoundContext) -> RoundContext:
    """The context of the FedAvg rounds, one fewer, so that the learning-rate schedule ignores the fine-tuning round."""
    return replace(context, rounds=context.rounds - 1)
