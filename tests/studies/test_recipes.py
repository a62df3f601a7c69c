"""The recipes that ship: what the published tables take, enumerated, and that each of them can be planned and run."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedstill.cli import main
from fedstill.data.bundle import Bundle, datasets
from fedstill.data.catalogue import load
from fedstill.data.named_slices import part_of
from fedstill.runtime import joint_training, recipes
from fedstill.runtime import plan as run_plan
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.recipes import recipe_names
from fedstill.studies import Study, study_plan
from fedstill.studies.study_plan import Job

BUILT_IN = {"digits", "heads", "head-parts", "rooms"}
VARIANTS = ("as-published", "corrected")
# Of the published tables, and the sweeps beside them: each in three scales and two readings.
TABLES = (
    *("benchmark", "standalone", "focused", "clinical-grid", "modelnet40-grid", "kd-objectives"),
    *("beta-weights", "heterogeneity", "temperature", "dgcnn-student"),
)
CLINICAL = "craniosynostosis-ssm"
FEW = "heads[:10%]"  # what the preset tiny trains on, and less of it
OBJECTIVES = {"vanilla", "self", "cosine", "crd", "logit-mse", "dkd", "feature", "attention", "rkd", "sp"}


@cache
def content_of(name: str) -> dict[str, Any]:
    return recipes._read(recipes.recipe_folder() / f"{name}.yaml")


def layers() -> list[tuple[str, str | None, str | None]]:
    """Every study that ships, in every scale and reading."""
    return [(name, *pair) for name in recipe_names(study=True) for pair in product(*scales_and_readings(name))]


def scales_and_readings(name: str) -> tuple[list[str | None], list[str | None]]:
    presets, variants = ([*(content_of(name).get(kind) or [None])] for kind in ("presets", "variants"))
    return presets, variants


def usual(name: str, preset: str | None, variant: str | None) -> bool:
    """Whether a pair is planned each time: the first scale in the first reading, the second in the second, and so on.

    All scales and all readings of every study are among these; the other pairs are planned by the slow tests.
    """
    presets, variants = scales_and_readings(name)
    at, reading = presets.index(preset), variants.index(variant)
    return at == reading % len(presets) if len(presets) < len(variants) else reading == at % len(variants)


LAYERS = [pytest.param(*layer, marks=() if usual(*layer) else pytest.mark.slow) for layer in layers()]


@cache
def built_in(name: str) -> Bundle:
    return load(name, None)


@pytest.fixture(autouse=True)
def data_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads take a second, and a hundred plans look at them."""

    def quick(name: str, root: Path | None) -> Bundle:
        return built_in(name) if part_of(name)[0] in BUILT_IN else load(name, root)

    for module in (study_plan, run_plan, joint_training):
        monkeypatch.setattr(module, "load", quick)


@cache
def shipped(name: str, preset: str | None = None, variant: str | None = None) -> Study:
    """A study on a machine that has no data but what is built in."""
    return Study(name, preset=preset, variant=variant, data_root=Path("nowhere"))


def seeds_of(name: str) -> dict[str, list[int]]:
    """One of its seeds, where it has several: runs with another one differ in nothing else."""
    return {"seed": [7]} if "seed" in content_of(name)["grid"] else {}


@cache
def with_one_seed(name: str, preset: str | None, variant: str | None) -> Study:
    return Study(name, seeds_of(name), preset=preset, variant=variant, data_root=Path("nowhere"))


def changed(name: str, settings: dict[str, Any]) -> tuple[Job, ...]:
    """Its runs, with settings of the user's own."""
    return Study(name, settings, data_root=Path("nowhere")).study_plan.jobs


def test_every_scale_and_every_reading_is_planned_each_time() -> None:
    some = [layer for layer in layers() if usual(*layer)]
    for at in (1, 2):
        assert {(layer[0], layer[at]) for layer in some} == {(layer[0], layer[at]) for layer in layers()}


@pytest.mark.parametrize(("name", "preset", "variant"), LAYERS, ids=lambda value: value or "-")
def test_a_plan_needs_no_data(
    name: str,
    preset: str | None,
    variant: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is not here is listed, and the exit code then is 2."""
    monkeypatch.chdir(tmp_path)
    chosen = [*(["--preset", preset] if preset else []), *(["--variant", variant] if variant else [])]
    chosen += [word for key, value in seeds_of(name).items() for word in ("--set", f"{key}={value}")]
    words = ["study", name, *chosen, "--dry-run", "--json", "--data-root", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["fedstill", *words])
    with pytest.raises(SystemExit) as left:
        main()
    told = json.loads(capsys.readouterr().out)
    assert (left.value.code or 0) == (2 if told["missing"] else 0)
    wanted = {cell["experiment"]["data"] for cell in told["cells"]}
    assert {part_of(name)[0] for name in wanted} <= {*datasets.names()}
    here = wanted & BUILT_IN
    started = {cell["experiment"]["initial"]["file"] for cell in told["cells"] if cell["experiment"]["initial"]}
    # Of a run whose data is not here, nobody asks what else it lacks.
    assert set(told["missing"]) == (wanted - here) | (started if here else set())
    assert 0 < told["runs"] <= told["experiments"] == len(told["cells"])
    if preset == "tiny":
        assert not told["missing"]


def test_every_study_that_ships_is_sound_in_all_its_layers() -> None:
    """With one layer or none, but for those that are planned above: studies in every scale and reading at once."""
    planned = {layer for layer in layers() if usual(*layer)}
    for name in recipe_names(study=True):
        presets, variants = (content_of(name).get(kind, {}) for kind in ("presets", "variants"))
        seeds = [layer.get("grid", {}).get("seed", []) for layer in (content_of(name), *presets.values())]
        assert all(len({*some}) == len(some) and all(isinstance(seed, int) for seed in some) for some in seeds)
        single = [(name, None, None), *((name, one, None) for one in presets), *((name, None, one) for one in variants)]
        for layer in single:
            assert layer in planned or with_one_seed(*layer).expand()


@pytest.mark.parametrize("name", TABLES)
def test_every_table_comes_in_three_scales_and_two_readings(name: str) -> None:
    content = content_of(name)
    assert {"paper", "lite", "tiny"} <= set(content["presets"])
    assert set(VARIANTS) <= set(content["variants"])
    assert shipped(name, variant="as-published").recipe.students.which == "best"  # type: ignore[union-attr]
    assert shipped(name, variant="corrected").recipe.students.which == "last"  # type: ignore[union-attr]


@pytest.mark.parametrize("variant", [None, *VARIANTS])
def test_the_published_benchmark_is_504_runs(variant: str | None) -> None:
    """Appendix A: 14 configurations on ModelNet40, 1 + 13 + 10 + 130 = 154 on clinical data, each with three seeds."""
    jobs = shipped("benchmark", variant=variant).study_plan.jobs
    assert Counter(job.experiment.data for job in jobs) == {"modelnet40": 42, CLINICAL: 462}
    students = [job for job in jobs if job.teacher is not None]
    assert len(jobs) - len(students) == 84
    assert len(students) == 420
    by_teacher = Counter(job.teacher.cell.labels["method"] for job in students if job.teacher is not None)
    assert len(by_teacher) == 14
    assert set(by_teacher.values()) == {30}
    assert {job.experiment.objective.name for job in students if job.experiment.objective} == OBJECTIVES


def test_dropping_something_drops_its_share() -> None:
    """Of 504 = 3 x 168 runs: a seed has 168, an objective 14 x 3, a method 3 x (2 teachers + 10 students), a data set
    that nobody distils on 3 x 14; an eleventh objective adds another 42, and the controls one for each student but
    those of the four objectives that read no labels anyway."""
    assert len(changed("benchmark", {"seed": [7, 42]})) == 336
    assert len(changed("benchmark", {"objective": sorted(OBJECTIVES - {"dkd"})})) == 504 - 42
    assert len(changed("benchmark", {"objective": [*sorted(OBJECTIVES), "basic"]})) == 504 + 42
    assert len(changed("benchmark", {"data": [CLINICAL]})) == 504 - 42
    assert len(changed("benchmark", {"labels": ["use", "no-ce"]})) == 504 + 14 * 3 * 6
    methods = content_of("benchmark")["grid"]["method"]
    assert len(changed("benchmark", {"method": methods[:-1]})) == 504 - 36


@pytest.mark.parametrize("variant", [None, *VARIANTS])
def test_what_tables_share_is_run_once(variant: str | None) -> None:
    """A run is identified by its configuration: that of one table must be, to the letter, that of the other."""
    shared = {"benchmark": 84 + 30, "fl-clinical": 39}
    standalone = {job.key for job in shipped("standalone", variant=variant).study_plan.jobs}
    assert len(standalone) == 4 * 3 * (14 + 10)
    for name, number in shared.items():
        assert len(standalone & {job.key for job in shipped(name, variant=variant).study_plan.jobs}) == number
    shapes = {job.key for job in shipped("modelnet40-grid", variant=variant).study_plan.jobs}
    assert len(standalone & shapes) == 3 * (14 + 10)
    grid = {job.key for job in shipped("clinical-grid", variant=variant).study_plan.jobs}
    assert len({job.key for job in shipped("benchmark", variant=variant).study_plan.jobs} & grid) == 3 * 13 * 11
    # All but the uniform teacher with its students, and but the objective `basic`; of one seed.
    focused = shipped("focused", variant=variant).study_plan.jobs
    assert len(focused) == 6 * (1 + 7)
    assert len(shapes & {job.key for job in focused}) == 5 * (1 + 6)


def published(experiment: Experiment, epochs: int) -> bool:
    training = experiment.training
    return (
        (training.optimiser, training.rate, training.weight_decay, training.batch) == ("adam", 1e-3, 1e-4, 24)
        and (training.schedule, training.step_every, training.step_factor) == ("step", 20, 0.7)
        and (experiment.rounds, training.epochs, training.keep_optimiser) == (epochs, 1, True)
    )


@pytest.mark.parametrize("name", TABLES)
def test_paper_means_the_published_settings(name: str) -> None:
    """Centralised and students: 200 epochs, the rate times 0.7 every 20. Federated: 20 rounds of 5, five clients."""
    study = shipped(name, preset="paper")
    for cell in study.expand():
        experiment = cell.experiment
        assert experiment.points in (1024, None)  # None: the model decides, which is 1024
        assert experiment.augmentation is None or experiment.augmentation.settings.model_dump()["dropout"] == 0.875
        if experiment.partition.name == "pooled":
            assert published(experiment, 200), cell
            continue
        training = experiment.training
        assert (experiment.clients, experiment.rounds, training.epochs, training.batch) == (5, 20, 5, 24), cell
        assert (training.rate, training.weight_decay, training.schedule) == (1e-3, 1e-4, "constant")
        sgd = {"scaffold": 0.0, "fednova": 0.9, "fedavg-sgd": 0.9}
        assert training.optimiser == ("sgd" if cell.labels["method"] in sgd else "adam")
        assert training.momentum == sgd.get(cell.labels["method"], training.momentum)
    assert {cell.experiment.model for cell in study.teachers} == {"pointnet2"}
    assert {cell.experiment.model for cell in study.students} <= {"small-pointnet2", "dgcnn"}
    assert {cell.experiment.seed for cell in study.teachers} == ({7} if name == "focused" else {7, 42, 123})


@pytest.mark.parametrize("name", [name for name in TABLES if "method" in content_of(name)["grid"]])
def test_the_variants_differ_in_what_they_say(name: str) -> None:
    """As published: statistics through the server's rule, moments kept, its optimisers. The others: none of it."""
    for variant, buffers in (
        ("as-published", "as-parameters"),
        ("corrected", "average"),
        ("recalibrated", "recalibrate"),
    ):
        for cell in shipped(name, variant=variant).teachers:
            if cell.labels["method"] == "centralised":
                continue
            settings = cell.experiment.method.settings.model_dump()
            assert settings.get("buffers", buffers) == buffers
            assert ("buffers" in settings) == (cell.labels["method"] != "fedbn")
            assert settings.get("preset") in (None, "seed" if variant == "as-published" else "original")
            kept = variant == "as-published" and cell.labels["method"] not in ("fednova", "fedavg-sgd")
            assert cell.experiment.training.keep_optimiser == kept


def test_sweeps() -> None:
    partitions = [cell.experiment.partition for cell in shipped("heterogeneity").teachers]
    alphas = {part.settings.model_dump()["alpha"] for part in partitions if part.name == "dirichlet"}
    assert alphas == {0.1, 0.3, 1, 10}
    assert {part.name for part in partitions} == {"dirichlet", "iid", "label-skew"}
    objectives = [cell.experiment.objective for cell in shipped("temperature").students]
    assert {one.settings.model_dump()["temperature"] for one in objectives if one} == {1, 2, 4, 8}
    columns = shipped("dgcnn-student")
    assert columns.recipe.students is not None
    assert columns.recipe.students.columns == "model"
    assert Counter(cell.experiment.model for cell in columns.students)["dgcnn"] == len(columns.students) / 2


@pytest.mark.parametrize(
    ("name", "variant", "teachers", "students"),
    [
        ("benchmark", "seed", 3, 9),  # three teachers, three objectives
        ("beta-weights", "sound", 1, 8),  # four objectives, two weights
        ("dgcnn-student", "sound", 1, 2 * 5),  # two students, two objectives in two modes and one in one
    ],
)
def test_a_recipe_in_two_stages_runs(name: str, variant: str, teachers: int, students: int, tmp_path: Path) -> None:
    few = {"data": [FEW] if "data" in content_of(name)["grid"] else FEW}
    results = Study(name, few, preset="tiny", variant=variant).run(tmp_path)
    assert results.students is not None
    assert (results.failures, results.students.failures, results.students.refused) == ({}, {}, {})
    assert (len(results.runs), len(results.students.runs)) == (teachers, students)
    taught = "best" if variant == "as-published" else "accuracy"
    axes = list(results.students.axes)
    for cell, row in results.students.runs.items():
        if "labels-only" not in cell:
            assert row.figures["teacher.0"] == results.runs[cell[: len(results.axes)]].figures[taught]
            assert axes[: len(results.axes)] == list(results.axes)
