"""What a study's page shows beside its audit, from its runs: what the models cost, and what the data looks like."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from fedstill.core.errors import InputError
from fedstill.core.hardware import one_thread
from fedstill.data.lookup import load
from fedstill.export.latency import Protocol, measure
from fedstill.export.subject import Subject
from fedstill.report.study.extras import Cloud, Cost, Extras, make_cloud
from fedstill.runtime.result import Run
from fedstill.runtime.run_folder import folder_of
from fedstill.studies.results import ResultRow, Results

_log = logging.getLogger(__name__)

_QUICK = Protocol(passes=30, warm_ups=3, seconds=3.0, batches=(1,), threads=(1,), onnx=False)
_MODEL = "model-last.safetensors"
_DEVICE = "one CPU thread, one sample, PyTorch"


def gathered(results: Results, runs: Path, data_root: Path | None = None, data: str | None = None) -> Extras:
    """Of the runs that are here; where students learnt on several data sets, of those on `data` and their teachers."""
    students = results.students
    if students is None:
        return Extras()
    learnt = [cell for cell, pupil in students.pupils.items() if data in (None, pupil.data)]
    taught = {cell[: len(results.axes)] for cell in learnt}
    teachers = _here((row for cell, row in results.runs.items() if cell in taught), runs)
    pupils = _here((students.runs[cell] for cell in learnt if cell in students.runs), runs)
    if not teachers or not pupils:
        return Extras()
    return Extras(_costs([*teachers, *pupils], data_root), _clouds(teachers[0], data_root))


def _here(rows: Iterable[ResultRow], runs: Path) -> list[Run]:
    """The finished runs of these rows whose folders lie in this one, and whose models have not been deleted."""
    folders = (folder_of(row.identity, runs) for row in rows)
    found = [Run(folder) for folder in folders if folder is not None and (folder / _MODEL).is_file()]
    return [run for run in found if run.finished]


def _costs(runs: Sequence[Run], data_root: Path | None) -> list[Cost]:
    """One run of each model is measured; nothing is said of a model that some runs give other inputs or classes."""
    kinds: dict[str, dict[tuple[int, ...], Run]] = {}
    for run in runs:
        models = run.task.architectures
        if len(models) == 1:
            kinds.setdefault(models[0], {}).setdefault((*run.config["shape"], len(run.config["classes"])), run)
    subjects = []
    for alike in kinds.values():
        if len(alike) == 1:
            subjects += _subject(next(iter(alike.values())), data_root)
    if not subjects:
        return []
    with one_thread():
        return [Cost(one.model, one.bytes, one.latency[0].median, _DEVICE) for one in measure(subjects, _QUICK)]


def _subject(run: Run, data_root: Path | None) -> list[Subject]:
    """Nothing where a model cannot be timed, as those that label every point."""
    try:
        return [Subject(run, data_root=data_root)]
    except InputError:
        _log.info("the report leaves out the latency of %s", run.path, exc_info=True)
        return []


def _clouds(run: Run, data_root: Path | None) -> list[Cloud]:
    """The first test sample of each class, of at most six."""
    experiment = run.experiment
    try:
        bundle = load(experiment.data, data_root)
    except InputError:
        _log.info("the report leaves out samples of %s", experiment.data, exc_info=True)
        return []
    labels = bundle.test.labels()
    if bundle.kind != "cloud" or labels is None or labels.ndim > 1:
        return []
    found = []
    for number, name in enumerate(bundle.classes[:6]):
        rows = torch.nonzero(labels == number).flatten()[:1]
        if len(rows):
            found.append(make_cloud(name, bundle.test.batch(rows)["inputs"][0].numpy(), most=1024))
    return found
