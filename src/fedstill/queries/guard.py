"""A limit on what a client may forget of its own classes while it learns those that it queried.

    f(w)     = mean over own classes of max(0, recall before - recall of w), on samples that the client holds out
    lambda   in query_weight * (1, 1/2, 1/4, 1/8), the largest first: both phases are trained with it on the other
             samples, and of the epochs of the last phase the last one with f <= max_forgetting is kept
    none     if no epoch of any lambda stays within the limit: the client keeps its model

A client has no samples of the queried classes, so it cannot measure what it gains: it takes the strongest transfer that
the limit allows. Samples are held out as for early stopping (`hold_out`). If the model was trained on them, as in a
finished run without `patience`, its recall before is too high, and the limit is stricter than it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.core.dataset import Dataset
from fedstill.core.kinds import state_of
from fedstill.core.numbers import listed, share
from fedstill.core.protocols import Meter
from fedstill.core.settings import Settings
from fedstill.core.task import Task, Tensors
from fedstill.queries.query import Answered, recalls
from fedstill.queries.transfer_loss import Watch

FRACTIONS = (1.0, 0.5, 0.25, 0.125)  # of query_weight, in the order in which they are tried
CHOICE = "choice/"  # prefix of the chosen lambda and epoch in a client's state


class GuardSettings(Settings):
    """How much a client may forget."""

    max_forgetting: float | None = Field(
        None,
        ge=0,
        le=100,
        description="largest allowed mean loss of recall on a client's own classes, in points, on samples it holds out:"
        " lambda is lowered and the number of epochs chosen to stay within it; none: no limit",
    )


@dataclass
class Guard:
    """Watches the epochs of a transfer, and keeps the last state of its last phase that stays within the limit."""

    task: Task
    data: Dataset  # samples that the client holds out
    before: nn.Module
    limit: float  # in points
    last_phase: str
    meter: Meter
    state: Tensors = field(default_factory=dict)  # empty: none so far
    chosen: tuple[float, int, float] = (0.0, 0, 0.0)  # lambda, epochs of the last phase, points forgotten

    def __post_init__(self) -> None:
        self.recalls, self.counts = self._recalls(self.before)

    def forgetting(self, model: nn.Module) -> float:
        """The mean loss of recall over the classes with held-out samples, in points."""
        now, _ = self._recalls(model)
        lost = (self.recalls - now)[self.counts > 0].clamp(min=0)
        return 100 * float(lost.mean())

    def watch(self, weight: float, then: Watch | None) -> Watch:
        """The observer of one attempt, with this lambda."""

        def seen(phase: str, epoch: int, model: nn.Module) -> None:
            if phase == self.last_phase:
                lost = self.forgetting(model)
                if lost <= self.limit:
                    self.state, self.chosen = state_of(model), (weight, epoch, lost)
            if then is not None:
                then(phase, epoch, model)

        return seen

    @property
    def choice(self) -> Tensors:
        """The chosen lambda, number of epochs and points forgotten, as a client's state has them."""
        return choice_of(*self.chosen)

    def _recalls(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        self.meter.add(len(self.data))
        confusion = self.task.score([model], self.data)["confusion"]
        return recalls(confusion), confusion.sum(dim=1)


def choice_of(weight: float = 0.0, epochs: int = 0, lost: float = 0.0) -> Tensors:
    """A choice as a client's state has it; by default none: the client keeps its model."""
    return {
        f"{CHOICE}query_weight": torch.tensor(weight, dtype=torch.float64),
        f"{CHOICE}epochs": torch.tensor(epochs),
        f"{CHOICE}forgetting": torch.tensor(lost, dtype=torch.float64),
    }


def choice_in(state: Mapping[str, Tensor]) -> dict[str, float] | None:
    """The chosen lambda, epochs and points forgotten in a client's state, if there was a limit."""
    found = {name.removeprefix(CHOICE): tensor.item() for name, tensor in state.items() if name.startswith(CHOICE)}
    return found or None


def collapse_warning(fate: Answered, names: Sequence[str]) -> str | None:
    """Own classes that were nearly lost, with numbers, and how to limit that; None if there are none.

    >>> before, after = torch.tensor([0.765, 0.6, 0.0]), torch.tensor([0.075, 0.58, 0.9])
    >>> collapse_warning(Answered(before, after, torch.tensor([30, 10, 0]), (2,)), ("bird", "cat", "deer"))
    'own classes collapse: bird 76.5\\xa0% → 7.5\\xa0%, while the average accuracy goes from 36.2\\xa0% to 55.1\\xa0%; \
max_forgetting limits such losses'
    """
    if not fate.collapsed:
        return None
    each = [
        f"{names[number]} {share(float(fate.before[number]), 1)} → {share(float(fate.after[number]), 1)}"
        for number in fate.collapsed
    ]
    metrics = fate.metrics()
    return (
        f"own classes collapse: {listed(each)}, while the average accuracy goes from {share(metrics['before'], 1)} to"
        f" {share(metrics['accuracy'], 1)}; max_forgetting limits such losses"
    )
