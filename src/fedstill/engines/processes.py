"""Clients in worker processes: N of them, one thread each, started once and reused.

Two workers on two cores beat two threads in one process, which collapse as soon as a neighbour is busy.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cloudpickle
import torch
from torch import Tensor

from fedstill.core.client import answer
from fedstill.core.errors import EndsRunError, InputError, RunError
from fedstill.core.message import Message
from fedstill.core.own_parts import OwnParts, own_modules_by_value, pickled
from fedstill.core.protocols import ClientFactory, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.engines.client_job import ClientJob
from fedstill.engines.workers import WorkerEnded, WorkerPool

_log = logging.getLogger(__name__)

_SHARE_ABOVE = 2**16  # bytes: larger tensors of the factory are mapped from a file instead of being copied


class Processes:
    """N worker processes with one thread each; data is mapped once and shared between them."""

    at_sites = False

    def __init__(self, workers: int = 2, device: str = "cpu") -> None:
        self.report: Callable[[str], None] = _log.info
        self.pool: WorkerPool[ClientJob] = WorkerPool(workers, answer_clients, lambda: ("hello",), device)
        self.size = workers
        self._own = OwnParts()
        self._own_parts = self._factory = b""

    def open(self, factory: ClientFactory) -> None:
        if (own := OwnParts.here()) != self._own or not self._own_parts:
            self._own, self._own_parts = own, pickle.dumps(("own parts", own), protocol=5)
        self._factory = _pickle_sharing(("open", factory), self.pool.new_scratch())

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        queue = (ClientJob(*job) for job in jobs)
        repeated: list[ClientJob] = []
        described = pickled(("exchange", exchange, context))
        answered: Reply | Failure | None = None
        self.pool.fill()
        try:
            while True:
                while self.pool.idle and (job := repeated.pop() if repeated else next(queue, None)) is not None:
                    self._hand_over(described, job)
                if answered is not None:  # looked at only now that its worker has something else to do
                    yield answered
                    answered = None
                if not self.pool.busy:
                    return
                worker, outcome = self.pool.receive()
                job = self.pool.finish(worker)
                if isinstance(outcome, WorkerEnded):
                    repeated.append(job.again(context, str(outcome), self.report))
                else:
                    answered = _outcome(outcome)
        finally:
            self.pool.abandon()  # left in mid-exchange: what these workers would still send belongs to nobody

    def _hand_over(self, described: bytes, job: ClientJob) -> None:
        """A worker is sent the factory and the exchange once, and of each client only what is its own."""
        worker = self.pool.assign(job)
        worker.provide("own parts", self._own_parts)
        worker.provide("factory", self._factory)
        worker.provide("exchange", described)
        worker.provide("request", job.request)  # often that of the client before
        worker.send(("job", job.who, Message(job.state) if job.state else None))

    def __enter__(self) -> Self:
        self.pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.__exit__(kind, error, trace)


def _outcome(received: Any) -> Reply | Failure:
    if isinstance(received, Failure):
        return received
    if isinstance(received, RunError):
        raise received
    reply: Reply = received
    return reply


def answer_clients(receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    """In a worker: answer for one client after another."""
    torch.set_num_threads(1)
    factory: Any = None
    exchange: Any = None
    context: Any = None
    request: Any = None
    while True:
        what, *rest = receive()
        if what == "own parts":
            rest[0].install()
        elif what == "open":
            (factory,) = rest
        elif what == "exchange":
            exchange, context = rest
        elif what == "request":
            (request,) = rest
        elif what == "job":
            send(_replied(factory, exchange, context, request, *rest))


def _replied(
    factory: ClientFactory,
    exchange: Exchange,
    context: RoundContext,
    request: Message,
    who: Profile,
    state: Message | None,
) -> Any:
    try:
        outcome = answer(factory, exchange, who, request, {} if state is None else state, context)
    except EndsRunError as error:
        return error
    if isinstance(outcome, Failure) or outcome.state is None:
        return outcome
    return replace(outcome, state=Message(outcome.state))


class _SharingPickler(cloudpickle.Pickler):
    """Puts large tensors into files that workers map, so that N workers share one copy of the data."""

    def __init__(self, file: io.BytesIO, folder: Path) -> None:
        super().__init__(file, protocol=5)
        self.folder, self.count = folder, 0

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.nbytes < _SHARE_ABOVE or value.device.type != "cpu":
            return super().reducer_override(value)
        path = self.folder / f"{self.count}.bin"
        self.count += 1
        value.detach().contiguous().view(-1).view(torch.uint8).numpy().tofile(path)
        return _mapped, (str(path), value.dtype, tuple(value.shape))


def _mapped(path: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.from_file(path, shared=False, size=count, dtype=dtype).view(shape)


def _pickle_sharing(item: Any, folder: Path) -> bytes:
    file = io.BytesIO()
    try:
        with own_modules_by_value():
            _SharingPickler(file, folder).dump(item)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(f"the processes engine cannot send this experiment to its workers: {error}") from error
    return file.getvalue()
