"""The check at the end of a run: do the BatchNorm statistics of its shared models fit their weights?

Whatever changes weights on a server (averaging, distillation, a split head) can leave running statistics that describe
other weights; accuracy then says little about the weights. The statistics are re-estimated on training data, and the
gain in test accuracy is measured: here, where a simulation has the clients' data; by the sites, where they evaluate
(see `on_site_evaluation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedstill.core.dataset import Dataset, Subset
from fedstill.core.kinds import state_of
from fedstill.core.numbers import points, share
from fedstill.core.records import BatchNormCheck
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.task import Task, Tensors
from fedstill.methods.recalibration import recalibrate, tracked_layers
from fedstill.runtime.evaluation import CentralEvaluator
from fedstill.runtime.simulated_clients import SimulatedClients

SAMPLES = 1024  # of the clients' training data, at most
STALE = 0.05  # a gain above this is worth a warning: the audit's threshold
_BATCH = 64


def has_statistics(task: Task, models: Mapping[str, Tensors]) -> bool:
    """Whether one of the models has BatchNorm layers with running statistics."""
    return any(tracked_layers(task, architecture) for architecture in models)


def check_centrally(
    models: Mapping[str, Tensors],
    accuracy: float | None,
    evaluator: CentralEvaluator,
    clients: SimulatedClients,
    streams: Streams,
    batch: int = _BATCH,
) -> BatchNormCheck | None:
    """Re-estimate on a sample of all clients' training data; None where no shared model has BatchNorm."""
    task, streams = evaluator.task, streams.at("statistics check")
    if not has_statistics(task, models):
        return None
    data = _sample(clients, streams)
    anew = dict(models)
    with streams.ambient("forward"):
        for architecture, state in models.items():
            model = task.build(architecture, state)
            if recalibrate(model, task, data, streams, batch):
                anew[architecture] = state_of(model)
        metrics = evaluator.test_metrics(anew)
    return BatchNormCheck(accuracy=accuracy, recalibrated=metrics["accuracy"], samples=len(data))


def _sample(clients: SimulatedClients, streams: Streams) -> Dataset:
    """Some training samples, each of some client; the same in every run of this seed."""
    rows = clients.shards.order
    chosen = streams.draw("sample").permutation(len(rows))[:SAMPLES]
    return Subset(clients.data, rows[torch.from_numpy(chosen)])


def check_sentence(check: BatchNormCheck) -> str:
    """What the check found, for a person."""
    if check.gain is None or check.recalibrated is None:
        return f"BatchNorm statistics were not checked: {check.not_measured}"
    where = f"re-estimated on {check.samples:,} training samples"
    if abs(check.gain) < STALE / 10:
        return f"BatchNorm statistics fit the weights: {where}, they give {share(check.recalibrated)}"
    return f"BatchNorm statistics {where} would give {share(check.recalibrated)}, {_change(check.gain)}"


def check_warning(check: BatchNormCheck | None, settings: Settings) -> str | None:
    """What to say where the statistics do not fit the weights; None where nothing is wrong, or nothing is known.

    The method's settings tell which of them would help.
    """
    if check is None or check.gain is None or check.gain <= STALE:
        return None
    named = [name for name in ("statistics", "buffers") if name in type(settings).model_fields]
    advice = f": set method.{named[0]}=recalibrate" if named and vars(settings)[named[0]] != "recalibrate" else ""
    return (
        f"BatchNorm statistics do not fit the weights: the model has {share(check.accuracy)}, and"
        f" {share(check.recalibrated)} with statistics re-estimated on training data{advice}"
    )


def _change(gain: float) -> str:
    return f"{points(abs(gain))} {'more' if gain > 0 else 'less'}"
