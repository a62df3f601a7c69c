"""What methods have in common in which clients say what they think of samples that everybody has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.dataset import Batch, Dataset, Proxy, Subset, Told, every_row
from fedstill.core.egress import Egress
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, Terms, fit
from fedstill.core.message import Message
from fedstill.core.protocols import Client, Meter, Method, Reply, Shape
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Output, Task
from fedstill.core.training import Training
from fedstill.distillation import Objective, objectives
from fedstill.distillation.label_modes import under_labels
from fedstill.methods.base import LOGITS, PRECISIONS, Precision
from fedstill.tasks.classification import Classification
from fedstill.tasks.segmentation import Segmentation

SELECTED, PROXY = "selected", "proxy"
LOGITS_EGRESS = Egress(LOGITS, "logits", "what the client's model says of the shared proxy samples")


class LogitSettings(Settings):
    """What methods that exchange logits on shared samples have in common."""

    samples: int = Field(1000, ge=2, description="proxy samples that a round's logits are about; at most all there are")
    precision: Precision = Field("half", description="of logits on the wire")
    weights: Literal["samples", "uniform"] = Field("samples", description="how much each client's word counts")


class StepSettings(Settings):
    """How a model is moved towards what others say."""

    steps: int = Field(500, ge=1, description="of distillation in each round")
    rate: float = Field(0.005, gt=0, description="learning rate of these steps, which are Adam's")
    batch: int = Field(128, ge=2, description="of these steps")
    temperature: float = Field(1.0, gt=0, description="of the objective, where it has one")


class ProxySettings(Settings):
    proxy: str | None = Field(
        None, description="what clients and server share: a data set, whose labels are not used, or patches:IMAGE"
    )


class LogitMethod(Method):
    """Clients say what they think of samples that everybody has."""

    needs = frozenset({"labels"})
    task: Classification
    settings: LogitSettings

    def check(self) -> None:
        if isinstance(self.task, Segmentation) or self.task.finds_boxes:
            what = "label points" if isinstance(self.task, Segmentation) else "find boxes"
            raise InputError(
                f"what is said of shared samples is said of whole ones, and these models {what}: choose data with"
                " one label for each sample"
            )

    wants: ClassVar = frozenset({"shared samples"})

    def __init__(
        self, settings: Settings, task: Task, training: Training, inputs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(settings, task, training)
        if inputs is not None:  # without them a finished run's method is read, but not run
            self.proxy: Proxy = inputs["shared samples"]
            self.check_proxy(len(self.proxy.data))

    def check_proxy(self, pool: int) -> None:
        """Refuse settings that cannot work with so many shared samples."""

    def __getstate__(self) -> dict[str, Any]:
        """Where clients are, the proxy is already: it does not travel with each exchange."""
        return {name: value for name, value in self.__dict__.items() if name != "proxy"}

    @property
    def size(self) -> int:
        return min(self.settings.samples, len(self.proxy.data))

    def asked(self, selected: Tensor) -> dict[str, Tensor]:
        """The question: which samples, of which proxy."""
        digest = torch.tensor(list(bytes.fromhex(self.proxy.digest)), dtype=torch.uint8)
        return {SELECTED: selected.to(torch.int32), PROXY: digest}

    def samples_of(self, client: Client, request: Message) -> Subset:
        """The samples that a client is asked about, if it has the same ones as the server."""
        if client.proxy is None or bytes(request[PROXY].tolist()).hex() != client.proxy.digest:
            raise InputError("the proxy data here is not the server's: give both the same image or data set")
        return self.samples_among(client.proxy.data, request[SELECTED])

    def samples_among(self, pool: Dataset, selected: Tensor) -> Subset:
        """Those samples of the pool, if it has them."""
        rows = selected.long()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(pool):
            raise InputError(f"there are {len(pool)} proxy samples, and some of those asked about are not among them")
        return Subset(pool, rows)

    def said(self, client: Client, model: torch.nn.Module, samples: Dataset) -> Tensor:
        """What a client's model says of these samples, as it is sent."""
        client.meter.add(len(samples))
        return words(client.task, model, samples).to(PRECISIONS[self.settings.precision])

    def expected_words(self, count: int) -> dict[str, tuple[Shape, torch.dtype]]:
        return {LOGITS: ((count, len(self.task.classes)), PRECISIONS[self.settings.precision])}

    def consensus(self, replies: Sequence[Reply]) -> Tensor:
        """The weighted mean of what the clients say; summed in the order of their ids, in double precision."""
        weights = [float(reply.profile.samples) if self.settings.weights == "samples" else 1.0 for reply in replies]
        total = torch.zeros(replies[0].message[LOGITS].shape, dtype=torch.float64)
        for weight, reply in zip(weights, replies, strict=True):
            total += weight * reply.message[LOGITS].double()
        return (total / sum(weights)).float()


def towards(
    model: torch.nn.Module,
    task: Task,
    proxy: Told,
    objective: Objective,
    settings: StepSettings,
    steps: int,
    streams: Streams,
    meter: Meter,
) -> None:
    """So many steps of a model towards what was said of the proxy."""

    def loss(output: Output, batch: Batch, shared: Mapping[str, Tensor]) -> Terms:
        teacher = Output(batch["said"].to(output.logits.device), output.features.detach())
        return objective.terms(output, teacher)

    training = Training(optimiser="adam", rate=settings.rate, batch=settings.batch, weight_decay=0.0)
    learner = Learner(model, loss, training.make_optimiser(model.parameters()), streams)
    fit([learner], task, proxy, Schedule(range(steps), settings.batch, steps=steps), streams, meter)


def on_logits(name: str, temperature: float) -> Objective:
    """An objective that needs nothing but logits, and no labels."""
    kind = objectives[name]
    given = {"temperature": temperature} if "temperature" in kind.Options.model_fields else {}
    objective = under_labels(kind(kind.Options.model_validate(given)), "withhold")
    if objective.compares_features or objective.least_teachers != 1:
        raise InputError(
            f"clients send logits, and the objective {name} wants more: choose vanilla, logit-mse, cosine, dkd or"
            " another one on logits"
        )
    return objective


def words(task: Task, model: torch.nn.Module, data: Dataset) -> Tensor:
    """What a model says of every sample, in evaluation mode."""
    model.eval()
    with torch.inference_mode():
        said = [task.forward(model, data.batch(rows)).logits.cpu() for rows in every_row(data)]
    return torch.cat(said).clone()
