"""Runs that learn together: students of the same teachers on the same proxy, one pass over the data for all.

Each is a run of its own, in its own folder, with the bits it would have alone (see `methods.distill.together`); what
they share is the work: batches, geometry and what the teachers say. Where one is ahead, because an earlier attempt was
killed between two commits, it waits until the others have caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
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


def learn_together(
    experiments: Sequence[Experiment],
    out: Path,
    data_root: Path | None = None,
    device: str = "cpu",
    told: Told | None = None,
    loaded: Callable[[str, Path | None], Bundle] = load,
) -> list[Path | Exception]:
    """Run these distillations, in one pass where they agree: each one's folder or, in its place, what went wrong."""
    bundles = {data: loaded(data, data_root) for data in {experiment.data for experiment in experiments}}
    staff = Staff()
    ended: dict[int, Path | Exception] = {}
    attempts: dict[int, Attempt] = {}
    with ExitStack() as folders, InProcess() as engine:
        for number, experiment in enumerate(experiments):
            try:
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
        for number, attempt in attempts.items():
            try:
                attempt.finish()
            except Exception as error:
                ended[number] = error
    return [ended[number] for number in range(len(experiments))]


def _epoch(present: dict[int, Attempt], attempts: dict[int, Attempt], ended: dict[int, Path | Exception]) -> None:
    """One round of these runs. One that cannot go on leaves the lesson, with its reason."""
    began = perf_counter()
    rounds = {number: attempt.round() for number, attempt in present.items()}
    errands = {number: next(round) for number, round in rounds.items()}
    replies = _replies([present[number].plan for number in errands], list(errands.values()))
    heard = dict(zip(errands, replies, strict=True))
    played_to: dict[int, Progress] = {}
    for number, round in rounds.items():
        try:
            played_to[number] = _concluded(round, heard[number])
        except Exception as error:  # it leaves the lesson, the others go on
            ended[number] = error
            del attempts[number]
    seconds = (perf_counter() - began) / len(present)
    for number, progress in played_to.items():
        try:
            present[number].keep(progress, seconds)
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


def _replies(plans: Sequence[Plan], errands: Sequence[Errand]) -> list[list[Reply | Lost]]:
    """What the one client of each run replies. Where they cannot learn together, each replies alone."""
    jobs = [list(errand.jobs) for errand in errands]
    if len(plans) > 1 and all(len(own) == 1 for own in jobs):
        try:
            return _at_once(plans, errands, [own[0] for own in jobs])
        except Exception:  # whatever it was, alone it hits only those who are at fault
            pass
    return [
        [answer(plan.clients, errand.exchange, who, request, state, errand.turn) for who, request, state in own]
        for plan, errand, own in zip(plans, errands, jobs, strict=True)
    ]


def _at_once(
    plans: Sequence[Plan], errands: Sequence[Errand], jobs: Sequence[tuple[Profile, Message, Tensors]]
) -> list[list[Reply | Lost]]:
    if len({plan.fingerprint for plan in plans}) > 1:
        raise ValueError("students that learn together need the same data")
    students = []
    for plan, errand, (who, request, state) in zip(plans, errands, jobs, strict=True):
        if not isinstance(plan.method, Distillation):
            raise TypeError(f"{plan.experiment.method.name} is wrapped, or no distillation")
        students.append(Student(plan.method, plan.clients(who, state, errand.turn), request, errand.turn))
    with students[0].client.streams.ambient("ambient"):
        messages = together(students)
    replies: list[list[Reply | Lost]] = []
    for student, errand, message in zip(students, errands, messages, strict=True):
        check_egress(message, errand.exchange.egress, errand.exchange.name)
        client = student.client
        replies.append([Reply(client.profile, message, client.state, client.meter.work)])
    return replies
