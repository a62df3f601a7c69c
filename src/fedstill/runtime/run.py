"""A run: an experiment executed into a directory; killed at any instant, it resumes to the same bits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from fedstill._version import __version__
from fedstill.core.cpu import cpu_kind
from fedstill.core.files import digest_of, disk_trouble, file_digest, sweep_temporaries, writable_folder
from fedstill.core.hardware import one_thread
from fedstill.core.protocols import Engine, ReportsFaults
from fedstill.core.records import BatchNormCheck, Evaluation, round_record_class
from fedstill.core.task import Tensors
from fedstill.runtime import (
    checkpoint,
    kept_checks,  # noqa: F401  # registers what every run keeps for its checks
    kept_metrics,  # noqa: F401  # registers what every classifier's run keeps of its metrics
)
from fedstill.runtime.artefacts import FinishedRun, artefacts
from fedstill.runtime.batchnorm_check import check_centrally
from fedstill.runtime.callbacks import StopRun
from fedstill.runtime.cautions import EndedRun, cautions
from fedstill.runtime.checkpoint import Leader, Progress
from fedstill.runtime.client_store import ClientStore, SiteStore, Store
from fedstill.runtime.evaluation import CentralEvaluator
from fedstill.runtime.exchange_log import DurableEngine, ExchangeLog
from fedstill.runtime.experiment import BEHAVIOUR
from fedstill.runtime.more_rounds import continued
from fedstill.runtime.observers import Observer
from fedstill.runtime.plan import Plan, Simulation
from fedstill.runtime.round import EveryClientFailedError, Federation
from fedstill.runtime.round_ranking import score_of
from fedstill.runtime.run_folder import RunFolder, pack_models
from fedstill.runtime.run_summary import run_digest, summary
from fedstill.runtime.simulated_clients import SimulatedClients
from fedstill.runtime.spool import Spool
from fedstill.runtime.tracked import followed

if TYPE_CHECKING:
    from fedstill.tracking.tracking import Tracking

_log = logging.getLogger(__name__)


def execute(
    plan: Plan,
    engine: Engine,
    out: Path,
    observers: Sequence[Observer] = (),
    clock: Callable[[], float] = perf_counter,
    tracking: Tracking | None = None,
) -> RunFolder:
    """Run the plan to its end, resuming an earlier attempt; a finished run is not repeated.

    It ends early, and can be resumed, where an observer raises `StopRun`. `tracking` hands its rounds to trackers.
    `clock` gives the seconds that count for this run, where it shares its process with others.
    """
    with opened(plan, out) as folder, followed(folder, tracking) as followers:
        try:
            _execute(plan, engine, folder, [*followers, *observers], clock)
        except StopRun:
            _log.info("%s was stopped by a callback", folder.path.name)
    return folder


def _execute(
    plan: Plan, engine: Engine, folder: RunFolder, observers: Sequence[Observer], clock: Callable[[], float]
) -> None:
    if finished(folder):
        folder.reused = True
        _log.info("%s has been run already", folder.path.name)
        result = folder.result()
        assert result is not None
        for observer in observers:
            observer.note("this experiment has been run already: showing its result")
            for text in cautions(EndedRun.of(plan.experiment, plan.task, folder, result, folder.journal())):
                observer.warn(text)
        return
    doubts = plan.bundle.doubts if isinstance(plan, Simulation) else ()
    for note in _notes(plan, engine, folder):
        _log.info("%s: %s", folder.path.name, note)
        for observer in observers:
            (observer.warn if note in doubts else observer.note)(note)
    attempt = Attempt(plan, engine, folder, observers)
    while attempt.goes_on:
        began = clock()
        progress = attempt.round()
        attempt.keep(progress, clock() - began)
    attempt.finish()


def _notes(plan: Plan, engine: Engine, folder: RunFolder) -> Iterator[str]:
    """What is good to know before a run begins, which may begin with the rounds of another one."""
    if isinstance(plan, Simulation):
        yield from plan.bundle.notes
    if plan.identified.unknown:
        yield f"this run will not be found again, since {plan.identified.unknown[0]}"
    if not engine.at_sites and (note := continued(plan, folder)) is not None:
        yield note


@contextmanager
def opened(plan: Plan, out: Path) -> Iterator[RunFolder]:
    """The run's folder, ours alone while we are in here; one that another process works on is refused."""
    folder = RunFolder(writable_folder(out) / plan.folder_name)
    folder.create(described(plan))
    lock = folder.lock()
    try:
        with one_thread():
            yield folder
    except OSError as error:
        raise disk_trouble(folder.path, error) from error
    finally:
        lock.release()


def described(plan: Plan) -> dict[str, Any]:
    """What a run's folder says of the run before anything has happened."""
    return {
        "identity": plan.identity,
        "lineage": plan.identified.lineage,
        "parts": dict(plan.identified.parts),
        "unknown": list(plan.identified.unknown),
        "reads": plan.identified.reads,
        "experiment": plan.experiment.model_dump(mode="json"),
        "rounds": plan.rounds,
        "fingerprint": plan.fingerprint,
        "classes": plan.task.classes,
        "shape": plan.task.shape,
        "behaviour": BEHAVIOUR,
        "fedstill": __version__,
        "torch": torch.__version__,
        "cpu": cpu_kind(),
    }


class Attempt:
    """One attempt at a run: `round`, `keep` what it gave, and so on while it `goes_on`; then `finish`."""

    def __init__(self, plan: Plan, engine: Engine, folder: RunFolder, observers: Sequence[Observer] = ()) -> None:
        self.plan, self.folder, self.observers = plan, folder, observers
        self.at_sites = engine.at_sites
        if isinstance(engine, ReportsFaults):
            engine.report = self._note
        # Replies of real sites cannot be computed again; a simulation's can, and are not written.
        self.log = ExchangeLog(folder.path / "exchanges", self._note, self._warn) if self.at_sites else None
        if self.log is not None:
            engine = DurableEngine(engine, self.log)
        self.store = self._empty_store()
        self.unsaved: dict[str, bytes] = {}
        self.federation = Federation(
            plan.method,
            plan.participants,
            engine,
            plan.profiles,
            plan.streams,
            plan.rounds,
            plan.experiment.min_replies,
            plan.experiment.norm_limit,
            Spool(folder.path / "spool"),
        )
        self.federation.spool.clear()
        engine.open(plan.clients)
        self.progress = self._resume() or self.federation.begin(self.store)
        if self.log is not None:
            self.log.begin(self.progress.round)
        self.timing = self.folder.timing()
        for name in ("rounds", "checkpoints"):
            del self.timing[name][self.progress.round :]
        _log.info("%s: %d of %d rounds done", folder.path.name, self.progress.round, plan.rounds)
        as_played = plan.experiment.model_copy(update={"rounds": plan.rounds})
        for observer in observers:
            for teacher in plan.teachers:
                if teacher.metrics["constant"] == 1:
                    observer.note(f"the teacher {teacher.name} predicts the same class for every test sample")
            observer.start(as_played, self.progress.journal)

    def _note(self, text: str) -> None:
        _log.info(text)
        for observer in self.observers:
            observer.note(text)

    def _warn(self, text: str) -> None:
        _log.info(text)  # observers show it
        for observer in self.observers:
            observer.warn(text)

    def _empty_store(self) -> Store:
        clients = len(self.plan.profiles)
        return SiteStore(clients) if self.at_sites else ClientStore(self.folder.path / "clients", clients)

    @property
    def goes_on(self) -> bool:
        return self.progress.round < self.plan.rounds

    def round(self) -> Progress:
        """Run the next round and evaluate its models; nothing of it counts until it is kept."""
        index = self.progress.round
        try:
            progress, outcome = self.federation.run_round(self.progress, self.store)
        except EveryClientFailedError:
            if self.log is not None:  # once the cause is removed, all of them are sent their requests again
                self.log.forget_last()
            raise
        evaluation = None
        if progress.round % self.plan.experiment.evaluate_every == 0 or progress.round == self.plan.rounds:
            evaluation = self._evaluation(progress.server, index, last=progress.round == self.plan.rounds)
            progress = replace(progress, leaders=self._leaders(progress, evaluation))
        record = round_record_class()(
            round=progress.round,
            **outcome.record(),
            method_metrics=dict(self.plan.method.metrics(progress.server)),
            evaluation=evaluation,
        )
        return replace(progress, journal=(*progress.journal, record))

    def _evaluation(self, server: Tensors, round: int, last: bool) -> Evaluation:
        """By the server's own test data, or by one more exchange with all sites; the last one checks statistics."""
        evaluator, method, profiles = self.plan.evaluator, self.plan.method, self.plan.profiles
        if isinstance(evaluator, CentralEvaluator):
            assert isinstance(self.store, ClientStore)
            found = evaluator(method, server, profiles, self.store)
        else:
            found = evaluator(method, server, profiles, self.store, round, self.federation.engine)
        return found.model_copy(update={"batchnorm": self._batchnorm(server, round, found)}) if last else found

    def _batchnorm(self, server: Tensors, round: int, found: Evaluation) -> BatchNormCheck | None:
        """Whether the BatchNorm statistics of the shared models fit their weights."""
        plan, accuracy = self.plan, found.test.get("accuracy")
        if isinstance(plan.evaluator, CentralEvaluator):
            assert isinstance(plan.clients, SimulatedClients)
            models = plan.method.models(server)
            batch = {"batch": plan.experiment.training.batch} if plan.task.finds_boxes else {}  # scenes are large
            return check_centrally(models, accuracy, plan.evaluator, plan.clients, plan.streams, **batch)
        engine = self.federation.engine
        return plan.evaluator.check(plan.method, server, plan.profiles, self.store, round, engine, accuracy)

    def _leaders(self, progress: Progress, evaluation: Evaluation) -> dict[str, Leader]:
        """Keep the models of rounds that lead, on test data (`best`) and on validation data (`selected`).

        A model that is not finite never leads.
        """
        leaders = dict(progress.leaders)
        if not evaluation.finite or not self.plan.method.selectable(progress.round - 1, self.plan.rounds):
            return leaders
        data = pack_models(dict(self.plan.method.models(progress.server)))
        for which in ("best", "selected"):
            held, score = leaders.get(which), score_of(evaluation, which, self.plan.experiment.select_by)
            if score is not None and (held is None or score > held.score):
                leaders[which] = Leader(progress.round, score, digest_of(data))
                self.unsaved[which] = data
        return leaders

    def keep(self, progress: Progress, seconds: float) -> None:
        """Commit a round that took so many seconds."""
        began = perf_counter()
        self._commit(progress, self.progress)
        self.progress = progress
        self.timing["rounds"].append(seconds)
        self.timing["checkpoints"].append(perf_counter() - began)
        self.folder.save_timing(self.timing)
        record = progress.journal[-1]
        accuracy = "not evaluated" if record.accuracy is None else f"accuracy {record.accuracy:.4f}"
        _log.info("%s: round %d committed after %.2f s, %s", self.folder.path.name, record.round, seconds, accuracy)
        for observer in self.observers:
            observer.round(progress.journal[-1])

    def _commit(self, progress: Progress, before: Progress) -> None:
        """Leading models go first, under their round's number: what the last checkpoint names is never overwritten."""
        self.folder.check_lock()
        while self.unsaved:
            which, data = self.unsaved.popitem()
            self.folder.save_models(which, data, progress.leaders[which].round)
        self.folder.append_journal(progress.journal[-1])
        checkpoint.save(self.folder.path, progress)
        if self.log is not None:
            self.log.begin(progress.round)
        self.store.committed()
        self.folder.drop_leaders(progress.leaders, before.leaders)

    def _resume(self) -> Progress | None:
        """Resume from the newest undamaged state; damage is reported, and later rounds are computed again."""
        self.folder.upgrade()
        found, notes = checkpoint.candidates(self.folder.path)
        progress = None
        while found and progress is None:
            progress = found.pop(0)
            self.store.restore(progress.clients)
            led = all(self.folder.holds(which, leader) for which, leader in progress.leaders.items())
            if not (self.store.sound() and led):
                notes.append(f"a file that round {progress.round} needs is damaged")
                progress = None
        if progress is None:
            self.store = self._empty_store()
        else:
            checkpoint.settle_on(self.folder.path, progress)
        sweep_temporaries(self.folder.path)
        sweep_temporaries(self.folder.path / "clients")
        self.store.sweep([older.clients for older in found])
        if self.folder.restore_journal(progress.journal if progress else ()) and progress:
            notes.append("the journal was restored from the checkpoint")
        for note in notes:
            where = f"going on after round {progress.round}" if progress else "starting again"
            self._warn(f"{note}: {where}")
        return progress

    def finish(self) -> None:
        self.folder.check_lock()
        progress = self.progress
        models = dict(self.plan.method.models(progress.server))
        last = pack_models(models)
        self.folder.save_models("last", last)
        self.folder.publish_leaders(progress.leaders)
        evaluator = self.plan.evaluator
        said = {
            which: evaluator.predictions(models if which == "last" else self.folder.load_models(which))
            for which in ("last", *progress.leaders)
            if models
        }
        self.folder.save_predictions(evaluator.truth(), said)
        if isinstance(evaluator, CentralEvaluator):
            assert isinstance(self.store, ClientStore)
            kept = (
                {"last": models, **{which: self.folder.load_models(which) for which in progress.leaders}}
                if models
                else {}
            )
            ended = FinishedRun(self.plan, evaluator, progress.server, self.store, kept)
            for name in artefacts:
                if (content := artefacts[name](ended)) is not None:
                    self.folder.save_artefact(name, content)
        if isinstance(self.plan, Simulation) and (made := self.plan.bundle.preparation) is not None:
            self.folder.save_preparation(made)
        personal = self.store if self.plan.method.personal else None
        result = summary(self.plan, progress, run_digest(models, personal), digest_of(last))
        self.folder.save_result(result)
        begun = self.plan.bundle.doubts if isinstance(self.plan, Simulation) else ()  # the run began with these
        for text in cautions(EndedRun.of(self.plan.experiment, self.plan.task, self.folder, result, progress.journal)):
            if text not in begun:
                self._warn(text)
        for observer in self.observers:
            observer.finish()


def finished(folder: RunFolder) -> bool:
    """Whether the result exists and matches its model file."""
    result = folder.result()
    if result is None:
        return False
    return not result.model_last or file_digest(folder.model_path("last")) == result.model_last
