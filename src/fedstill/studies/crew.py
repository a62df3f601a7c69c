"""Who does the runs: this process one after another, or a crew of worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self

from fedstill.core.errors import InputError
from fedstill.studies.agenda import Job
from fedstill.studies.worker import Outcome, Place, perform

Lesson = Sequence[Job]  # done in one go
Told = Callable[[Lesson, float], None]  # how much of a lesson is over
Given = Mapping[str, Any]


def crew_size(workers: int) -> int:
    """At most one worker for each core: more of them would only take turns."""
    if workers < 1:
        raise InputError(f"workers is {workers}: at least one is needed")
    return min(workers, os.cpu_count() or 1)


class Crew:
    """Does lessons, one for each worker at a time; with a single worker there is no other process."""

    def __init__(self, size: int, place: Place, told: Told) -> None:
        self.size, self.place, self.told = size, place, told
        self.workers: list[_Worker] = []
        self.busy: dict[_Worker, Lesson] = {}
        self.inbox: SimpleQueue[tuple[_Worker, str | None]] = SimpleQueue()
        self.done: list[tuple[Lesson, list[Outcome]]] = []  # by this process

    @property
    def idle(self) -> bool:
        """Whether somebody has nothing to do."""
        return not self.done if self.size == 1 else len(self.busy) < self.size

    @property
    def working(self) -> bool:
        return bool(self.done or self.busy)

    def start(self, lesson: Lesson, givens: Sequence[Given]) -> None:
        """Have somebody idle do these runs; what comes of it is heard of later."""
        if self.size == 1:
            self.done.append((lesson, perform(givens, self.place, lambda share: self.told(lesson, share))))
            return
        worker = next((one for one in self.workers if one not in self.busy), None) or self._hire()
        self.busy[worker] = lesson
        worker.send(json.dumps(list(givens)))

    def hear(self) -> tuple[Lesson, list[Outcome]]:
        """The next lesson that is over, and how its runs ended."""
        if self.done:
            return self.done.pop()
        while True:
            with suppress(Empty):  # a wait without end would not hear the keyboard on every system
                worker, answer = self.inbox.get(timeout=1.0)
                news = None if answer is None else json.loads(answer)
                if worker not in self.busy:
                    if news is None and worker in self.workers:  # died between two lessons
                        self.workers.remove(worker)
                elif isinstance(news, list):
                    return self.busy.pop(worker), [Outcome(**outcome) for outcome in news]
                elif news is None:
                    self.workers.remove(worker)
                    lesson = self.busy.pop(worker)
                    ended = Outcome("failed", f"its worker process ended with code {worker.process.wait()}")
                    return lesson, [ended] * len(lesson)
                else:
                    self.told(self.busy[worker], float(news))

    def _hire(self) -> _Worker:
        worker = _Worker(self.place, self.inbox)
        self.workers.append(worker)
        return worker

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
        self.send(json.dumps(asdict(place)))

    def send(self, line: str) -> None:
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
