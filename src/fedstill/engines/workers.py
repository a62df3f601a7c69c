"""The worker pool: fresh interpreters with one thread each, reused, and replaced when they die.

A worker is started with `python -c`, not forked (numba and OpenMP do not survive a fork) and not through
multiprocessing's spawn (which would run the user's script a second time). Both ends exchange length-prefixed pickles
over pipes that no other process can reach; the memory of tensors follows its pickle, and is read into its final place.
A worker whose input ends exits at once, whatever it is doing: the process that wanted its results is gone.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import IO, Any, Generic, Self, TypeVar

from fedstill.core import hardware
from fedstill.core.errors import InputError
from fedstill.core.logs import log_as_parent_does
from fedstill.engines.scratch import Scratch, sweep

_log = logging.getLogger(__name__)

Job = TypeVar("Job")
Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]  # in a worker: receives items and sends items
Frame = tuple[bytes, list[memoryview]]

ATTEMPTS = 3  # at a job whose worker process ended: one that ends every worker must end itself some day

_LENGTHS = struct.Struct("<QQ")  # of a pickle in bytes, and the number of its buffers, whose lengths follow
_ALIGNED = 64  # bytes, as in torch's own memory: arithmetic on misaligned tensors gives other bits
_PIPE = 2**20  # bytes that a pipe holds, where the system allows it
_POLL = 1.0  # seconds; a wait without end would not notice an interruption on every system


@dataclass(frozen=True)
class WorkerEnded:
    """Received in place of an answer from a worker that died."""

    code: int

    def __str__(self) -> str:
        """The reason in words.

        >>> print(WorkerEnded(-9), WorkerEnded(3), sep="; ")
        its worker process was ended by SIGKILL; its worker process ended with code 3
        """
        if -self.code in set(signal.Signals):
            return f"its worker process was ended by {signal.Signals(-self.code).name}"
        return f"its worker process ended with code {self.code}"


class Worker:
    """A worker process and the thread that reads from it."""

    def __init__(
        self, work: Work, inbox: SimpleQueue[tuple[Worker, Any]], number: int, environment: Mapping[str, str]
    ) -> None:
        self.number = number
        code = f"from {__name__} import run_worker; from {work.__module__} import {work.__name__} as work"
        with _interrupts_held():
            self.process = subprocess.Popen(
                [*hardware.python_command(), "-c", f"{code}; run_worker(work)"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=hardware.child_environment(**environment),
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        for pipe in (self._requests, self._answers):
            _widen(pipe)
        self._held: dict[str, Any] = {}
        Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def send(self, item: Any) -> None:
        """Send an item; bytes count as an item that is pickled already."""
        with suppress(BrokenPipeError):  # it has died: its listener reports that
            _write_frame(self._requests, item)

    def provide(self, name: str, item: Any) -> None:
        """Send this unless it was the last thing provided by that name; a tuple with the name, unless it is bytes."""
        if self._held.get(name) is not item:
            self._held[name] = item
            self.send(item if isinstance(item, bytes) else (name, item))

    def _listen(self, inbox: SimpleQueue[tuple[Worker, Any]]) -> None:
        with suppress(EOFError, OSError, ValueError):
            while True:
                inbox.put((self, _loaded(*_read_frame(self._answers))))
        inbox.put((self, WorkerEnded(self.process.wait())))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._answers.close()
        with suppress(BrokenPipeError):
            self._requests.close()


class WorkerPool(Generic[Job]):
    """At most `size` workers that do one job each at a time; `greeting` is the first item each is sent.

    Workers are numbered from 0; one that replaces another has its number. With the device `cuda` they share out the
    GPUs.
    """

    def __init__(self, size: int, work: Work, greeting: Callable[[], Any], device: str = "cpu") -> None:
        if size < 1:
            raise InputError(f"workers is {size}: at least one is needed")
        self.size = size
        self.workers: list[Worker] = []
        self.busy: dict[Worker, Job] = {}
        self._work, self._greeting, self._device = work, greeting, device
        self._inbox: SimpleQueue[tuple[Worker, Any]] = SimpleQueue()
        self._scratch: Scratch | None = None

    @property
    def idle(self) -> bool:
        """Whether another job can be assigned."""
        return len(self.busy) < self.size

    def fill(self) -> None:
        """Start as many workers as there may be."""
        while len(self.workers) < self.size:
            self._start()

    def assign(self, job: Job) -> Worker:
        """An idle worker, started if there is none, which has this job until `finish`."""
        worker = next((one for one in reversed(self.workers) if one not in self.busy), None) or self._start()
        self.busy[worker] = job
        return worker

    def receive(self) -> tuple[Worker, Any]:
        """The next item that a busy worker sent; WorkerEnded where it died, which has then left the pool."""
        while True:
            with suppress(Empty):
                worker, item = self._inbox.get(timeout=_POLL)
                if worker not in self.workers:  # stopped: its items belong to a job that was abandoned
                    continue
                if isinstance(item, WorkerEnded):
                    _log.info("worker %d ended with code %d", worker.process.pid, item.code)
                    self.workers.remove(worker)
                if worker in self.busy:
                    return worker, item

    def finish(self, worker: Worker) -> Job:
        """The job that this worker had, which is over."""
        return self.busy.pop(worker)

    def abandon(self) -> None:
        """Stop the workers that still have a job."""
        for worker in self.busy:
            if worker in self.workers:
                self.workers.remove(worker)
            worker.stop()
        self.busy.clear()

    def new_scratch(self) -> Path:
        """An empty folder for files that workers map, in place of the one before."""
        self._clear_scratch()
        self._scratch = Scratch()
        return Path(self._scratch.name)

    def _start(self) -> Worker:
        taken = {worker.number for worker in self.workers}
        number = next(number for number in range(self.size) if number not in taken)
        worker = Worker(self._work, self._inbox, number, hardware.device_environment(self._device, number))
        self.workers.append(worker)
        _log.debug("worker %d started", worker.process.pid)
        worker.send(self._greeting())
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
        for worker in self.workers:
            worker.stop()
        self.workers.clear()
        self.busy.clear()
        self._clear_scratch()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal; one that is started in here never notices, and ends with its parent.

    A handler would come too late: a worker that is interrupted during its imports prints a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_worker(work: Work) -> None:
    """The other end of a Worker: do its work until the input ends."""
    # Frames go out on a descriptor of their own, so that a print() in a client or a plugin cannot end up among them.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    log_as_parent_does()
    frames: SimpleQueue[Frame] = SimpleQueue()
    Thread(target=_exit_with_input, args=(os.fdopen(os.dup(0), "rb"), frames), daemon=True).start()
    try:
        work(lambda: _loaded(*frames.get()), lambda item: _write_frame(answers, item))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


def _exit_with_input(requests: IO[bytes], frames: SimpleQueue[Frame]) -> None:
    """Queue frames as they come; where there are no more, end this process."""
    with suppress(EOFError, OSError):
        while True:
            frames.put(_read_frame(requests))
    os._exit(0)


def _write_frame(stream: IO[bytes], item: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = item if isinstance(item, bytes) else pickle.dumps(item, protocol=5, buffer_callback=buffers.append)
    pieces = [buffer.raw() for buffer in buffers]
    stream.write(_LENGTHS.pack(len(data), len(pieces)))
    stream.write(struct.pack(f"<{len(pieces)}Q", *map(len, pieces)))
    stream.write(data)
    for piece in pieces:
        stream.write(piece)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> Frame:
    """The next pickle and its buffers; EOFError where the other end has gone."""
    length, count = _LENGTHS.unpack(_read(stream, _LENGTHS.size))
    sizes = struct.unpack(f"<{count}Q", _read(stream, 8 * count))
    return _read(stream, length), [_read_into(stream, _room(size)) for size in sizes]


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _read_into(stream: Any, room: memoryview) -> memoryview:
    if stream.readinto(room) < len(room):
        raise EOFError
    return room


def _room(size: int) -> memoryview:
    """New memory, aligned."""
    import numpy as np  # here: a worker that receives no tensors does not need it

    held = np.empty(size + _ALIGNED, np.uint8)
    begin = -held.ctypes.data % _ALIGNED
    return held[begin : begin + size].data


def _loaded(data: bytes, buffers: list[memoryview]) -> Any:
    return pickle.loads(data, buffers=buffers)


def _widen(pipe: IO[bytes]) -> None:
    """Let a pipe hold a message of some size, so that its writer need not wait for its reader."""
    with suppress(ImportError, AttributeError, OSError):  # not everywhere, and never more than the system allows
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
