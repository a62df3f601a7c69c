"""Distilling a detector as a run: engines, label modes, students side by side, and what is refused."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, digest
from fedstill.core.protocols import Engine, RoundContext
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle
from fedstill.detection.detection_losses import TERMS
from fedstill.detection.rooms import make_rooms
from fedstill.distillation.distill import Distillation, JointStudent, together
from fedstill.models import build_model
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.launch import distillation
from fedstill.runtime.plan import Plan, make_plan
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute
from fedstill.runtime.teacher_loader import TeacherLoader

POINTS = 128
STUDENT, TEACHER = "small-detr3d-lite", "detr3d-lite"
FROM_TEACHER = {"soft-targets", "box-targets", "empty-queries", "token-targets", "hint"}


@cache
def bundle() -> Bundle:
    """Few rooms of few points."""
    made = make_rooms(13, points=POINTS, seen=4)
    columns = {
        "inputs": torch.as_tensor(made.points),
        "labels": torch.as_tensor(made.classes),
        "boxes": torch.as_tensor(made.boxes),
    }
    parts = [ArrayDataset(**{name: column[rows] for name, column in columns.items()}) for rows in (_TRAIN, _TEST)]
    return Bundle("few-rooms", *parts, classes=made.class_names, kind="scene", shape=(POINTS, 3))


_TRAIN, _TEST = slice(0, 9), slice(9, 13)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """It has learnt nothing, which is as good as any for bits; how sure it is, `least` must not ask."""
    return weights(tmp_path_factory.mktemp("teacher") / "teacher.safetensors", TEACHER)


def weights(path: Path, model: str) -> dict[str, Any]:
    with Streams(5).ambient("teacher"):
        path.write_bytes(Message(state_of(build_model(model, (POINTS, 3), len(bundle().classes)))).encode())
    return {"file": str(path), "model": model}


def planned(
    teachers: Any, objective: Any = None, labels: str = "use", staff: TeacherLoader | None = None, **more: Any
) -> Plan:
    objective = {"name": "detector", "least": 0.0} if objective is None else objective
    given = distillation(teachers, STUDENT, objective, labels)
    given |= {"data": "few-rooms", "rounds": 2, "seed": 3, "training": {"batch": 4}}
    given["method"] |= more.pop("method", {})
    return make_plan(make_experiment({**given, **more}), bundle=bundle(), staff=staff)


def finished(plan: Plan, engine: Engine, out: Path) -> Run:
    return Run(execute(plan, engine, out).path)


@pytest.fixture
def engine(engines: dict[str, Engine]) -> Engine:
    return engines["in-process"]


def test_every_engine_and_a_resumed_run_give_the_same_bits(
    teacher: Any, engines: dict[str, Engine], stop_after: Any, tmp_path: Path
) -> None:
    plan = planned(teacher)
    runs = {name: finished(plan, engines[name], tmp_path / name) for name in ("in-process", "wire", "processes-2")}
    with pytest.raises(KeyboardInterrupt):
        execute(plan, engines["in-process"], tmp_path / "resumed", [stop_after(1)])
    runs["resumed"] = finished(plan, engines["in-process"], tmp_path / "resumed")
    first = runs["in-process"]
    for name, run in runs.items():
        assert run.sha256 == first.sha256, name
        assert run.journal == first.journal, name
    assert set(first.journal[0].loss) == {*TERMS, *FROM_TEACHER}
    assert all(math.isfinite(loss) and loss >= 0 for record in first.journal for loss in record.loss.values())
    assert {"map_25", "map_50", "ar_25", "ar_50"} <= first.journal[-1].metrics.keys()
    (examined,) = first.result.teachers
    assert examined.model == TEACHER
    assert {"accuracy", "map_50"} <= examined.metrics.keys()
    assert first.result.ceiling is None


def test_the_two_controls_are_one_computation(teacher: Any, engine: Engine, tmp_path: Path) -> None:
    runs = {labels: finished(planned(teacher, labels=labels), engine, tmp_path) for labels in ("no-ce", "withhold")}
    assert runs["no-ce"].sha256 == runs["withhold"].sha256
    assert runs["no-ce"].journal == runs["withhold"].journal
    assert set(runs["no-ce"].journal[0].loss) == FROM_TEACHER


def test_a_student_alone_is_centralised_training(engine: Engine, tmp_path: Path) -> None:
    """The same model, on the same batches: the objective is the task's loss, and the encoder's rate is kept to."""
    alone = planned([], "labels-only")
    both = [finished(alone, engine, tmp_path)]
    given = {"method": "centralised", "model": STUDENT, "training": {"batch": 4}, "data": "few-rooms", "rounds": 2}
    both.append(finished(make_plan(make_experiment({**given, "seed": 3}), bundle=bundle()), engine, tmp_path))
    assert both[0].sha256 == both[1].sha256
    assert [record.loss for record in both[0].journal] == [record.loss for record in both[1].journal]


def test_students_that_learn_together_get_the_bits_they_get_alone(teacher: Any) -> None:
    """One sees labels and the other none, whose batches have no boxes to be augmented."""
    staff = TeacherLoader()
    plans = [planned(teacher, labels="withhold", staff=staff), planned(teacher, staff=staff)]
    assert plans[0].task.augments

    def student(plan: Plan) -> JointStudent:
        context = RoundContext(0, plan.rounds, 1, "train", plan.streams.at("round", 0, "train"))
        assert isinstance(plan.method, Distillation)
        request = Message(plan.method.start(plan.streams))
        return JointStudent(plan.method, plan.clients(plan.profiles[0], {}, context), request, context)

    alone = [together([student(plan)])[0] for plan in plans]
    shared = together([student(plan) for plan in plans])
    assert [digest(one) for one in shared] == [digest(one) for one in alone]
    assert digest(shared[0]) != digest(shared[1])


def test_scenes_that_never_change_are_spoken_of_once(teacher: Any, engine: Engine, tmp_path: Path) -> None:
    plan = planned(teacher, augmentation="none")
    run = finished(plan, engine, tmp_path)
    assert isinstance(plan.method, Distillation)
    assert set(plan.method.teacher_cache.held) == {"ids", "log_probabilities", "features", "boxes", "queries"}
    assert run.journal[0].loss["soft-targets"] > 0


@pytest.mark.parametrize("objective", ["vanilla", "multi-teacher", "feature", "crd", "self"])
def test_other_objectives_are_not_for_detectors(teacher: Any, objective: str) -> None:
    with pytest.raises(InputError, match=f"objective {objective} .* {STUDENT} finds boxes: choose the objective det"):
        planned(teacher, objective)


def test_what_cannot_be_taught_is_refused(teacher: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="learns from one teacher, and 2 were named: leave all but one out"):
        planned([teacher, teacher])
    with pytest.raises(InputError, match="the student is the teacher"):
        planned(weights(tmp_path / "same.safetensors", STUDENT))
    with pytest.raises(InputError, match=r"own:teacher of your own cannot be a detector: name a run, or a file"):
        planned({"call": "own:teacher"})
    with pytest.raises(InputError, match=r"\(pointnet-tiny\) is no detector, and the student .* is one"):
        planned(weights(tmp_path / "classifier.safetensors", "pointnet-tiny"))


def test_classifiers_are_not_for_detectors(tmp_path: Path, tiny_plan: Any) -> None:
    with Streams(5).ambient("teacher"):
        (tmp_path / "cnn.safetensors").write_bytes(Message(state_of(build_model("cnn", (1, 8, 8), 10))).encode())
    given = distillation({"file": str(tmp_path / "cnn.safetensors"), "model": "cnn"}, "mlp", "detector", "use")
    with pytest.raises(InputError, match="objective detector compares boxes that were found, and mlp finds none"):
        tiny_plan(**{**given, "data": "digits"})
