"""Recalibration of the server's distilled models, one for each architecture, on the clients' data."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedstill.core.message import part, under
from fedstill.core.protocols import Exchange, Reply, RoundContext
from fedstill.core.task import Task, Tensors
from fedstill.methods.base import LOGITS, MODEL
from fedstill.methods.recalibration import Recalibration, tracked_layers

LESSON = "lesson/"  # lesson/ROUND/...: a round's samples, the consensus logits on them, and statistics measured then
RECALIBRATED = "recalibrated/"  # by architecture, the number of clients that measured its statistics in the last round


def model_place(architecture: str) -> str:
    """The prefix of an architecture's model in the server's state."""
    return f"{MODEL}{architecture}/"


def lesson(round: int, what: str) -> str:
    """The name of something that clients need to repeat a round's distillation."""
    return f"{LESSON}{round:06d}/{what}"


def steps_of(round: int, architecture: str) -> str:
    """The name of the number of steps after which a round's distillation of an architecture's model was kept."""
    return lesson(round, f"steps/{architecture}")


def statistics_of(round: int, architecture: str) -> str:
    """The prefix of the statistics that an architecture's model has after a round's recalibration."""
    return lesson(round, f"statistics/{architecture}/")


class ServerRecalibration(Recalibration):
    """The exchange after a distillation; a model that no client of the cohort can measure keeps its statistics."""

    min_replies = 0

    @classmethod
    def after_distillation(cls, task: Task, batch: int) -> Sequence[Exchange]:
        """That exchange; none if no architecture has BatchNorm layers."""
        layers = {architecture: tracked_layers(task, architecture) for architecture in task.architectures}
        if not any(layers.values()):
            return ()
        return (cls(task, "recalibrate", layers, batch, by_batch=True, place=model_place),)

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        after = dict(super().aggregate(state, replies, context))
        for architecture, layers in self.layers.items():
            if not layers:
                continue
            clients = sum(reply.profile.architecture == architecture for reply in replies)
            after[RECALIBRATED + architecture] = torch.tensor(clients)
            if lesson(context.round, LOGITS) in after:
                model = part(after, model_place(architecture))
                names = [*self.means[architecture].values(), *self.variances[architecture].values()]
                after |= under(statistics_of(context.round, architecture), {name: model[name] for name in names})
        return after
