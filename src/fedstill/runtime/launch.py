"""Start a run from names and settings: what the command line and `fedstill.run` both do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder
from fedstill.core.own_parts import check_sendable, fresh_token
from fedstill.core.own_training import with_names
from fedstill.core.passed_objects import forget_older
from fedstill.core.plugins import use_plugins
from fedstill.core.protocols import Engine
from fedstill.data.bundle import Bundle
from fedstill.data.joined_data import lazily_read
from fedstill.engines import WITH_WORKERS, Processes, make_engine
from fedstill.models.own_models import Model, ModelInput, OwnModel, check_same, named_model, own_models
from fedstill.runtime.assemble import make_experiment, overlay, override_value
from fedstill.runtime.callbacks import CallbackInput
from fedstill.runtime.egress_manifest import egress_manifest
from fedstill.runtime.experiment import Experiment, experiment_class
from fedstill.runtime.given_objects import MODEL_NOTES, named_objects
from fedstill.runtime.identity import Known, check_parts_sendable
from fedstill.runtime.observers import Observer
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.recipes import given_by
from fedstill.runtime.result import Run
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder
from fedstill.runtime.run_progress import watched
from fedstill.runtime.tracked import TrackInput, check_track, tracking_of


def run(
    experiment: str | Path | Mapping[str, Any] = "fedavg",
    *,
    out: str | Path = "runs",
    engine: str | Engine = "in-process",
    workers: int = 2,
    data_root: str | Path | None = None,
    device: str = "cpu",
    plugins: Sequence[str | Path] = (),
    preset: str | None = None,
    variant: str | None = None,
    callbacks: CallbackInput = (),
    progress: bool | None = None,
    track: TrackInput = None,
    observers: Sequence[Observer] | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment, resume it, or return its stored result; the same experiment is never run twice.

    `experiment` is a method, a recipe, a recipe file, or a mapping; `settings` are laid over it, by section
    (`training={"rate": 0.01}`) or by name where it is unique (`rate=0.01`). `data` may be an object (see `dataset`) and
    so may `model` (see `Model`); `features` and `head` are then names of its layers, `outputs` is what it returns.

    `callbacks` are objects with some of the methods of `fedstill.Callback`, or functions that are called with the
    record of each round; one may be given without a list. `progress` shows a progress bar: unless set, in notebooks
    only. `track` is tensorboard, mlflow, wandb or an object like `fedstill.Tracker`, or a list of these. `observers` is
    deprecated.

    >>> import fedstill
    >>> made = fedstill.run("fedprox", data="digits", clients=2, rounds=1, mu=0.1, out=getfixture("tmp_path"))
    >>> made.experiment.method.settings.mu, 0 < made.accuracy <= 1
    (0.1, True)
    """
    use_plugins(plugins)
    experiment, settings, bundle = _without_objects(experiment, settings)
    made = watched(
        lambda watchers: launch(
            assembled(experiment, preset, variant, settings),
            bundle=bundle,
            out=Path(out),
            engine=engine,
            workers=workers,
            data_root=None if data_root is None else Path(data_root),
            device=device,
            observers=watchers,
            track=track,
        ),
        callbacks,
        progress,
        observers,
    )
    forget_older()
    fresh_token.renew()
    return made


def egress(
    experiment: str | Mapping[str, Any] = "fedavg",
    *,
    data_root: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    preset: str | None = None,
    variant: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """What leaves a client in an experiment, line by line with measured sizes and the rounds; nothing is run.

    >>> import fedstill
    >>> sorted({line["kind"] for line in fedstill.egress("fedavg", model="cnn-bn")["leaves"]})
    ['metrics', 'parameters', 'statistics']
    """
    use_plugins(plugins)
    root = None if data_root is None else Path(data_root)
    experiment, settings, bundle = _without_objects(experiment, settings)
    return egress_manifest(make_plan(assembled(experiment, preset, variant, settings), root, bundle=bundle))


def _without_objects(
    experiment: str | Path | Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[str | Mapping[str, Any], dict[str, Any], Bundle | None]:
    """Experiment and settings with names in place of objects; and the data, where it is an object."""
    named, bundle = named_objects(settings)
    if isinstance(experiment, str | Path):
        return str(experiment), named, bundle
    below, data = named_objects(experiment)
    return below, named, data if "data" not in named else bundle


def assembled(
    experiment: str | Mapping[str, Any], preset: str | None, variant: str | None, settings: Mapping[str, Any]
) -> Experiment:
    """The experiment of that name, with settings as keyword arguments have them laid over it."""
    if not isinstance(experiment, str) and (preset or variant):
        raise InputError(
            "an experiment given as a mapping has no presets and variants, as recipes have: leave them out"
        )
    given = given_by(experiment, preset, variant) if isinstance(experiment, str) else with_names(experiment)
    for key, value in with_names(settings).items():
        given = (
            overlay(given, {key: value})
            if key in experiment_class().model_fields
            else override_value(given, key, value)
        )
    return make_experiment(given)


TeacherInput = str | Path | Run | Mapping[str, Any] | nn.Module | Callable[..., nn.Module] | Model


def distill(
    teacher: TeacherInput | Sequence[TeacherInput],
    student: ModelInput,
    objective: str | Mapping[str, Any] = "vanilla",
    *,
    labels: str = "use",
    which: str = "last",
    **settings: Any,
) -> Run:
    """Distil one teacher, or several, into a student; `settings` are those of `run`.

    A teacher is a run or its folder; a torch module, a function that makes one, or a `Model`; or a mapping:
    `{"run": FOLDER, "model": "cnn"}` for one of a run's several models, `{"file": "w.safetensors", "model": "cnn"}`, or
    `{"call": "my_module:make_teacher"}`, with `file` where the function does not load its weights itself. `which` is
    the model that is taken of a folder: last, best or selected. Data, unless given, is that of the first teacher's run.
    The student is a name, a module, a class, a function or a `Model`; `features` is a layer of the student.

    >>> import fedstill
    >>> folder = getfixture("tmp_path")
    >>> teacher = fedstill.run("centralised", data="digits", model="cnn", rounds=1, out=folder)
    >>> student = fedstill.distill(teacher, "mlp", "dkd", rounds=1, out=folder)
    >>> student.result.teachers[0].model, student.result.model
    ('cnn', 'mlp')
    """
    name = named_model(student, **{key: settings.pop(key) for key in MODEL_NOTES if key in settings})
    held = own_models([name])
    given = distillation(teacher, name, objective, labels, which)
    check_same(held)
    return run(given, **settings)


def distillation(
    teacher: TeacherInput | Sequence[TeacherInput],
    student: str,
    objective: str | Mapping[str, Any] = "vanilla",
    labels: str = "use",
    which: str = "last",
) -> dict[str, Any]:
    """The experiment that distils these teachers, as a mapping."""
    several = list(teacher) if isinstance(teacher, list | tuple) else [teacher]
    sources, held = [], dict[str, OwnModel]()
    for one in several:
        sources.append(_teacher_source(one, which))
        check_same(held)
        held |= own_models([sources[-1].get("model") or ""])
    runs = [source["run"] for source in sources if source.get("run")]
    data = {"data": Run(runs[0]).experiment.data} if runs else {}
    return {
        "method": {"name": "distill", "labels": labels},
        "model": student,
        "objective": objective,
        "teachers": sources,
        **data,
    }


def _teacher_source(teacher: Any, which: str) -> dict[str, Any]:
    """A teacher as a configuration has it."""
    if isinstance(teacher, Mapping):
        return dict(teacher)
    if isinstance(teacher, Run):
        teacher.remember_models()
    if isinstance(teacher, str | Path | Run):
        return {"run": str(teacher.path if isinstance(teacher, Run) else teacher), "which": which}
    return {"model": named_model(teacher)}


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
    known: Known | None = None,
    track: TrackInput = None,
    tell: Callable[[str], None] | None = None,
    measure: bool = False,
) -> Run:
    """Run an experiment; an engine that is handed over stays open for the next one, data need not be loaded again.

    Observers are told the estimated cost if a step was measured on this machine before, or may be now (`measure`).
    """
    check_track(track)
    made = make_engine(engine, workers, device) if isinstance(engine, str) else nullcontext(engine)
    plan = make_plan(experiment, data_root, device, bundle=bundle, known=known)
    if engine in WITH_WORKERS or isinstance(engine, Processes):
        check_parts_sendable(plan.experiment)
        for items in lazily_read(plan.bundle.splits().values()):
            check_sendable(items, f"the data set {items.name}")
    tracked = tracking_of(track, out, tell)
    with made as ready:
        _tell_estimate(plan, out, observers, measure)
        folder = execute(plan, ready, out, observers, tracking=tracked)
        return Run(folder.path, reused=folder.reused, own=own_models(plan.task.architectures))


def _tell_estimate(plan: Simulation, out: Path, observers: Sequence[Observer], measure: bool) -> None:
    """Of a run that is not finished."""
    if not observers:
        return
    folder = RunFolder(writable_folder(out) / plan.folder_name)
    if folder.result() is not None:
        return
    from fedstill.runtime.estimates import estimate_text

    text = estimate_text(plan, len(folder.journal()), measure)
    for observer in observers if text is not None else ():
        observer.note(str(text))
