"""How large models are and how long they take, in PyTorch and in onnxruntime, measured turn by turn.

Times on a shared machine drift. So everything that is to be compared takes turns, one pass each, and drifts alike;
medians and 95th percentiles say what one pass takes and what it takes on a bad day. Threads of PyTorch are set and put
back; the compiled kernels of point models use one thread whatever is set. Two threads of PyTorch wait for each other,
and with a busy neighbour they are many times slower than one: figures for two threads need an idle machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.core.hardware import threads_of
from fedstill.export.export_files import describe
from fedstill.export.subject import Subject, bytes_of, parameters_of
from fedstill.models.portable.extra import missing
from fedstill.models.portable.onnx_file import OnnxModel, onnx_bytes

Pass = Callable[[], object]
SEED_BATCH = 24  # the evaluation batch of the paper on which the seed's figure is taken


@dataclass(frozen=True)
class Protocol:
    """How to measure: passes of each, after warm-ups, ended early once a setting has taken `seconds`."""

    passes: int = 100
    warm_ups: int = 10
    seconds: float = 20.0
    fewest: int = 5
    batches: tuple[int, ...] = (1, 32)
    threads: tuple[int, ...] = (1, 2)
    onnx: bool = True  # False: PyTorch only, which saves the conversion


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one pass."""

    runtime: str
    batch: int
    threads: int
    passes: int
    median: float
    p95: float


@dataclass(frozen=True)
class SeedLatency:
    """The seed's own figure: the plain mean over passes on one evaluation batch, after warm-ups, in milliseconds."""

    batch: int
    passes: int
    warm_ups: int
    mean: float


@dataclass(frozen=True)
class Measured:
    """All figures of one model; `onnx_bytes` is None where onnxruntime is not installed."""

    run: str
    model: str
    parameters: int
    bytes: int
    onnx_bytes: int | None
    inputs: str
    latency: tuple[Latency, ...]
    seed: SeedLatency

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(subjects: Sequence[Subject], protocol: Protocol | None = None) -> list[Measured]:
    """Figures of every subject; all subjects and runtimes take turns within a batch size and a number of threads."""
    protocol = protocol or Protocol()
    files = [_onnx(subject) if protocol.onnx else None for subject in subjects]
    largest = max(*protocol.batches, SEED_BATCH)
    inputs = [subject.inputs(largest) for subject in subjects]
    found: list[list[Latency]] = [[] for _ in subjects]
    for threads, batch in product(protocol.threads, protocol.batches):
        passes: dict[tuple[int, str], Pass] = {}
        for number, (subject, file, (tensor, _)) in enumerate(zip(subjects, files, inputs, strict=True)):
            passes[number, "pytorch"] = _pass(subject.model, tensor[:batch])
            if file is not None:
                names = tuple(subject.task.file_form().outputs)
                passes[number, "onnxruntime"] = _pass(OnnxModel(file, threads, outputs=names), tensor[:batch])
        with threads_of(threads):
            times = _in_turns(list(passes.values()), protocol)
        for (number, runtime), taken in zip(passes, times, strict=True):
            median, p95 = (float(value) for value in np.percentile(taken, (50, 95)))
            found[number].append(Latency(runtime, batch, threads, len(taken), median, p95))
    with threads_of(1):
        every = [
            _pass(subject.model, tensor[:SEED_BATCH]) for subject, (tensor, _) in zip(subjects, inputs, strict=True)
        ]
        means = [float(np.mean(taken)) for taken in _in_turns(every, protocol, whole=True)]
    return [
        Measured(
            str(subject.run.path),
            subject.task.architectures[0],
            parameters_of(subject.model),
            bytes_of(subject.model),
            None if file is None else len(file),
            origin,
            tuple(latencies),
            SeedLatency(SEED_BATCH, protocol.passes, protocol.warm_ups, mean),
        )
        for subject, file, (_, origin), latencies, mean in zip(subjects, files, inputs, found, means, strict=True)
    ]


def ratios(teacher: Measured, student: Measured) -> dict[str, Any]:
    """Teacher over student: how many times smaller and faster the student is, by medians."""
    pairs = zip(teacher.latency, student.latency, strict=True)
    return {
        "parameters": teacher.parameters / student.parameters,
        "bytes": teacher.bytes / student.bytes,
        "latency": [
            {"runtime": one.runtime, "batch": one.batch, "threads": one.threads, "median": one.median / other.median}
            for one, other in pairs
        ],
        "seed": teacher.seed.mean / student.seed.mean,
    }


def _in_turns(passes: Sequence[Pass], protocol: Protocol, whole: bool = False) -> list[list[float]]:
    """Milliseconds of each pass; `whole` takes all passes, however long they take."""
    for _ in range(protocol.warm_ups):
        for one in passes:
            one()
    times: list[list[float]] = [[] for _ in passes]
    begun = perf_counter()
    for turn in range(protocol.passes):
        if not whole and turn >= protocol.fewest and perf_counter() - begun > protocol.seconds:
            break
        for one, taken in zip(passes, times, strict=True):
            start = perf_counter()
            one()
            taken.append(1000 * (perf_counter() - start))
    return times


def _pass(model: nn.Module, inputs: Tensor) -> Pass:
    def once() -> None:
        with torch.inference_mode():
            model(inputs)

    return once


def _onnx(subject: Subject) -> bytes | None:
    if missing():
        return None
    task = subject.task
    return onnx_bytes(subject.model, task.shape, describe(task), tuple(task.file_form().outputs))
