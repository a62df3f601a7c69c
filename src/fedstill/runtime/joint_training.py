"""Joint training: students of the same teachers on the same proxy, one pass over the data for all of them.

Each student is a run of its own, in its own folder, with the bits it would have alone (see `Method.reply_jointly`).
They share the work: batches, geometry and teachers' outputs. The round loop knows nothing of it: every run goes through
`execute` in a thread of its own, with an engine whose `dispatch` is a barrier. When all runs wait there, those of the
earliest round are answered in one pass. Only one thread is ever active, so nothing depends on timing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from time import perf_counter
from traceback import format_exception
from types import TracebackType
from typing import Literal, Self

from fedstill.core.client import answer
from fedstill.core.egress import check_egress
from fedstill.core.hardware import one_thread
from fedstill.core.message import Message
from fedstill.core.protocols import (
    ClientFactory,
    Exchange,
    Failure,
    JointRequest,
    Profile,
    Reply,
    RoundContext,
)
from fedstill.core.task import Tensors
from fedstill.data.bundle import Bundle
from fedstill.data.lookup import load
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.identity import Known
from fedstill.runtime.plan import Plan, make_plan
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder
from fedstill.runtime.teacher_loader import TeacherLoader

JOINT_ERROR = "joint-error"  # the file in a run's folder that says why its students were trained separately
JOINT_TRAINING_FAILED = "joint training failed, so it was trained separately: "  # what such a sentence begins with
OnProgress = Callable[[float], None]  # is given how much of the work is done, from 0 to 1
Ended = dict[int, Path | Exception]  # each run's folder or, in its place, what went wrong
_log = logging.getLogger(__name__)


def train_jointly(
    experiments: Sequence[Experiment],
    out: Path,
    data_root: Path | None = None,
    device: str = "cpu",
    on_progress: OnProgress | None = None,
    loaded: Callable[[str, Path | None], Bundle] = load,
    known: Known | None = None,
) -> list[Path | Exception]:
    """Run these distillations, in one pass where they agree: each one's folder or, in its place, what went wrong."""
    bundles: dict[str, Bundle] = {}
    teachers = TeacherLoader()
    ended: Ended = {}
    plans: dict[int, Plan] = {}
    for number, experiment in enumerate(experiments):
        try:
            if experiment.data not in bundles:
                bundles[experiment.data] = loaded(experiment.data, data_root)
            bundle = bundles[experiment.data]
            plans[number] = make_plan(experiment, data_root, device, bundle=bundle, staff=teachers, known=known)
        except Exception as error:  # this one cannot be trained; the others can
            _log.info("a student cannot be planned", exc_info=True)
            ended[number] = error
    with one_thread():
        ended |= _Session(plans, out, on_progress).run()
    return [ended[number] for number in range(len(experiments))]


class _Stopped(BaseException):
    """Raised in the threads of runs when joint training is interrupted."""


@dataclass(frozen=True)
class _Pending:
    """What one run waits for: its client's reply in this round."""

    exchange: Exchange
    jobs: list[tuple[Profile, Message, Tensors]]
    context: RoundContext


class _Member:
    """One run: its thread, the engine it is given, and the clock that counts its share of the work."""

    at_sites = False

    def __init__(self, session: _Session, plan: Plan) -> None:
        self.session, self.plan = session, plan
        self.state: Literal["new", "active", "waiting", "ended"] = "new"
        self.pending: _Pending | None = None
        self.replies: list[Reply | Failure] = []
        self.result: Path | Exception | None = None
        self.interrupt: BaseException | None = None
        self.seconds = 0.0
        self.thread = Thread(target=self._run, name="joint training", daemon=True)

    def open(self, factory: ClientFactory) -> None:
        self.clients = factory

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        self.pending = _Pending(exchange, list(jobs), context)
        self.session.pause(self)
        yield from self.replies

    def alone(self) -> list[Reply | Failure]:
        """The replies without the others."""
        assert self.pending is not None
        held = self.pending
        return [answer(self.clients, held.exchange, *job, held.context) for job in held.jobs]

    def request(self) -> JointRequest:
        assert self.pending is not None
        ((who, request, state),) = self.pending.jobs
        context = self.pending.context
        return JointRequest(self.plan.method, self.clients(who, state, context), request, context)

    def _run(self) -> None:
        try:
            self.result = execute(self.plan, self, self.session.out, clock=lambda: self.seconds).path
        except Exception as error:  # this run ends here; the others go on
            _log.info("%s failed", self.plan.folder_name, exc_info=True)
            self.result = error
        except _Stopped:
            pass
        except BaseException as error:  # an interrupt: it ends joint training, which raises it again
            self.interrupt = error
        finally:
            self.session.end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Session:
    """The runs that are trained jointly, and whose turn it is."""

    def __init__(self, plans: Mapping[int, Plan], out: Path, on_progress: OnProgress | None) -> None:
        self.out, self.on_progress = out, on_progress
        self.members = {number: _Member(self, plan) for number, plan in plans.items()}
        self.changed = Condition()
        self.stopping = False

    def run(self) -> Ended:
        began = perf_counter()
        try:
            for member in self.members.values():
                self._let(member)
            while waiting := [member for member in self.members.values() if member.state == "waiting"]:
                # One that is ahead, because an earlier attempt was killed between two commits, waits for the others.
                behind = min(_round_of(member) for member in waiting)
                present = [member for member in waiting if _round_of(member) == behind]
                self._answer(present)
                now = perf_counter()
                for member in present:
                    member.seconds += (now - began) / len(present)
                began = now
                for member in present:
                    self._let(member)
                self._tell()
        finally:
            self._stop()
        return {number: _result(member) for number, member in self.members.items()}

    def pause(self, member: _Member) -> None:
        """Called by a run's thread: wait until it may go on."""
        with self.changed:
            member.state = "waiting"
            self.changed.notify_all()
            self.changed.wait_for(lambda: member.state == "active" or self.stopping)
            if self.stopping:
                raise _Stopped

    def end(self, member: _Member) -> None:
        with self.changed:
            member.state = "ended"
            self.changed.notify_all()

    def _let(self, member: _Member) -> None:
        """Let one run go on until it waits again, or has ended."""
        with self.changed:
            new, member.state = member.state == "new", "active"
            if new:
                member.thread.start()
            self.changed.notify_all()
            self.changed.wait_for(lambda: member.state != "active")
        if member.interrupt is not None:
            raise member.interrupt

    def _stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        for member in self.members.values():
            if member.thread.is_alive():
                member.thread.join()

    def _answer(self, present: Sequence[_Member]) -> None:
        """Give these runs their replies: from one pass where their method has one for all, else one by one."""
        joint = _joint_replies(present) if _can_be_joint(present) else {}
        for member in present:
            member.replies = joint[id(member)] if joint else member.alone()

    def _tell(self) -> None:
        if self.on_progress is not None:
            total = sum(member.plan.rounds for member in self.members.values())
            done = sum(
                member.plan.rounds if member.state == "ended" else _round_of(member) for member in self.members.values()
            )
            self.on_progress(done / total)


def _round_of(member: _Member) -> int:
    assert member.pending is not None
    return member.pending.context.round


def _result(member: _Member) -> Path | Exception:
    assert member.result is not None
    return member.result


def _can_be_joint(present: Sequence[_Member]) -> bool:
    """Whether these requests can be answered in one pass: several, of one method that can, and on the same data."""
    first = present[0]
    return (
        len(present) > 1
        and all(member.plan.method.trains_jointly for member in present)
        and all(member.plan.fingerprint == first.plan.fingerprint for member in present)
    )


def _joint_replies(present: Sequence[_Member]) -> dict[int, list[Reply | Failure]]:
    """All replies from one pass; if it fails, nothing: the error is logged and kept, and the runs go on separately."""
    try:
        requests = [member.request() for member in present]
        first = requests[0]
        with first.client.streams.ambient("ambient"):
            messages = first.method.reply_jointly(requests)
        found: dict[int, list[Reply | Failure]] = {}
        for member, request, message in zip(present, requests, messages, strict=True):
            assert member.pending is not None
            check_egress(message, member.pending.exchange.egress, member.pending.exchange.name)
            client = request.client
            found[id(member)] = [Reply(client.profile, message, client.state, client.meter.work)]
        return found
    except Exception as error:  # whatever it was: trained separately, it hits only the runs at fault
        _log.exception("joint training of %d students failed: they are trained separately", len(present))
        sentence = f"{JOINT_TRAINING_FAILED}{' '.join(f'{type(error).__name__}: {error}'.split())}"
        content = {"error": sentence, "traceback": "".join(format_exception(error)).splitlines()}
        for member in present:
            RunFolder(member.session.out / member.plan.folder_name).save_artefact(JOINT_ERROR, content)
        return {}
