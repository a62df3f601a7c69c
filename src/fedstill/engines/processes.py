"""Clients in worker processes: N of them, one thread each, started once and reused.

Two workers on two cores beat two threads in one process, which collapse as soon as a neighbour is busy.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import IO, Any, Self

import torch
from torch import Tensor

from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.core.plugins import loaded_plugins
from fedstill.core.protocols import ClientFactory, Exchange, Failure, Profile, Reply, RoundContext
from fedstill.core.task import Tensors
from fedstill.core.threads import child_environment
from fedstill.engines.scratch import Scratch, sweep
from fedstill.engines.worker import read_frame, write_frame

_SHARE_ABOVE = 2**16  # bytes: larger tensors of the factory are mapped from a file instead of being copied
_PIPE = 2**20  # bytes that a pipe holds, where it can


class Processes:
    """N worker processes with one thread each; data is mapped once and shared between them."""

    at_sites = False

    def __init__(self, workers: int = 2) -> None:
        if workers < 1:
            raise InputError(f"workers is {workers}: at least one is needed")
        self.size = workers
        self._workers: list[_Worker] = []
        self._inbox: SimpleQueue[tuple[_Worker, Any]] = SimpleQueue()
        self._scratch: Scratch | None = None
        self._factory = b""

    def open(self, factory: ClientFactory) -> None:
        self._clear_scratch()
        self._scratch = Scratch()
        self._factory = _pickle_sharing(("open", factory), Path(self._scratch.name))
        for worker in self._workers:
            worker.factory_sent = False

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        if type(exchange).__module__ == "__main__":
            raise InputError(
                f"{type(exchange).__name__} is defined in the script being run, where worker processes cannot find it:"
                " put it into a file of its own and name that file as a plugin"
            )
        queue = iter(jobs)
        errand = pickle.dumps(("carry", exchange, context), protocol=5)
        self._start_workers()
        idle = list(self._workers)
        busy: dict[_Worker, Profile] = {}
        answered: Reply | Failure | None = None
        try:
            while True:
                while idle and (job := next(queue, None)) is not None:
                    worker = idle.pop()
                    busy[worker] = job[0]
                    self._hand_over(worker, errand, job)
                if answered is not None:  # looked at only now that its worker has something else to do
                    yield answered
                    answered = None
                if not busy:
                    return
                worker, outcome = self._receive()
                if worker in idle:  # died with nothing to do: nobody is lost with it
                    idle.remove(worker)
                    idle.append(self._replaced(worker))
                    continue
                who = busy.pop(worker)
                if outcome is None:
                    outcome = Failure(who, "failed", f"its worker process ended with code {worker.process.wait()}")
                    worker = self._replaced(worker)
                idle.append(worker)
                answered = _outcome(outcome)
        finally:
            # Left in mid-exchange: what these workers would still say belongs to nobody.
            for worker in busy:
                self._workers.remove(worker)
                worker.stop()

    def _receive(self) -> tuple[_Worker, Any]:
        while True:
            try:
                worker, outcome = self._inbox.get(timeout=1.0)
            except Empty:
                continue
            if worker in self._workers:
                return worker, outcome

    def _hand_over(self, worker: _Worker, errand: bytes, job: tuple[Profile, Message, Tensors]) -> None:
        """A worker is told of the factory and of the errand once, of each client only what is its own."""
        who, request, state = job
        if not worker.factory_sent:
            worker.send(self._factory)
            worker.factory_sent = True
        if worker.errand is not errand:
            worker.send(errand)
            worker.errand = errand
        worker.send(("job", who, request.encode(), Message(state).encode()))

    def _start_workers(self) -> None:
        while len(self._workers) < self.size:
            self._spawn()

    def _replaced(self, worker: _Worker) -> _Worker:
        """Another one for one that has died."""
        self._workers.remove(worker)
        return self._spawn()

    def _spawn(self) -> _Worker:
        worker = _Worker(self._inbox)
        self._workers.append(worker)
        return worker

    def _clear_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def __enter__(self) -> Self:
        sweep()  # here, not when work begins: a run that was killed at its very end has none left
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._clear_scratch()


class _Worker:
    """A worker process and the thread that listens to it."""

    def __init__(self, inbox: SimpleQueue[tuple[_Worker, Any]]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from fedstill.engines.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        self.factory_sent = False
        self.errand = b""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.replies = self.process.stdin, self.process.stdout
        for pipe in (self.requests, self.replies):
            _widen(pipe)
        Thread(target=self._listen, args=(inbox,), daemon=True).start()
        self.send(list(loaded_plugins()))

    def send(self, item: Any) -> None:
        with suppress(BrokenPipeError):  # it has died: its listener says so
            write_frame(self.requests, item)

    def _listen(self, inbox: SimpleQueue[tuple[_Worker, Any]]) -> None:
        try:
            while True:
                inbox.put((self, read_frame(self.replies)))
        except (EOFError, OSError, ValueError):
            inbox.put((self, None))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.replies.close()
        with suppress(BrokenPipeError):
            self.requests.close()


def _widen(pipe: IO[bytes]) -> None:
    """Let a pipe hold a message of some size, so that its writer need not wait for its reader."""
    with suppress(ImportError, AttributeError, OSError):  # not everywhere, and never more than the system allows
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)


def _outcome(received: Any) -> Reply | Failure:
    if isinstance(received, Failure):
        return received
    if isinstance(received, RunError):
        raise received
    who, message, state, work = received
    return Reply(who, Message.decode(message), None if state is None else Message.decode(state), work)


class _SharingPickler(pickle.Pickler):
    """Puts large tensors into files that workers map, so that N workers share one copy of the data."""

    def __init__(self, file: io.BytesIO, folder: Path) -> None:
        super().__init__(file, protocol=5)
        self.folder, self.count = folder, 0

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.nbytes < _SHARE_ABOVE or value.device.type != "cpu":
            return NotImplemented
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
        _SharingPickler(file, folder).dump(item)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(f"the processes engine cannot send this experiment to its workers: {error}") from error
    return file.getvalue()
