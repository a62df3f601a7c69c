"""Who does the runs: this process one after another, or a crew of worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from fedstill.core.errors import InputError
from fedstill.studies.agenda import Job
from fedstill.studies.worker import Outcome, Place, perform

Skip = Callable[[Job], Outcome | None]  # what is known of a job at the moment somebody would start it


def crew_size(workers: int) -> int:
    """At most one worker for each core: more of them would only take turns."""
    if workers < 1:
        raise InputError(f"workers is {workers}: at least one is needed")
    return min(workers, os.cpu_count() or 1)


class Crew:
    """Works jobs off, each worker taking the next one; with a single worker there is no other process."""

    def __init__(self, size: int, place: Place) -> None:
        self.size, self.place = size, place
        self.workers: list[_Worker] = []
        self.inbox: SimpleQueue[tuple[_Worker, str | None]] = SimpleQueue()

    def work(self, jobs: Iterable[Job], skip: Skip) -> Iterator[tuple[Job, Outcome]]:
        """Jobs as they end. `skip` is asked right before a job would start, since others may have done it by then."""
        if self.size == 1:
            for job in jobs:
                yield job, skip(job) or perform(job.cell.given, self.place)
            return
        queue = iter(jobs)
        idle, busy = list(self.workers), dict[_Worker, Job]()
        exhausted = False
        while busy or not exhausted:
            while not exhausted and len(busy) < self.size:
                following = next(queue, None)
                if following is None:
                    exhausted = True
                elif known := skip(following):
                    yield following, known
                else:
                    worker = idle.pop() if idle else self._hire()
                    busy[worker] = following
                    worker.ask(following)
            if not busy:
                return
            worker, answer = self._hear(busy)
            job = busy.pop(worker)
            if answer is None:
                self.workers.remove(worker)
                code = worker.process.wait()
                yield job, Outcome("failed", f"its worker process ended with code {code}")
            else:
                idle.append(worker)
                yield job, Outcome(**json.loads(answer))

    def _hire(self) -> _Worker:
        worker = _Worker(self.place, self.inbox)
        self.workers.append(worker)
        return worker

    def _hear(self, busy: dict[_Worker, Job]) -> tuple[_Worker, str | None]:
        while True:
            with suppress(Empty):  # a wait without end would not hear the keyboard on every system
                worker, answer = self.inbox.get(timeout=1.0)
                if worker in busy:
                    return worker, answer
                if answer is None and worker in self.workers:  # died between two jobs
                    self.workers.remove(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers.clear()


class _Worker:
    """A worker process and the thread that listens to it."""

    def __init__(self, place: Place, inbox: SimpleQueue[tuple[_Worker, str | None]]) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from fedstill.studies.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        Thread(target=self._listen, args=(inbox,), daemon=True).start()
        self._send(json.dumps(asdict(place)))

    def ask(self, job: Job) -> None:
        self._send(json.dumps(job.cell.given))

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has died: its listener says so
            self.requests.write(line + "\n")
            self.requests.flush()

    def _listen(self, inbox: SimpleQueue[tuple[_Worker, str | None]]) -> None:
        with suppress(OSError, ValueError):
            for line in self.answers:
                inbox.put((self, line))
        inbox.put((self, None))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        with suppress(BrokenPipeError):
            self.requests.close()
