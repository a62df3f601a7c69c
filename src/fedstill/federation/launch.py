"""Start a run from names and settings: what the command line and `fedstill.run` both do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedstill.config import Experiment, given_by, make_experiment, overlay, override_value
from fedstill.core.errors import InputError
from fedstill.core.plugins import load_entry_points, load_plugin
from fedstill.core.protocols import Engine
from fedstill.data.bundle import Bundle
from fedstill.engines import make_engine
from fedstill.federation.observers import Observer
from fedstill.federation.plan import make_plan
from fedstill.federation.result import Run
from fedstill.federation.run import execute


def run(
    experiment: str | Mapping[str, Any] = "fedavg",
    *,
    out: str | Path = "runs",
    engine: str | Engine = "in-process",
    workers: int = 2,
    data_root: str | Path | None = None,
    device: str = "cpu",
    plugins: Sequence[str | Path] = (),
    preset: str | None = None,
    variant: str | None = None,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> Run:
    """Run an experiment, or go on with it, or find it finished; the same experiment is never run twice.

    `experiment` is a method, a recipe, a recipe file, or a mapping; `settings` are laid over it, by section
    (`training={"rate": 0.01}`) or by name where it is unique (`rate=0.01`).
    """
    use_plugins(plugins)
    given = given_by(experiment, preset, variant) if isinstance(experiment, str) else dict(experiment)
    for key, value in settings.items():
        given = overlay(given, {key: value}) if key in Experiment.model_fields else override_value(given, key, value)
    return launch(
        make_experiment(given),
        out=Path(out),
        engine=engine,
        workers=workers,
        data_root=None if data_root is None else Path(data_root),
        device=device,
        observers=observers,
    )


def distill(
    teacher: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]],
    student: str,
    objective: str | Mapping[str, Any] = "vanilla",
    *,
    labels: str = "use",
    teacher_checkpoint: str = "last",
    **settings: Any,
) -> Run:
    """Distil one teacher, or several, into a student; `settings` are those of `run`.

    A teacher is the folder of a run, or a mapping: `{"run": FOLDER, "model": "cnn"}` for one of a run's several models,
    `{"file": "w.safetensors", "model": "cnn"}`, or
    `{"call": "my_module:make_teacher"}`, with `file` where the function does not load its weights itself. Data, unless
    given, is that of the first teacher's run.
    """
    return run(distillation(teacher, student, objective, labels, teacher_checkpoint), **settings)


def distillation(
    teacher: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]],
    student: str,
    objective: str | Mapping[str, Any] = "vanilla",
    labels: str = "use",
    teacher_checkpoint: str = "last",
) -> dict[str, Any]:
    """The experiment that distils these teachers, as a mapping."""
    several = [teacher] if isinstance(teacher, str | Path | Mapping) else list(teacher)
    sources = [
        dict(one) if isinstance(one, Mapping) else {"run": str(one), "which": teacher_checkpoint} for one in several
    ]
    runs = [source["run"] for source in sources if source.get("run")]
    data = {"data": Run(runs[0]).experiment.data} if runs else {}
    return {
        "method": {"name": "distill", "labels": labels},
        "model": student,
        "objective": objective,
        "teachers": sources,
        **data,
    }


def launch(
    experiment: Experiment,
    *,
    out: Path,
    engine: str | Engine = "in-process",
    workers: int = 2,
    data_root: Path | None = None,
    device: str = "cpu",
    observers: Sequence[Observer] = (),
    bundle: Bundle | None = None,
) -> Run:
    """Run an experiment; an engine that is handed over stays open for the next one, data need not be loaded again."""
    if device != "cpu" and engine in ("processes", "flower-ray"):
        raise InputError(f"the {engine} engine runs on the cpu: use --engine in-process with another device")
    made = make_engine(engine, workers) if isinstance(engine, str) else nullcontext(engine)
    plan = make_plan(experiment, data_root, device, bundle=bundle)
    with made as ready:
        return Run(execute(plan, ready, out, observers).path)


def use_plugins(files: Sequence[str | Path]) -> None:
    """Load installed plugins and the files named."""
    load_entry_points()
    for file in files:
        load_plugin(file)
