"""The shortest command that runs an experiment again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstill.core.numbers import listed
from fedstill.core.passed_objects import is_passed
from fedstill.core.sections import sections
from fedstill.data.bundle import datasets
from fedstill.data.data_kinds import data_kinds
from fedstill.data.data_settings import split_name
from fedstill.data.lookup import is_object_name
from fedstill.methods import methods
from fedstill.models import models
from fedstill.models.own_models import own_models
from fedstill.report.descriptions import changed_settings
from fedstill.runtime.assemble import make_experiment, parse_value, with_defaults
from fedstill.runtime.defaults import decided_by
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.result import Run
from fedstill.tasks.task_choice import task_name

_FLAGS = ("data", "model", "clients", "rounds", "seed")
_FIXED_BY_SITES = ("data", "clients", "evaluation", "partition")  # by a deployment, which takes no options for them
SERVER = "SERVER"  # stands for the folder of a deployment's server
_PARTS = ("partition", "participation")


def command(experiment: Experiment) -> str:
    """`fedstill run METHOD`, with options for what differs from that method's defaults and nothing else.

    Settings are written with their section, although a bare name would do: it stays right when another part gets a
    setting of the same name.

    Data and models that were passed as objects have to be passed again, in Python.

    >>> command(make_experiment({"method": "fedavg", "partition": {"name": "dirichlet", "alpha": 0.1}, "seed": 7}))
    'fedstill run fedavg --partition dirichlet:alpha=0.1 --seed 7'
    >>> command(make_experiment({"method": "fedavg", "data": "arrays-6550f614"}))
    'fedstill.run({...}, data=...)  # Python: the configuration below, and your own data'

    A deployment is repeated at its server, whose folder is not known here and takes the place of `SERVER`.

    >>> at_sites = {"data": "clinics", "clients": 2, "evaluation": "on-site", "partition": "sites"}
    >>> command(make_experiment({"method": "fedavg", "rounds": 5, **at_sites}))
    'fedstill deploy server SERVER fedavg --rounds 5'
    """
    if is_deployed(experiment):
        usual = make_experiment({"method": experiment.method.name})
        undone = {name: getattr(usual, name) for name in _FIXED_BY_SITES}
        return command(experiment.model_copy(update=undone)).replace("run", f"deploy server {SERVER}", 1)
    if objects := _objects(experiment):
        again = "".join(f", {name}=..." for name in objects)
        return f"fedstill.run({{...}}{again})  # Python: the configuration below, and your own {listed(objects)}"
    wanted = experiment.model_dump(mode="json")
    given: dict[str, Any] = {"method": {"name": experiment.method.name, **changed_settings(experiment.method)}}
    words = ["fedstill", "run", experiment.method.name]
    settings = [f"method.{name}={_value(value)}" for name, value in changed_settings(experiment.method).items()]
    base = make_experiment(given).model_dump(mode="json")
    for section in _PARTS:
        if wanted[section]["name"] != base[section]["name"]:
            changed = changed_settings(getattr(experiment, section))
            given[section] = {"name": wanted[section]["name"], **changed}
            words += [f"--{section}", _part(wanted[section]["name"], changed)]
            settings += [f"{section}.{name}={_value(value)}" for name, value in changed.items() if not _plain(value)]
    # What method, data and model make of all that decides what is left to say.
    base = _without_saying(experiment, make_experiment(given)).model_dump(mode="json")
    for name, added in experiment.sections().items():
        options, further = added.written(name)
        words += options
        settings += further
    absent = dict.fromkeys(sections)
    for path, value in _differences(base, {**wanted, **absent}):
        if path in _FLAGS and value is not None:
            words += [f"--{path}", str(value)]
        else:
            settings.append(f"{path}={_value(value)}")
    return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])


def reference_sentence(run: Run) -> str | None:
    """The figure that a run is to be held against or, where that is not here, the command that makes it."""
    reference = run.reference
    if reference is None:
        return None
    if reference.accuracy is not None:
        return reference.sentence(run.result.accuracy.get("last"))
    missing = missing_reference(run)
    return f"{reference.missing()}; to find out: {missing}" if missing else reference.missing()


def missing_reference(run: Run) -> str | None:
    """The command that makes the run which this one is to be held against; None where it is here, or none applies.

    None after a deployment too: the data is at its sites, where no command of this machine finds it.
    """
    reference = run.reference
    if reference is None or reference.accuracy is not None or is_deployed(reference.experiment):
        return None
    return beside(run, command(reference.experiment))


def beside(run: Run, again: str) -> str:
    """A command whose run lies beside another one."""
    folder = run.path.parent
    usual = folder == Path("runs") or not again.startswith("fedstill run")
    return again if usual else f"{again} --out {shlex.quote(str(folder))}"


def is_deployed(experiment: Experiment) -> bool:
    """Whether its data is that of a deployment's sites, which goes by the deployment's name."""
    plain, _ = split_name(experiment.data)
    on_site = experiment.evaluation == "on-site" and experiment.partition.name == "sites"
    return on_site and plain not in datasets and ":" not in plain and not is_object_name(plain)


def _objects(experiment: Experiment) -> list[str]:
    """Which of data and model this experiment was given as objects."""
    names = experiment.architectures
    model = any(map(is_passed, names)) or bool(own_models(names))
    return [*(["data"] if is_object_name(experiment.data) else []), *(["model"] if model else [])]


def _without_saying(experiment: Experiment, base: Experiment) -> Experiment:
    """What the data's kind and the model would fill in by themselves, as they did in an experiment that was run."""
    if experiment.augmentation is None or str(experiment.model) not in models:
        return base
    kind = "image" if experiment.points is None else _kind_of_points(str(experiment.model))
    decided = decided_by(kind, experiment.model, methods[experiment.method.name])
    return with_defaults(base, {**decided, "model": data_kinds[kind].model})


def _kind_of_points(model: str) -> str:
    """The kind of data that a model on points is for: the one whose task it answers, else clouds."""
    posed = {data_kinds[kind].task: kind for kind in reversed(data_kinds.names()) if data_kinds[kind].points}
    return posed.get(task_name(model), "cloud")


def _differences(base: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings, by dotted path, in which the wanted configuration is not the base."""
    for key, value in wanted.items():
        before = base.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            yield from _differences(before, value, f"{prefix}{key}.")
        elif value != before:
            yield f"{prefix}{key}", value


def _part(name: str, settings: Mapping[str, Any]) -> str:
    plain = [f"{key}={_value(value)}" for key, value in settings.items() if _plain(value)]
    return f"{name}:{','.join(plain)}" if plain else name


def _plain(value: Any) -> bool:
    """Whether a value can stand in `name:key=value,key=value`."""
    return "," not in _value(value)


def _value(value: Any) -> str:
    """As `--set` reads it back: text that would be read as something else is quoted."""
    if isinstance(value, str) and parse_value(value) == value and value == value.strip():
        return value
    return json.dumps(value)
