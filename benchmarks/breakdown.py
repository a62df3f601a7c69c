"""CPU time of a round by part, in-process, compared with the hand-written loop.

This benchmark wraps functions while it runs. Each function is charged its own time, without that of the wrapped
functions it calls. CPU seconds are used because other processes do not change them.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.data import write_images
from benchmarks.plain_loop import PlainLoop
from benchmarks.report import Findings
from benchmarks.setting import SameWork, fedavg
from benchmarks.sizes import Size
from fedstill.core import client, fit
from fedstill.core.dataset import ArrayDataset, Subset
from fedstill.core.hardware import one_thread
from fedstill.core.message import Message
from fedstill.core.optimisers import Optimiser
from fedstill.core.streams import Streams
from fedstill.core.training import Training
from fedstill.methods import base
from fedstill.methods import fedavg as averaging
from fedstill.models.classifier import Classifier
from fedstill.runtime import checkpoint, dispatch, evaluation
from fedstill.runtime.launch import launch
from fedstill.runtime.run_folder import RunFolder
from fedstill.tasks.classification import Classification

# Timed functions by line of the table. All calls within evaluation and saving count towards these parts.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "forward": [(Classifier, "forward"), (Classification, "forward")],
    "backward": [(torch.Tensor, "backward")],
    "optimiser": [(Optimiser, "step"), (Optimiser, "zero_grad"), (Training, "make_optimiser")],
    "batching": [(ArrayDataset, "batch"), (Subset, "batch")],
    "building models": [(Classification, "build"), (torch.nn.Module, "load_state_dict")],
    "random streams": [(Streams, "torch_state"), (Streams, "draw"), (torch.Generator, "set_state")],
    "messages": [(Message, "__init__"), (Message, "_form"), (averaging, "state_of"), (client, "check_egress")],
    "checking replies": [(dispatch, "validate_reply")],
    "aggregation": [(averaging, "average")],
    "evaluation": [(Classification, "score"), (evaluation, "all_finite"), (PlainLoop, "_accuracy")],
    "training loop": [(fit._Tally, "add"), (fit, "_step"), (base, "fit"), (PlainLoop, "_train")],
    "saving models": [(RunFolder, "save_models"), (RunFolder, "append_journal"), (checkpoint, "save")],
}
WHOLE = ("evaluation", "saving models")  # their calls are included
OTHER = "other"


class Clock:
    """Self times by part, with a stack of the running parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.running = [OTHER]
        self.since = process_time()

    def switch(self) -> None:
        now = process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.running[-1] in WHOLE:
                return function(*args, **kwargs)
            self.switch()
            self.running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self.running.pop()

        return timed


@contextmanager
def watched(clock: Clock) -> Iterator[None]:
    with ExitStack() as stack:
        for part, functions in PARTS.items():
            for owner, name in functions:
                try:
                    stack.enter_context(patch.object(owner, name, clock.wrap(part, getattr(owner, name))))
                except TypeError:  # methods of built-in types cannot be replaced; their time counts for the caller
                    continue
        yield


def measure(size: Size, folder: Path) -> Findings:
    images, kind = write_images(folder, size.samples)
    findings = Findings()
    for clients in size.federations:
        rounds = size.rounds
        work = SameWork(images, clients)
        plain, ours = Clock(), Clock()
        with one_thread(), watched(plain):
            work.loop.round(work.orders())  # warm-up: torch loads some code lazily
            plain.seconds.clear()
            for _ in range(rounds):
                orders = work.orders()
                plain.since = process_time()
                work.loop.round(orders)
                plain.switch()
        counted = _OnlyRounds(ours)
        with watched(ours):
            launch(fedavg(images, clients, rounds + 1), out=folder, observers=[counted])
        title = f"Parts of a round of {clients} clients ({kind}, CPU milliseconds a round)"
        findings.tables[title] = _lines(counted.seconds, plain.seconds, rounds)
    return findings


class _OnlyRounds:
    """Discards the time before the second round and after the last one."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}

    def start(self, experiment: Any, journal: Any) -> None:
        pass

    def round(self, record: Any) -> None:
        self.clock.switch()
        if record.round == 1:
            self.clock.seconds.clear()
        self.seconds = dict(self.clock.seconds)

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass


def _lines(ours: dict[str, float], plain: dict[str, float], rounds: int) -> list[tuple[str, ...]]:
    whole = sum(ours.values())
    lines = [("part", "Fedstill", "share", "loop")]
    for part in (*PARTS, OTHER):
        a, b = ours.get(part, 0.0), plain.get(part, 0.0)
        lines.append((part, f"{1e3 * a / rounds:.1f}", f"{a / whole:.1%}", f"{1e3 * b / rounds:.1f}"))
    total = sum(plain.values())
    return [*lines, ("all", f"{1e3 * whole / rounds:.1f}", f"{1:.0%}", f"{1e3 * total / rounds:.1f}")]
