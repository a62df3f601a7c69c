"""Audits of studies that were never run: evidence with the faults and holes that real ones have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.audit import judge
from fedstill.audit.evidence import Evidence, RoundFacts, Score, Student, Teacher
from fedstill.audit.verdicts import Audit
from fedstill.report import Cost, Extras, make_cloud, write_audit_report

TEACHERS = {
    "fedprox": 0.76,
    "ditto": 0.71,
    "fedavg": 0.70,
    "moon": 0.69,
    "fedbn": 0.66,
    "fedmedian": 0.6,
    "feddyn": 0.55,
    "fednova": 0.52,
    "scaffold": 0.37,
    "fedavgm": 0.26,
    "fedadam": 0.25,
    "fedyogi": None,  # not finite
    "fedadagrad": 0.25,
}
# The weight that each objective gives to labels.
OBJECTIVES = {
    "vanilla": 0.5,
    "self": 0.5,
    "logit-mse": 0.5,
    "cosine": 0.5,
    "feature": 0.0,
    "attention": 0.0,
    "sp": 0.0,
    "rkd": 0.0,
    "crd": 1.0,
    "dkd": 1.0,
}
SAMPLES = 80
ROUNDS = 20
EPOCHS = 15


class Page(HTMLParser):
    """What a page holds: its elements, its text, and its tables as rows of values by key."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, str] = {}  # of whatever has an id, up to the next id
        self.keys: dict[str, list[str]] = {}
        self.values: dict[str, list[tuple[str, str]]] = {}  # of cells: value and text
        self._id, self._table = "", ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {name: value or "" for name, value in attrs}
        self.elements.append((tag, held))
        self._id = held.get("id", self._id)
        if tag == "table":
            self._table = held["id"].removeprefix("table-")
        if "data-key" in held:
            self.keys.setdefault(self._table, []).append(held["data-key"])
        if "data-value" in held:
            self.values.setdefault(self._table, []).append((held["data-value"], ""))

    def handle_data(self, data: str) -> None:
        self.texts[self._id] = self.texts.get(self._id, "") + data
        if self.elements and self.elements[-1][0] in ("td", "th") and self.values.get(self._table):
            value, before = self.values[self._table][-1]
            self.values[self._table][-1] = (value, before or data)

    def all(self, tag: str, style: str = "") -> list[dict[str, str]]:
        return [held for name, held in self.elements if name == tag and style in held.get("class", "").split(" ")]

    def rows(self, table: str, *, text: bool = False) -> list[dict[str, str]]:
        keys, cells = self.keys[table], [cell[1 if text else 0] for cell in self.values[table]]
        return [
            dict(zip(keys, cells[start : start + len(keys)], strict=True)) for start in range(0, len(cells), len(keys))
        ]


@pytest.fixture(scope="session")
def parse() -> Callable[[Path], Any]:
    return Page


@pytest.fixture(scope="session")
def large() -> Audit:
    """Thirteen teachers, ten objectives, three seeds; a teacher that is not finite, cells that failed or have no
    control."""
    return judge(_evidence(TEACHERS, OBJECTIVES, 3))


@pytest.fixture(scope="session")
def small() -> Audit:
    """Two teachers, two objectives, one seed, and nothing that an audit could do without."""
    made = _evidence({"good": 0.8, "bad": 0.25}, {"vanilla": 0.5, "sp": 0.0}, 1)
    bare = tuple(replace(teacher, rounds=(), traffic=None, ceilings={}, accuracies={}) for teacher in made.teachers)
    students = tuple(replace(student, terms={}, curve=(), accuracies={}) for student in made.students)
    return judge(replace(made, teachers=bare, students=students, alone={}, commands=(), settings={}, name="small"))


@pytest.fixture(scope="session")
def extras() -> Extras:
    draw = np.random.Generator(np.random.Philox(3))
    points = draw.standard_normal((300, 3))
    return Extras(
        [
            Cost("pointnet2", 5.6 * 2**20, 126.0, "one thread"),
            Cost("small-pointnet2", 1.4 * 2**20, 63.0, "one thread"),
        ],
        [make_cloud("A head in parts", points, points[:, 2] > 0, ("lower", "upper"))],
    )


@pytest.fixture(scope="session")
def large_report(large: Audit, extras: Extras, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page and its folder of figures; tests leave them as they are."""
    return write_audit_report(large, tmp_path_factory.mktemp("large") / "audit.html", extras=extras)


def _evidence(teachers: dict[str, float | None], objectives: dict[str, float], seeds: int) -> Evidence:
    draw = np.random.Generator(np.random.Philox(7))
    names = [str(7 + number) for number in range(seeds)]
    return Evidence(
        name="clinical-grid",
        about="Thirteen federated teachers, ten objectives.",
        teachers=tuple(_teacher(draw, name, mean, seed) for name, mean in teachers.items() for seed in names),
        students=tuple(
            student
            for name, mean in teachers.items()
            for objective, weight in objectives.items()
            for seed in names
            for free in (False, True)
            for student in [_student(draw, name, mean, objective, weight, seed, free)]
            if student is not None
        ),
        alone={seed: _score(draw, 0.93) for seed in names},
        class_counts=(20, 20, 20, 20),
        commands=(
            "fedstill study clinical-grid --preset lite --variant seed",
            "fedstill audit results.json",
        ),
        settings={"data": "heads, 1024 points", "student": "small-pointnet2"},
    )


def _score(draw: np.random.Generator, mean: float) -> Score:
    correct = draw.random(SAMPLES) < mean
    return Score(float(correct.mean()), tuple(map(bool, correct)))


def _teacher(draw: np.random.Generator, name: str, mean: float | None, seed: str) -> Teacher:
    broken = mean is None
    rise = [0.25 + ((mean or 0.25) - 0.25) * (1 - 0.8**round) for round in range(1, ROUNDS + 1)]
    rounds = tuple(
        RoundFacts(
            number,
            None if broken and number > 5 else float(np.clip(value + 0.03 * draw.standard_normal(), 0, 1)),
            not (broken and number > 5),
            1.0 if mean == 0.25 or broken else 0.4,
            12.0 if broken else 0.0,
        )
        for number, value in enumerate(rise, 1)
    )
    score = None if mean is None else Score(0.25, (True,) * 20 + (False,) * 60) if mean == 0.25 else _score(draw, mean)
    reached = {} if score is None else {"last": score.accuracy, "best": min(1.0, score.accuracy + 0.04)}
    return Teacher(
        name,
        seed,
        score,
        constant=1.0 if mean == 0.25 else 0.35,
        accuracies=reached,
        recalibrated=0.7 if mean == 0.25 else None if score is None else score.accuracy,
        rounds=rounds,
        ceilings={} if score is None else {"vanilla": 0.93 if mean != 0.26 else 0.5, "self": 0.93},
        traffic=55.0 if name != "scaffold" else 110.0,
        egress=frozenset({"parameters", "statistics"}),
        buffers="as-parameters" if mean in (None, 0.25, 0.26) else "average",
        model="pointnet2",
    )


def _student(
    draw: np.random.Generator, teacher: str, mean: float | None, objective: str, weight: float, seed: str, free: bool
) -> Student | None:
    lost = Student(teacher, objective, seed, free, None, model="small-pointnet2")
    if free and objective == "crd":
        return replace(lost, missing="not assessable", hard_label_weight=0.0)
    if teacher == "feddyn" and objective == "rkd":
        return replace(lost, missing="the loss was not finite", hard_label_weight=0.0)
    if teacher == "moon" and objective == "dkd":
        return None
    if mean is None:
        return replace(lost, missing="the teacher is not finite")
    follows = mean + 0.02
    score = _score(draw, 0.95 if weight and not free else follows)
    curve = tuple(score.accuracy * (1 - 0.75**epoch) for epoch in range(1, EPOCHS + 1))
    held = {"cross-entropy": 0.35} if weight and not free else {}
    terms = {**held, "soft-targets": 0.7, **({} if weight else {objective: 3e-4})}
    return Student(
        teacher,
        objective,
        seed,
        free,
        score,
        hard_label_weight=0.0 if free else weight,
        terms=terms,
        curve=curve,
        model="small-pointnet2",
    )
