"""The shared samples that a run's model selects, with its outputs on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from fedstill.core.dataset import SharedSamples, Subset, every_row
from fedstill.core.errors import InputError
from fedstill.core.hardware import check_device, one_thread
from fedstill.core.protocols import RoundContext
from fedstill.core.streams import Streams
from fedstill.data.bundle import Kind
from fedstill.methods import methods
from fedstill.runtime.result import Run
from fedstill.shared_image.feddf import FedDF
from fedstill.shared_image.fedmd import FedMD
from fedstill.shared_image.proxy_selection import pool_outputs
from fedstill.shared_image.shared_proxy import SHARED, shared_proxy
from fedstill.shared_image.shared_samples import SELECTED
from fedstill.tasks.segmentation import Segmentation


@dataclass(frozen=True)
class Chosen:
    """Shared samples with a model's outputs: one row of each tensor per sample."""

    shared: str  # their source: patches:china, or a data set's name
    kind: Kind
    pool: int  # the size of the pool
    whose: str  # the architecture, if there are several, or the client
    rounds: int  # for which the model was trained
    accuracy: float | None  # of this model on test data; not recorded for a client's own model
    rows: Tensor
    inputs: Tensor
    embeddings: Tensor
    classes: Tensor  # predicted by the model


def chosen_by(
    run: Run, which: str = "last", client: int | None = None, data_root: Path | None = None, device: str = "cpu"
) -> Chosen:
    """The samples that a run's model would select for a next round; after 3 of 9 rounds, those of the 4th.

    With mixed architectures it is the model of the first one, whichever selected in the run. Methods whose clients have
    their own models, such as `fedmd`, have no shared model: there a client's model is used, on the same samples in
    every round.
    """
    check_device(device)
    task, experiment = replace(run.task, device=device), run.experiment
    wanted = _wanted(run)
    if isinstance(task, Segmentation):
        raise InputError(f"the model of {run.path} labels every point: it says no one thing of a sample")
    if task.finds_boxes:
        raise InputError(f"the model of {run.path} finds things in scenes: it says no one thing of a sample")
    model, architecture = run.built(which, client).to(device), run.architecture(client=client)
    kind: Kind = "cloud" if len(task.shape) == 2 else "image"
    proxy = shared_proxy(wanted, kind, task.shape, data_root)
    _check_same(run, proxy.digest)
    # The unwrapped method: attacks and clipping do not select samples.
    method = methods[experiment.method.name](experiment.method.settings, task, experiment.training, {SHARED: proxy})
    played = run.result.round_of[which]
    streams = Streams(experiment.seed)
    with one_thread():
        if isinstance(method, FedDF):
            context = RoundContext.of(streams, played, experiment.rounds, experiment.clients, method.name)
            rows = method.selected(lambda: model, context)
        else:
            rows = method.start(streams)[SELECTED]
        samples = Subset(proxy.data, rows)
        embeddings, logits = pool_outputs(task, model, samples)
    several = len(task.architectures) > 1
    return Chosen(
        shared=wanted.name,
        kind=kind,
        pool=len(proxy.data),
        whose=f"client {client}" if client is not None else architecture if several else "",
        rounds=played,
        accuracy=None if client is not None else _accuracy(run, played, architecture if several else None),
        rows=rows,
        inputs=samples.batch(every_row(samples, len(samples))[0])["inputs"],
        embeddings=embeddings,
        classes=logits.argmax(dim=1),
    )


def _wanted(run: Run) -> SharedSamples:
    """The samples that a run's clients share."""
    experiment = run.experiment
    kind = methods[experiment.method.name]
    wanted = kind.shared_samples(experiment.method.settings) if issubclass(kind, FedDF | FedMD) else None
    if wanted is None:
        able = [name for name in methods if issubclass(methods[name], FedDF | FedMD)]
        raise InputError(
            f"{experiment.method.name}, the method of {run.path}, asks nobody about samples that all have:"
            f" give a run of one of {', '.join(able)}"
        )
    return wanted


def _check_same(run: Run, digest: str) -> None:
    """Refuse samples that differ from the run's, by the digest in its name or, in a deployment, its fingerprint."""
    reads = run.config.get("reads") or f"{run.config['fingerprint']}"
    experiment, earlier = run.experiment, run.config["identity"]
    if digest not in reads and experiment.digest(reads + digest) != earlier:  # earlier versions stored no list
        raise InputError(
            f"the shared samples here are not those of {run.path}: the image or data set has changed since, or the run"
            " was made by another version of fedstill, or with another --plugin"
        )


def _accuracy(run: Run, round: int, architecture: str | None) -> float | None:
    record = next(record for record in run.journal if record.round == round)
    if record.evaluation is None:
        return None
    metrics = record.metrics if architecture is None else record.evaluation.extra_models.get(architecture, {})
    return metrics.get("accuracy")
