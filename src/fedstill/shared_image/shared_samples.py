"""Shared parts of methods whose clients send logits on samples that clients and server share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import Batch, Dataset, Proxy, Subset, Told, every_row
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, Terms, fit
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Meter, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task
from fedstill.core.training import Training
from fedstill.distillation import Objective, objectives
from fedstill.distillation.label_modes import under_labels
from fedstill.methods.base import LOGITS, PRECISIONS, Precision
from fedstill.shared_image.logit_clipping import clipped
from fedstill.tasks.segmentation import Segmentation

SELECTED, PROXY = "selected", "proxy"
Statistics = Literal["frozen", "batch", "recalibrate"]
LOGITS_EGRESS = Egress(LOGITS, "logits", "what the client's model says of the shared proxy samples")


class LogitSettings(Settings):
    """Settings of every method that exchanges logits on shared samples."""

    samples: int = Field(1000, ge=2, description="number of proxy samples per round, at most all")
    precision: Precision = Field("half", description="precision of transmitted logits")


def rate_field(default: float) -> Any:
    """The setting of the rate, whose default is the method's."""
    return Field(default, gt=0, description="learning rate of distillation, with Adam")


def statistics_field(default: Statistics) -> Any:
    """The setting of BatchNorm statistics, whose default is the method's."""
    return Field(
        default,
        description="BatchNorm statistics of the distilled model: frozen, its own are used and kept; batch, those of"
        " batches of proxy samples replace them; recalibrate, frozen, and then re-estimated on the clients' data",
    )


class StepSettings(Settings):
    """The settings of distillation towards received logits."""

    steps: int = Field(500, ge=1, description="of distillation in each round")
    rate: float = rate_field(0.005)
    batch: int = Field(128, ge=2, description="of these steps")
    temperature: float = Field(1.0, gt=0, description="temperature of the distillation loss, if it has one")
    statistics: Statistics = statistics_field("batch")


class ProxySettings(Settings):
    proxy: str | None = Field(
        None,
        description="proxy data shared by clients and server: a data set, whose labels are not used, or patches:IMAGE",
    )


class ServerProxy:
    """The shared samples on the server. They are not pickled: clients have their own copy."""

    def __init__(self, inputs: Mapping[str, Any] | None) -> None:
        """From a method's inputs; without them, a finished run's method can be read but not run."""
        self._held: Proxy | None = None if inputs is None else inputs["shared samples"]

    @property
    def data(self) -> Dataset:
        assert self._held is not None
        return self._held.data

    def size(self, wanted: int) -> int:
        """The number of samples in a round's logits."""
        return min(wanted, len(self.data))

    def question(self, selected: Tensor) -> dict[str, Tensor]:
        """The part of a request that identifies the proxy data and the samples."""
        assert self._held is not None
        digest = torch.tensor(list(bytes.fromhex(self._held.digest)), dtype=torch.uint8)
        return {SELECTED: selected.to(torch.int32), PROXY: digest}

    def __getstate__(self) -> dict[str, Any]:
        return {"_held": None}


def check_whole_samples(task: Task) -> None:
    """Refuse tasks without one label for each sample."""
    if isinstance(task, Segmentation) or task.finds_boxes:
        what = "label points" if isinstance(task, Segmentation) else "find boxes"
        raise InputError(
            f"what is said of shared samples is said of whole ones, and these models {what}: choose data with"
            " one label for each sample"
        )


def samples_of(client: Client, request: Message) -> Subset:
    """The requested samples, if the client has the same ones as the server."""
    if client.proxy is None or bytes(request[PROXY].tolist()).hex() != client.proxy.digest:
        raise InputError("the proxy data here is not the server's: give both the same image or data set")
    return samples_among(client.proxy.data, request[SELECTED])


def samples_among(pool: Dataset, selected: Tensor) -> Subset:
    """The requested samples of the pool, if it contains them."""
    rows = selected.long()
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(pool):
        raise InputError(f"there are {len(pool)} proxy samples, and some of those asked about are not among them")
    return Subset(pool, rows)


def client_logits(client: Client, model: torch.nn.Module, samples: Dataset, precision: Precision) -> Tensor:
    """The logits of a client's model on these samples, as they are sent."""
    client.meter.add(len(samples))
    return logits_on(client.task, model, samples).to(PRECISIONS[precision])


def expected_logits(count: int, classes: int, precision: Precision) -> dict[str, tuple[Shape, torch.dtype]]:
    """The expected shape and type of what `client_logits` returns."""
    return {LOGITS: ((count, classes), PRECISIONS[precision])}


def towards(
    model: torch.nn.Module,
    task: Task,
    proxy: Told,
    objective: Objective,
    settings: StepSettings,
    steps: int,
    streams: Streams,
    meter: Meter,
    *,
    clip: float | None = None,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Distil a model towards logits on the proxy data, for this many steps.

    `clip` is the norm to which its logits are clipped; `watch` is called after each step.
    """

    def loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        teacher = Output(batch["said"].to(output.log_probabilities.device), output.features.detach())
        return objective.terms(clipped(output, clip), teacher)

    training = Training(optimiser="adam", rate=settings.rate, batch=settings.batch, weight_decay=0.0)
    optimiser, freeze = training.make_optimiser(model.parameters()), settings.statistics != "batch"
    learner = Learner(model, loss, optimiser, streams, freeze_statistics=freeze, watch=watch)
    fit([learner], task, proxy, Schedule(range(steps), settings.batch, steps=steps), streams, meter)


def on_logits(name: str, temperature: float) -> Objective:
    """An objective that needs only logits, and no labels."""
    kind = objectives[name]
    given = {"temperature": temperature} if "temperature" in kind.Options.model_fields else {}
    objective = under_labels(kind(kind.Options.model_validate(given)), "withhold")
    if objective.compares_features or objective.least_teachers != 1:
        raise InputError(
            f"clients send logits, and the objective {name} wants more: choose vanilla, logit-mse, cosine, dkd or"
            " another one on logits"
        )
    return objective


def logits_on(task: Task, model: torch.nn.Module, data: Dataset) -> Tensor:
    """A model's logits on every sample, in evaluation mode."""
    model.eval()
    with torch.inference_mode():
        said = [task.forward(model, data.batch(rows)).log_probabilities.cpu() for rows in every_row(data)]
    return torch.cat(said).clone()
