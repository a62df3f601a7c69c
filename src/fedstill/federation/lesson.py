"""Runs that learn together: students of the same teachers on the same proxy, one pass over the data for all.

Each is a run of its own, in its own folder, with the bits it would have alone (see `methods.distill.together`); what
they share is the work: batches, geometry and what the teachers say. Where one is ahead, because an earlier attempt was
killed between two commits, it waits until the others have caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from fedstill.config import Experiment
from fedstill.core.client import answer
from fedstill.core.egress import check_egress
from fedstill.core.message import Message
from fedstill.core.protocols import Lost, Profile, Reply
from fedstill.core.task import Tensors
from fedstill.data.bundle import Bundle
from fedstill.data.catalogue import load
from fedstill.engines import InProcess
from fedstill.federation.checkpoint import Progress
from fedstill.federation.loop import Errand, Results
from fedstill.federation.plan import Plan, make_plan
from fedstill.federation.run import Attempt, finished, opened
from fedstill.federation.teachers import Staff
from fedstill.methods import Distillation
from fedstill.methods.distill import Student, together

Told = Callable[[float], None]  # how much of the lesson is over, from 0 to 1
Ended = dict[int, Path | Exception]  # each run's folder or, in its place, what went wrong


def learn_together(
    experiments: Sequence[Experiment],
    out: Path,
    data_root: Path | None = None,
    device: str = "cpu",
    told: Told | None = None,
    loaded: Callable[[str, Path | None], Bundle] = load,
) -> list[Path | Exception]:
    """Run these distillations, in one pass where they agree: each one's folder or, in its place, what went wrong."""
    bundles: dict[str, Bundle] = {}
    staff = Staff()
    ended: Ended = {}
    attempts: dict[int, Attempt] = {}
    with ExitStack() as folders, InProcess() as engine:
        for number, experiment in enumerate(experiments):
            try:
                if experiment.data not in bundles:
                    bundles[experiment.data] = loaded(experiment.data, data_root)
                plan = make_plan(experiment, data_root, device, bundle=bundles[experiment.data], staff=staff)
                folder = folders.enter_context(opened(plan, out))
                ended[number] = folder.path
                if not finished(folder):
                    attempts[number] = Attempt(plan, engine, folder)
            except Exception as error:  # this one cannot learn; the others can
                ended[number] = error
        total = sum(attempt.plan.rounds for attempt in attempts.values())
        while pending := {number: attempt for number, attempt in attempts.items() if attempt.goes_on}:
            behind = min(attempt.progress.round for attempt in pending.values())
            present = [number for number, attempt in pending.items() if attempt.progress.round == behind]
            _epoch({number: attempts[number] for number in present}, attempts, ended)
            if told is not None:
                told(sum(attempt.progress.round for attempt in attempts.values()) / total)
        for number, attempt in list(attempts.items()):
            with _leaving(number, attempts, ended):
                attempt.finish()
    return [ended[number] for number in range(len(experiments))]


def _epoch(present: dict[int, Attempt], attempts: dict[int, Attempt], ended: Ended) -> None:
    """One round of these runs. One that cannot go on leaves the lesson, with its reason."""
    began = perf_counter()
    rounds = {number: attempt.round() for number, attempt in present.items()}
    tasks: dict[int, Task] = {}
    for number, round in rounds.items():
        with _leaving(number, attempts, ended):
            errand = next(round)
            tasks[number] = Task(present[number].plan, errand, list(errand.jobs))
    heard = _at_once(tasks)
    played_to: dict[int, Progress] = {}
    for number, task in tasks.items():
        with _leaving(number, attempts, ended):
            replies = heard[number] if heard else task.alone()
            played_to[number] = _concluded(rounds[number], replies)
    seconds = (perf_counter() - began) / len(present)
    for number, progress in played_to.items():
        with _leaving(number, attempts, ended):
            present[number].keep(progress, seconds)


@contextmanager
def _leaving(number: int, attempts: dict[int, Attempt], ended: Ended) -> Iterator[None]:
    """Whatever goes wrong in here, this run leaves the lesson and the others go on."""
    try:
        yield
    except Exception as error:
        ended[number] = error
        del attempts[number]


def _concluded(round: Generator[Errand, Results, Progress], results: Results) -> Progress:
    """The end of a round whose errand has been run: distillation has one a round."""
    try:
        round.send(results)
    except StopIteration as end:
        progress: Progress = end.value
        return progress
    raise ValueError("only methods with one exchange a round can learn together")


@dataclass(frozen=True)
class Task:
    """What one run wants of its one client in this round."""

    plan: Plan
    errand: Errand
    jobs: list[tuple[Profile, Message, Tensors]]

    def student(self) -> Student:
        if not isinstance(self.plan.method, Distillation):
            raise TypeError(f"{self.plan.experiment.method.name} is wrapped, or no distillation")
        ((who, request, state),) = self.jobs
        client = self.plan.clients(who, state, self.errand.turn)
        return Student(self.plan.method, client, request, self.errand.turn)

    def alone(self) -> list[Reply | Lost]:
        exchange, turn = self.errand.exchange, self.errand.turn
        return [answer(self.plan.clients, exchange, *job, turn) for job in self.jobs]


def _at_once(tasks: Mapping[int, Task]) -> dict[int, list[Reply | Lost]]:
    """What the clients of these runs reply, all in one pass; nothing where they cannot learn together.

    Whatever was in the way, alone it hits only those who are at fault.
    """
    try:
        return _learnt(tasks) if len(tasks) > 1 else {}
    except Exception:
        return {}


def _learnt(tasks: Mapping[int, Task]) -> dict[int, list[Reply | Lost]]:
    if len({task.plan.fingerprint for task in tasks.values()}) > 1:
        raise ValueError("students that learn together need the same data")
    students = [task.student() for task in tasks.values()]
    with students[0].client.streams.ambient("ambient"):
        messages = together(students)
    replies: dict[int, list[Reply | Lost]] = {}
    for (number, task), student, message in zip(tasks.items(), students, messages, strict=True):
        check_egress(message, task.errand.exchange.egress, task.errand.exchange.name)
        client = student.client
        replies[number] = [Reply(client.profile, message, client.state, client.meter.work)]
    return replies
