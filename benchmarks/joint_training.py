"""Joint training of ten students in one pass, compared with ten separate epochs that give the same bits.

Students share the teacher's outputs and the geometry of a batch. The ratio therefore shows how much of a student's
epoch the teacher takes: most of it at the published sizes, less if both are small. Plans and evaluation are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from benchmarks.timing import Ratio, interleave
from fedstill.core.message import Message
from fedstill.core.protocols import RoundContext
from fedstill.distillation.distill import Distillation, JointStudent, together
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.launch import launch
from fedstill.runtime.plan import Plan, make_plan
from fedstill.runtime.teacher_loader import TeacherLoader

OBJECTIVES = ("vanilla", "self", "logit-mse", "cosine", "feature", "attention", "sp", "rkd", "crd", "dkd")
# By title: teacher, student, points, target.
PAIRS = {
    "published sizes": ("pointnet2", "small-pointnet2", 1024, 0.38),
    "lite sizes": ("pointnet2-lite", "small-pointnet2-lite", 256, None),
}
SHARE = 0.15  # of the 320 heads


def measure(size: Size, folder: Path) -> Findings:
    findings = Findings()
    for title, (teacher, student, points, target) in PAIRS.items():
        given = {"data": "heads", "points": points, "seed": 7, "rounds": 2, "training": {"batch": 24}}
        first = make_experiment({**given, "method": "centralised", "model": teacher, "rounds": 1})
        plans = _plans(given, student, str(launch(first, out=folder).path))

        def separate(plans: Sequence[Plan] = plans) -> list[Message]:
            return [message for plan in plans for message in together([_student(plan)])]

        def joint(plans: Sequence[Plan] = plans) -> list[Message]:
            return together([_student(plan) for plan in plans])

        if [message.encode() for message in separate()] != [message.encode() for message in joint()]:
            raise DifferenceError(f"students of {title} differ between joint and separate training")
        times = interleave(max(3, size.rounds // 2), separate, joint, clock=process_time)
        note = f"{teacher}, {points} points, batch 24, {SHARE:.0%} of heads; ten epochs {median(times[0]):.3g} s"
        findings.rows.append(
            Row(f"joint / separate training of ten students, {title}", Ratio.of(times[1], times[0]), target, note=note)
        )
    return findings


def _plans(given: dict[str, Any], student: str, teacher: str) -> list[Plan]:
    loader = TeacherLoader()
    distilled = {
        **given,
        "method": {"name": "distill", "share": SHARE},
        "model": student,
        "teachers": [{"run": teacher}],
    }
    return [make_plan(make_experiment({**distilled, "objective": name}), staff=loader) for name in OBJECTIVES]


def _student(plan: Plan) -> JointStudent:
    assert isinstance(plan.method, Distillation)
    context = RoundContext(0, plan.rounds, 1, "train", plan.streams.at("round", 0, "train"))
    who = plan.profiles[0]
    request = plan.method.request(plan.method.start(plan.streams), who, context)
    assert request is not None
    return JointStudent(plan.method, plan.clients(who, {}, context), request, context)
