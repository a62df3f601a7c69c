"""The plan of a study on this machine: every cell resolved against its data, identical runs counted once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError, MissingDataError, UnusableError
from fedstill.core.hardware import check_device
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle
from fedstill.data.lookup import load
from fedstill.data.unlabelled import load_proxy
from fedstill.distillation import objectives
from fedstill.distillation.proxy_data import DistillationSettings
from fedstill.distillation.teachers import TeacherModel
from fedstill.methods import methods
from fedstill.participation.trace import Trace
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.defaults import point_features, resolve
from fedstill.runtime.experiment import Experiment, TeacherSource
from fedstill.runtime.identity import Known, Parts, fingerprint_of, identity_from, parts_of
from fedstill.runtime.initial_weights import missing_weights, with_initial
from fedstill.runtime.method_inputs import PlanContext
from fedstill.runtime.plan import held_out, make_method, make_task
from fedstill.runtime.planned_participants import make_participants
from fedstill.runtime.teacher_loader import TeacherLoader
from fedstill.studies.grid import GridCell
from fedstill.tasks.classification import Classification

_INHERITED = ("points", "augmentation")  # decided by the teacher's model where nobody else says
_DIFFERENT = {"objective", "model", "rounds"}  # what may differ between students of one lesson


@dataclass(frozen=True)
class Job:
    """A run that some cells of the study share.

    `key` tells it from the study's other runs. Without a teacher it is the identity that ends the run's folder's name;
    a student's identity is known only when its teacher's weights are (see `RunStatus.identity`).
    """

    key: str
    cell: GridCell = field(compare=False)  # the first of them
    experiment: Experiment = field(compare=False)  # with every default filled in
    fingerprint: str = field(default="", compare=False)  # of its data
    teacher: Job | None = field(default=None, compare=False)
    inherited: Mapping[str, Any] = field(default_factory=dict, compare=False)  # from the teacher, where not given
    which: str = field(default="last", compare=False)  # of its teacher's models
    parts: Parts = field(default_factory=dict, compare=False)  # what its identity knows of its parts
    unknown: bool = field(default=False, compare=False)  # whether some of that cannot be established

    @property
    def method(self) -> str:
        """What runs of about the same length have in common."""
        return f"{self.experiment.method.name} {self.experiment.model} {self.experiment.data}"

    @property
    def epochs(self) -> int:
        """How long it is, beside others: passes over the data, if everybody takes part in every round."""
        return self.experiment.rounds * self.experiment.training.epochs

    @property
    def lesson(self) -> str:
        """Jobs with the same words here can learn together."""
        if self.teacher is None and not self.experiment.teachers:
            return self.key
        taught_by = "" if self.teacher is None else f"{self.teacher.key} {self.which}"
        shared = self.experiment.model_dump(mode="json", exclude=_DIFFERENT)
        shared["method"] = {name: value for name, value in shared["method"].items() if name != "labels"}
        return f"{taught_by} {json.dumps(shared, sort_keys=True)}"

    def identity(self, sha256: str = "") -> str:
        """With the digest of the teacher's weights, where there is a teacher."""
        experiment = self.experiment
        if self.teacher is not None:
            taught_by = TeacherSource(run="?", which=self.which, model=self.teacher.experiment.model, sha256=sha256)
            experiment = experiment.model_copy(update={"teachers": (taught_by,)})
        return identity_from(experiment.digest(self.fingerprint), self.parts, self.unknown)

    def given(self, teacher: Path | None) -> dict[str, Any]:
        """The configuration to run, once the teacher's folder is known."""
        given = {**self.inherited, **self.cell.given}
        return given if teacher is None else {**given, "teachers": [{"run": str(teacher), "which": self.which}]}


@dataclass(frozen=True)
class StudyPlan:
    """The study's cells with their runs, those that cannot be, and the data sets that are not here."""

    cells: tuple[tuple[GridCell, Job | None], ...]
    refused: dict[int, str]  # by the cell's number, why there can be no such run
    missing: dict[str, str]  # by data set, what its loader said
    known: Known = field(default_factory=dict)  # the parts that runs use, as they were looked at
    bundles: Mapping[str, Bundle] = field(default_factory=dict, compare=False)  # the data sets that are here

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Distinct runs in the order in which the grid first names them."""
        return tuple(dict.fromkeys(job for _, job in self.cells if job is not None))

    def check_data(self) -> None:
        if self.missing:
            sentences = [sentence.rstrip(".") for sentence in self.missing.values()]
            raise InputError(f"the study cannot run here: {'; '.join(sentences)}")


def lessons(jobs: Iterable[Job], parts: int = 1) -> Iterator[list[Job]]:
    """Jobs that are done in one go, in at most so many parts each."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.lesson, []).append(job)
    for group in groups.values():
        yield from (piece for part in range(parts) if (piece := group[part::parts]))


def make_study_plan(
    cells: Sequence[GridCell], data_root: Path | None = None, device: str = "cpu", which: str = "last"
) -> StudyPlan:
    """Resolve every cell; one that its data, model or method refuses is refused here, before anything has run.

    Teachers come before their students. Without its data a cell is identified by its configuration alone.
    """
    check_device(device)
    missing: dict[str, str] = {}
    refused: dict[int, str] = {}
    shelves: dict[str, _Shelf] = {}
    for data in dict.fromkeys(cell.experiment.data for cell in cells):
        try:
            shelves[data] = _Shelf(load(data, data_root), data_root)
        except InputError as error:
            missing[data] = str(error)
    jobs: dict[int, Job | None] = {}
    found: dict[str, Job] = {}
    of: dict[int, Job] = {}  # by the id of a teacher's cell
    known: Known = {}
    for number, cell in enumerate(cells):
        if cell.teacher is not None and id(cell.teacher) not in of:
            refused[number], jobs[number] = "its teacher can have no result", None
            continue
        teacher = None if cell.teacher is None else of[id(cell.teacher)]
        try:
            job = _job(cell, shelves.get(cell.experiment.data), teacher, which, known)
        except MissingError as error:
            missing[error.what] = str(error)
            job = _job(cell, None, teacher, which, known)
        except UnusableError as error:
            refused[number], jobs[number] = str(error), None
            continue
        except InputError as error:
            raise InputError(f"the experiment {cell}: {error}") from None
        job = found.setdefault(_alike(job), job)
        jobs[number] = of[id(cell)] = job
    here = {data: shelf.bundle for data, shelf in shelves.items()}
    return StudyPlan(tuple((cell, jobs[number]) for number, cell in enumerate(cells)), refused, missing, known, here)


def _job(cell: GridCell, shelf: _Shelf | None, of: Job | None, which: str, known: Known) -> Job:
    """`of` is the teacher's, also where the student does not listen to it."""
    experiment, fingerprint, inherited = cell.experiment, "not here", {}
    teacher = of if cell.taught and objectives[cell.taught.objective].least_teachers else None
    if of is not None:
        said = of.experiment.model_dump(mode="json", include=set(_INHERITED))
        inherited = {key: said[key] for key in _INHERITED if key not in cell.given and said[key] is not None}
        experiment = make_experiment({**inherited, **cell.given}) if inherited else experiment
    if shelf is not None:
        experiment, fingerprint = shelf.resolved(experiment, teacher)
    taught_by = () if teacher is None else (TeacherSource(run="?", model=teacher.experiment.model),)
    used = experiment.model_copy(update={"teachers": (*experiment.teachers, *taught_by)})
    parts, unknown = parts_of(used, known)
    which = which if teacher else "last"
    job = Job("", cell, experiment, fingerprint, teacher, inherited, which, parts, bool(unknown))
    return replace(job, key=job.identity(f"of {teacher.key}" if teacher else ""))


def _alike(job: Job) -> str:
    """Jobs with the same words here are one run.

    Runs that differ only in sections that their method does not depend on are one run: a client that does not learn
    from peers learns the same whatever is asked for, and what became of other queries can be told from the same run.
    """
    method = methods[job.experiment.method.name]
    idle = {name: type(one)() for name, one in job.experiment.sections().items() if not one.changes(method)}
    if not idle:
        return job.key
    return (
        f"{replace(job, experiment=job.experiment.model_copy(update=idle)).identity()} whatever {', '.join(idle)} say"
    )


class MissingError(InputError):
    """Something that a run needs beside its data is not here: shared samples, weights to start from, a trace."""

    def __init__(self, what: str, sentence: str) -> None:
        super().__init__(sentence)
        self.what = what


def _check_trace(experiment: Experiment) -> None:
    trace = experiment.dropout.settings
    if isinstance(trace, Trace) and not Path(trace.file).exists():
        raise MissingError(trace.file, f"there is no file {trace.file} that says who is lost")


class _Shelf:
    """One data set, and what is costly to make of it: clouds with fewer points, and tasks with a model."""

    def __init__(self, bundle: Bundle, data_root: Path | None) -> None:
        self.bundle, self.data_root = bundle, data_root
        self.cut: dict[tuple[str | None, int | None, tuple[str, ...]], Bundle] = {}
        self.tasks: dict[str, Classification] = {}
        self.untrained: dict[tuple[str, str], TeacherModel] = {}  # of a task, by architecture
        self.checked: dict[str, str] = {}  # by experiment but for its seed, the digest of its shared samples, if fixed
        self.proxies: dict[str, str] = {}
        self.shared: dict[str, Any] = {}  # inputs of methods that experiments share
        self.staff = TeacherLoader()

    def resolved(self, experiment: Experiment, teacher: Job | None) -> tuple[Experiment, str]:
        """The experiment with its defaults, and the fingerprint of its data; refused if it cannot be."""
        key = (experiment.model, experiment.points, point_features(experiment))
        resolved, cut = resolve(experiment, self.cut.get(key, self.bundle))
        self.cut[key] = cut
        resolved = self._started(resolved, cut)
        how = resolved.model_dump(mode="json", include={"model", "models", "points", "augmentation"})
        wanted = json.dumps({**how, "features": cut.features}, sort_keys=True)
        if wanted not in self.tasks:
            self.tasks[wanted] = make_task(resolved, cut)
        task = self.tasks[wanted]
        resolved, teachers = self.staff.load(resolved, cut, "cpu")
        if teacher is not None:  # an untrained one: what it can say, not what it will
            teachers = [self._untrained(str(teacher.experiment.model), wanted)]
        proxy, digest = self._proxy(resolved), self._checked(resolved, cut, task, teachers)
        return resolved, fingerprint_of(resolved, cut.fingerprint(), task, proxy, digest)

    def _untrained(self, architecture: str, wanted: str) -> TeacherModel:
        """One of an architecture that says the same of every input is like another: all of a task's jobs share it."""
        if (wanted, architecture) not in self.untrained:
            built = self.tasks[wanted].build(architecture)
            self.untrained[wanted, architecture] = TeacherModel(f"a {architecture}", architecture, built)
        return self.untrained[wanted, architecture]

    def _checked(
        self, resolved: Experiment, cut: Bundle, task: Classification, teachers: Sequence[TeacherModel]
    ) -> str:
        """Refuse what cannot be; gives the digest of the samples that are shared, or nothing.

        Of experiments that differ in their seed alone one is looked at, unless they share samples, which are drawn.
        """
        streams = Streams(resolved.seed)
        _, kept = held_out(resolved, cut, streams)
        named = [(one.name, one.architecture, id(one.model)) for one in teachers]
        key = f"{resolved.model_dump_json(exclude={'seed'})} {named}"
        if key in self.checked:
            return self.checked[key]
        labelled = cut.train.labels() is not None
        context = PlanContext(resolved, task, cut.kind, self.data_root, teachers, self.shared, kept)
        try:
            method, shared = make_method(context, streams, labelled)
        except MissingDataError as error:
            raise MissingError(error.name, str(error)) from None
        _check_trace(resolved)
        make_participants(resolved, method, labelled)
        if shared is not None:
            return shared.digest
        return self.checked.setdefault(key, "")

    def _started(self, experiment: Experiment, bundle: Bundle) -> Experiment:
        """The experiment with the digest of the weights it starts from, which is part of a run's identity."""
        if experiment.initial is not None and not Path(experiment.initial.file).exists():
            raise MissingError(experiment.initial.file, missing_weights(experiment.initial.file))
        return with_initial(experiment, bundle.shape, len(bundle.classes))[0]

    def _proxy(self, experiment: Experiment) -> str:
        settings = experiment.method.settings
        name = settings.proxy if isinstance(settings, DistillationSettings) else None
        if name is None:
            return ""
        if name not in self.proxies:
            self.proxies[name] = load_proxy(name, self.data_root).fingerprint()
        return self.proxies[name]
