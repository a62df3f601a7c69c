"""What a study's page shows beside its audit, from its runs: what the models cost, and what the data looks like."""

from __future__ import annotations

from pathlib import Path

import torch

from fedstill.core.errors import InputError
from fedstill.data.catalogue import load
from fedstill.export.latency import Protocol, measure
from fedstill.export.subject import Subject
from fedstill.federation.result import Run
from fedstill.federation.run import one_thread
from fedstill.report.study.extras import Cloud, Cost, Extras, make_cloud
from fedstill.studies.results import Results

_QUICK = Protocol(passes=30, warm_ups=3, seconds=3.0, batches=(1,), threads=(1,), onnx=False)
_DEVICE = "one CPU thread, one sample, PyTorch"


def gathered(results: Results, runs: Path, data_root: Path | None = None) -> Extras:
    """Of the first teacher and the first student whose runs are here; whatever is not here is left out."""
    students = results.students
    if students is None:
        return Extras()
    teacher = _first([row.identity for row in results.runs.values()], runs)
    student = _first([row.identity for row in students.runs.values()], runs)
    if teacher is None or student is None:
        return Extras()
    with one_thread():
        first, second = (
            Cost(one.model, one.bytes, one.latency[0].median, _DEVICE)
            for one in measure([Subject(teacher, data_root=data_root), Subject(student, data_root=data_root)], _QUICK)
        )
    return Extras(first, second, clouds=_clouds(teacher, data_root))


def _first(identities: list[str], runs: Path) -> Run | None:
    for identity in identities:
        for path in runs.glob(f"*-{identity}/model-last.safetensors"):
            return Run(path.parent)
    return None


def _clouds(run: Run, data_root: Path | None) -> list[Cloud]:
    """The first test sample of each class, of at most six."""
    experiment = run.experiment
    try:
        bundle = load(experiment.data, data_root)
    except InputError:
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
