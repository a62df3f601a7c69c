"""BatchNorm recalibration: the running statistics of the aggregated model, measured on the clients' data.

Averaged statistics describe the clients' models before aggregation, not the aggregated model. The aggregated model is
therefore sent to the clients once more. Each client forwards its data, unaugmented and without dropout, and sends the
number of rows, their sum and the sum of their squares for every BatchNorm layer. The sums over all clients give mean
and variance as if the data were pooled.

`layer-by-layer` takes one exchange per layer, in the order of definition (which must be a valid forward order). The
inputs of a layer have been normalised with the new statistics of the layers before it, so the result matches pooled
data up to rounding. `one-pass` takes one exchange. Earlier layers normalise by the client's own batches, as in
training, so the inputs of later layers are centred per client: this is cheaper, and only approximates pooled data if
clients differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstill.core.dataset import Dataset, every_row
from fedstill.core.egress import Egress
from fedstill.core.kinds import norm_layers, running
from fedstill.core.message import Message, part, under
from fedstill.core.numbers import count
from fedstill.core.protocols import Abstain, Client, Exchange, Profile, Reply, RoundContext, Shape
from fedstill.core.registry import Registry
from fedstill.core.streams import Streams
from fedstill.core.sums import Summand, Sums
from fedstill.core.task import Task, Tensors
from fedstill.methods.base import MODEL
from fedstill.models.batchnorm import MomentsHook

STATISTICS = "norm/*"  # what leaves a client in a recalibration
Place = Callable[[str], str]  # where the server keeps the model of an architecture: a prefix of names in its state


statistics: Registry[Any] = Registry("way to measure BatchNorm statistics")


def recalibrates(settings: Mapping[str, Any]) -> bool:
    """Whether a method with these settings re-estimates statistics in its rounds."""
    return "recalibrate" in (settings.get("buffers"), settings.get("statistics"))


def recalibrations(task: Task, way: str, batch: int) -> Sequence[Exchange]:
    """The exchanges that follow an aggregation of one shared model; none for a model without BatchNorm."""
    architecture = task.architectures[0]
    layers = tracked_layers(task, architecture)
    if not layers:
        return ()
    if way == "one-pass":
        return (Recalibration(task, "recalibrate", {architecture: layers}, batch, by_batch=True),)
    return [
        Recalibration(task, f"recalibrate {layer}", {architecture: [layer]}, batch, by_batch=False) for layer in layers
    ]


def tracked_layers(task: Task, architecture: str) -> list[str]:
    """The BatchNorm layers of an architecture that keep running statistics, in the order of their definition."""
    return list(running(task.build(architecture), "running_var"))


def shared_place(architecture: str) -> str:
    """The prefix of the one model that all clients share."""
    return MODEL


def recalibrated(model: nn.Module, task: Task, data: Dataset, streams: Streams, batch: int = 64) -> nn.Module | None:
    """A copy of the model with BatchNorm statistics measured on this data; None where `recalibrate` can do nothing."""
    if not running(model, "running_var"):
        return None
    copy = deepcopy(model)
    return copy if recalibrate(copy, task, data, streams, batch) else None


# Second behaviour: models of point clouds sum moments on their fast path, which rounds otherwise.
@statistics.register("recalibrate", behaviour=2)
def recalibrate(model: nn.Module, task: Task, data: Dataset, streams: Streams, batch: int = 64) -> bool:
    """Set a model's BatchNorm statistics to those measured on this data, in one pass of shuffled batches.

    False for a model without BatchNorm, or for data with fewer samples than a batch of two. A layer that no sample
    passes keeps its statistics.
    """
    layers = list(running(model, "running_var"))
    rows = torch.from_numpy(streams.draw("order").permutation(len(data)))
    batches = [piece for piece in rows.split(batch) if len(piece) > 1]
    if not layers or not batches:
        return False
    model.eval()
    with _Measured(model, layers, by_batch=True) as measured, torch.no_grad():
        for piece in batches:
            task.forward(model, data.batch(piece))
    _set_statistics(model, measured.sums())
    model.eval()
    return True


def recalibrate_exactly(model: nn.Module, task: Task, data: Dataset) -> None:
    """Set a model's BatchNorm statistics to those of its layers' inputs over all of this data, as if it were one batch.

    Takes one pass per layer, in the order in which the model calls them: the inputs of a layer are normalised with the
    new statistics of the layers before it. A head with one BatchNorm layer takes one pass. Dropout is off. A layer with
    fewer than two rows of inputs keeps its statistics.
    """
    model.eval()
    if not len(data):
        return
    with torch.no_grad():
        for layer in _call_order(model, task, data):
            with _Measured(model, [layer], by_batch=False) as measured:
                for rows in every_row(data):
                    task.forward(model, data.batch(rows))
            _set_statistics(model, measured.sums())


def _call_order(model: nn.Module, task: Task, data: Dataset) -> list[str]:
    """The BatchNorm layers with running statistics, in the order of their first call on a sample."""
    tracked = list(running(model, "running_var"))
    if len(tracked) < 2:
        return tracked
    with _Measured(model, tracked, by_batch=False) as measured:
        task.forward(model, data.batch(torch.zeros(1, dtype=torch.int64)))
    return list(measured.totals)


def _set_statistics(model: nn.Module, sums: Mapping[str, Tensor]) -> None:
    """Set running statistics from the sums over the inputs of layers."""
    for name, layer in norm_layers(model).items():
        found = part(sums, f"norm/{name}/")
        if not found or int(found["rows"]) < 2:
            continue
        assert layer.running_mean is not None
        assert layer.running_var is not None
        mean, variance = _moments([found])
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)


class Recalibration(Exchange):
    """An exchange that measures the inputs of some BatchNorm layers and sets their running statistics.

    Each client measures the model of its own architecture; `layers` names those to measure, by architecture.
    """

    egress = (Egress(STATISTICS, "statistics", "rows that a BatchNorm layer saw: number, sum, sum of squares"),)
    summed = (Summand("norm/*/rows", "count", weighted=False), Summand(STATISTICS, "statistics", weighted=False))

    def __init__(
        self,
        task: Task,
        name: str,
        layers: Mapping[str, Sequence[str]],
        batch: int,
        by_batch: bool,
        place: Place = shared_place,
    ) -> None:
        self.name, self.batch, self.by_batch, self.place = name, batch, by_batch, place
        self.layers = {architecture: list(names) for architecture, names in layers.items()}
        models = {architecture: task.build(architecture) for architecture in layers}
        self.means, self.variances = (
            {architecture: running(model, statistic) for architecture, model in models.items()}
            for statistic in ("running_mean", "running_var")
        )

    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        if not self.layers.get(who.architecture):
            return None
        return Message(under(MODEL, part(state, self.place(who.architecture))))

    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        architecture = client.profile.architecture
        model = client.task.build(architecture, request.part(MODEL)).eval()
        order = torch.from_numpy(client.streams.draw("order").permutation(len(client.data)))
        # BatchNorm needs two samples in training mode; otherwise no sample is left out.
        least = 2 if self.by_batch else 1
        batches = [rows for rows in order.split(self.batch) if len(rows) >= least]
        if not batches:
            raise Abstain(f"nothing measured: no batch of at least {least} in {count(len(client.data), 'sample')}")
        with _Measured(model, self.layers[architecture], self.by_batch) as measured, torch.no_grad():
            for rows in batches:
                client.task.forward(model, client.data.batch(rows))
                client.meter.add(len(rows))
        return Message(measured.sums())

    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, torch.dtype]]:
        expected: dict[str, tuple[Shape, torch.dtype]] = {}
        place, means = self.place(who.architecture), self.means[who.architecture]
        for layer in self.layers[who.architecture]:
            shape = tuple(state[place + means[layer]].shape)
            expected[f"norm/{layer}/rows"] = ((), torch.int64)
            expected[f"norm/{layer}/sum"] = (shape, torch.float64)
            expected[f"norm/{layer}/squares"] = (shape, torch.float64)
        return expected

    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        measured = dict(state)
        for architecture in self.layers:
            own = [reply.message for reply in replies if reply.profile.architecture == architecture]
            for name, value in under(self.place(architecture), self.measured(architecture, own)).items():
                measured[name] = value.to(state[name].dtype)
        return measured

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        """The same from one reply that holds the sums over all clients, of which all have one architecture."""
        (architecture,) = self.layers
        return self.aggregate(state, [Reply(Profile(0, 1, architecture), Message(sums.totals), None)], context)

    def measured(self, architecture: str, replies: Sequence[Message]) -> dict[str, Tensor]:
        """The new statistics of an architecture by name; without two rows there is no variance, and none is new."""
        found: dict[str, Tensor] = {}
        for layer in self.layers[architecture]:
            parts = [reply.part(f"norm/{layer}/") for reply in replies]
            if sum(int(one["rows"]) for one in parts) < 2:
                continue
            found[self.means[architecture][layer]], found[self.variances[architecture][layer]] = _moments(parts)
        return found


def _moments(parts: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and variance from the sums of all clients; the variance is unbiased, as in BatchNorm."""
    rows = sum(int(one["rows"]) for one in parts)
    mean = torch.stack([one["sum"] for one in parts]).sum(dim=0) / rows
    square = torch.stack([one["squares"] for one in parts]).sum(dim=0) / rows
    return mean, (square - mean * mean).clamp(min=0) * (rows / (rows - 1))


class _Measured:
    """A model whose BatchNorm layers accumulate sums over their inputs."""

    def __init__(self, model: nn.Module, layers: Sequence[str], by_batch: bool) -> None:
        found = norm_layers(model)
        self.totals: dict[str, list[Any]] = {}
        self.hooks = [found[name].register_forward_pre_hook(_Sums(self.totals, name)) for name in layers]
        if by_batch:
            for layer in found.values():
                layer.train()

    def __enter__(self) -> _Measured:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def sums(self) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        for layer, (rows, total, squares) in self.totals.items():
            sums[f"norm/{layer}/rows"] = torch.tensor(rows)
            sums[f"norm/{layer}/sum"], sums[f"norm/{layer}/squares"] = total.cpu(), squares.cpu()
        return sums


class _Sums(MomentsHook):
    """Adds the inputs of one layer to the totals: number of rows, their sum and the sum of their squares."""

    def __init__(self, totals: dict[str, list[Any]], name: str) -> None:
        self.totals, self.name = totals, name

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._add(_sums(inputs[0]))

    def moments(self, rows: float, mean: npt.NDArray[Any], variance: npt.NDArray[Any]) -> None:
        self._add(_totals(round(rows), torch.from_numpy(mean), torch.from_numpy(variance)))

    def _add(self, found: list[Any]) -> None:
        held = self.totals.get(self.name)
        self.totals[self.name] = found if held is None else [a + b for a, b in zip(held, found, strict=True)]


def _sums(inputs: Tensor) -> list[Any]:
    """The number of rows of channels, their sum and the sum of their squares.

    Squares are taken around the mean, and the rounding error of the single-precision mean is corrected afterwards: this
    is several times faster than torch's `var_mean`, and more exact than sums of squares around zero.
    """
    rows = inputs.movedim(1, -1).reshape(-1, inputs.shape[1])
    rough = rows.mean(dim=0)
    centred = rows - rough
    missed = centred.mean(dim=0).double()
    mean, square = rough.double() + missed, centred.square_().mean(dim=0).double() - missed.square()
    return _totals(len(rows), mean, square)


def _totals(rows: int, mean: Tensor, variance: Tensor) -> list[Any]:
    return [rows, rows * mean, rows * (variance + mean.square())]
