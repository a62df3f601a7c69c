"""A finished (or unfinished) run, as an object to read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from torch import nn

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.metric_records import ModelMetrics
from fedstill.core.records import MadeWith, PrintedRun, RoundRecord, RunChecks, RunResult, printed_run_class
from fedstill.core.task import Tensors
from fedstill.core.views import view
from fedstill.data.feature_preparation import Preparation
from fedstill.methods import methods
from fedstill.models import models
from fedstill.models.own_models import OwnModel, fill, plain, remember
from fedstill.runtime.cautions import EndedRun, cautions
from fedstill.runtime.checkpoint import candidates
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.experiment import Experiment, experiment_class, sentence
from fedstill.runtime.history import History
from fedstill.runtime.identity import parts_of_names, recorded_parts, stale_parts
from fedstill.runtime.reference_runs import Reference, reference_of
from fedstill.runtime.run_folder import MODELS, RunFolder, folder_of
from fedstill.runtime.run_panel import run_panel
from fedstill.tasks.classification import Classification
from fedstill.tasks.task_choice import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Config(dict[str, Any]):
    """What a run's folder says of it, in which whatever is missing is somebody else's idea of a run."""

    def __init__(self, said: Mapping[str, Any], path: Path) -> None:
        super().__init__(said)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise _of_another_version(self.path, f"its config.json has no {key!r}")


def _of_another_version(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} was written by another version of fedstill, or with another --plugin ({why}): run the experiment again"
    )


class Run:
    """What a run directory holds: `Run("runs/fedavg-digits-…").accuracy`."""

    def __init__(self, path: str | Path, reused: bool = False, own: Mapping[str, OwnModel] | None = None) -> None:
        self.path = Path(path)
        self._own = dict(own or {})  # its models that were passed as objects
        self.reused = reused  # whether it was found finished when it was asked for
        self._folder = RunFolder(self.path)
        self.config = _Config(self._folder.config(), self.path)

    @classmethod
    def of(cls, run: str | Path | Run) -> Run:
        """A run by its folder, or as it is."""
        return run if isinstance(run, Run) else cls(run)

    def __repr__(self) -> str:
        state = f"accuracy {self.accuracy:.4f}" if self.finished else f"{len(self.journal)} rounds so far"
        return f"Run({str(self.path)!r}, {state})"

    def _repr_html_(self) -> str:
        return run_panel(self)

    def remember_models(self) -> None:
        """Let its models that were passed as objects be known by name again, where others took their places."""
        remember({name: model for name, model in self._own.items() if name not in models})

    @property
    def experiment(self) -> Experiment:
        self.remember_models()
        return self._experiment

    @cached_property
    def _experiment(self) -> Experiment:
        said = self.config["experiment"]
        try:
            return experiment_class().model_validate(said)
        except ValidationError as error:
            raise _of_another_version(self.path, sentence(error, experiment_class().model_fields)) from None
        except InputError as error:  # settings of a part, or a part that nobody here knows
            raise _of_another_version(self.path, str(error)) from None

    @property
    def made(self) -> MadeWith:
        """What may change its numbers beside settings and data."""
        torch, cpu = str(self.config.get("torch", "")), str(self.config.get("cpu", ""))
        return MadeWith(parts=dict(recorded_parts(self.config)), torch=torch, cpu=cpu)

    @property
    def stale(self) -> tuple[str, ...]:
        """Which of its parts have another behaviour today, and so would give other numbers."""
        return stale_parts(self.config)

    @property
    def finished(self) -> bool:
        return self._folder.result() is not None

    @property
    def result(self) -> RunResult:
        """The figures that are reported of a finished run."""
        result = self._folder.result()
        if result is None:
            raise InputError(f"the run {self.path} is not finished: run the same command again to go on")
        return result

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last round (of personal models, their mean); nan where nothing was measured."""
        return self._accuracy("last")

    @property
    def best_accuracy(self) -> float:
        """Test accuracy of the best round: optimistic, since the test set chose it; nan where there is none."""
        return self._accuracy("best")

    def predictions(self, which: str = "last") -> list[int] | None:
        """The class that a model said of every test sample (-1: nothing finite), where the run kept it."""
        return self._folder.predictions().get(which)

    @property
    def test_labels(self) -> list[int] | None:
        """The truth beside `predictions`."""
        return self._folder.predictions().get("labels")

    def detections(self, which: str = "last") -> list[dict[str, Any]]:
        """The boxes, scores and classes that a detector found in every test scene; empty where none was to be found."""
        found: list[dict[str, Any]] = self._folder.artefact("detections").get(which, [])
        return found

    @property
    def test_scenes(self) -> list[dict[str, Any]]:
        """The truth beside `detections`; the points of the first few scenes are with it."""
        scenes: list[dict[str, Any]] = self._folder.artefact("detections").get("scenes", [])
        return scenes

    @property
    def joint_error(self) -> str | None:
        """Why this student was trained separately although others were to be trained with it; None: it was not."""
        return self._folder.artefact("joint-error").get("error")

    @property
    def sha256(self) -> str:
        return self.result.sha256

    @property
    def seconds(self) -> float:
        return float(sum(self._folder.timing()["rounds"]) + sum(self._folder.timing()["checkpoints"]))

    @property
    def fleet(self) -> Tensors:
        """What participation remembers after the last round: batteries, tiers, clusters; empty where nothing is."""
        found, _ = candidates(self.path)
        return found[0].fleet if found else {}

    @property
    def journal(self) -> list[RoundRecord]:
        """One record per round."""
        return self._folder.journal()

    @property
    def history(self) -> History:
        """The rounds so far as a table: `run.history["accuracy"]` is a list, `run.history[-1]` a mapping."""
        return History.of(self.journal, self._folder.timing()["rounds"])

    def plot(self) -> Figure:
        """A matplotlib figure of test accuracy and training loss over the rounds; notebooks show it.

        >>> import fedstill
        >>> run = fedstill.run("fedavg", clients=2, rounds=2, out=getfixture("tmp_path"))
        >>> run.plot().savefig(run.path / "rounds.png")
        """
        made: Figure = view("figure of runs")({self.experiment.method.name: self})
        return made

    def printed(self, **sections: Any) -> PrintedRun:
        """What `--json` prints, with the sections that slices add."""
        kind = printed_run_class()
        figures = {name: value for name, value in self.result if name in kind.model_fields}
        figures |= {"cautions": self.cautions, "checks": self._folder.checks(), "metrics": self.metrics}
        if (reference := self.reference) is not None:
            figures["reference"] = reference.record()
        return kind(run=str(self.path), **figures, seconds=round(self.seconds, 3), **sections)

    @property
    def cautions(self) -> list[str]:
        """What the run's own checks warn of; mostly nothing."""
        return cautions(EndedRun.of(self.experiment, self.task, self._folder, self.result, self.journal))

    @property
    def reference(self) -> Reference | None:
        """What it is to be held against: each client alone or, of a student, no teacher; None where none applies."""
        return reference_of(self.experiment, self.config, self.task, self.path)

    @property
    def checks(self) -> RunChecks | None:
        """What was checked of the run's data; None where the data was elsewhere."""
        return self._folder.checks()

    @property
    def preparation(self) -> Preparation | None:
        """How cells of a table became the features that its models read; None for other data."""
        return self._folder.preparation()

    @property
    def metrics(self) -> dict[str, ModelMetrics]:
        """By model (last, best, selected): AUC, F1 and others, with intervals and of each class; may be empty."""
        return {which: ModelMetrics.model_validate(one) for which, one in self._folder.artefact("metrics").items()}

    def to_dict(self) -> dict[str, Any]:
        """The same as a mapping."""
        return self.printed().to_dict()

    @property
    def task(self) -> Classification:
        names = tuple(dict.fromkeys(self.experiment.architectures))
        classes, shape = tuple(self.config["classes"]), tuple(self.config["shape"])
        task = task_of(names[0])(classes, shape, names, precision=self.experiment.training.precision)
        return task.configured(self.experiment)

    def model(
        self,
        which: str = "last",
        client: int | None = None,
        architecture: str | None = None,
        into: nn.Module | None = None,
    ) -> nn.Module:
        """A trained model: `last`, `best` or `selected`; or a client's own, where the method has such.

        Where clients have different architectures there is one of each, and the first unless one is named. `into` is a
        module that gets the weights: for a model of your own that this process does not have.
        """
        if into is not None:
            return self._filled(into, which, architecture)
        return plain(self.built(which, client, architecture))

    def built(self, which: str = "last", client: int | None = None, architecture: str | None = None) -> nn.Module:
        """The same as methods use it: a model of the user's own may be split into extractor and head."""
        architecture = self.architecture(architecture, client)
        if client is not None and which != "last":
            raise InputError(f"a client's own model is kept of the last round only: leave --which {which} out")
        if client is not None:
            return self._personal(client, architecture)
        if which not in MODELS:
            raise InputError(f"unknown model {which!r}: {did_you_mean(which, MODELS)}")
        if not self._folder.model_path(which).is_file():
            raise InputError(f"the run {self.path} has no {which} model: {self._why_not(which)}")
        self._check_unedited(architecture)
        try:
            return self.task.build(architecture, self._folder.load_models(which)[architecture])
        except RuntimeError:
            raise InputError(f"{self.path} was made with another version of {architecture}: run it again") from None

    def _filled(self, module: nn.Module, which: str, architecture: str | None) -> nn.Module:
        """A module with the weights of the shared model."""
        held = self._folder.load_models(which) if self._folder.model_path(which).is_file() else {}
        name = architecture or next(iter(held), "")
        if name not in held:
            raise InputError(f"the run {self.path} has no {which} model {architecture or ''}: {self._why_not(which)}")
        try:
            fill(module, held[name])
        except RuntimeError as error:
            why = " ".join(str(error).split())[:200]
            raise InputError(f"the weights of {self.path} do not fit this module: {why}") from None
        return module

    def architecture(self, name: str | None = None, client: int | None = None) -> str:
        """Which of the run's architectures is meant: a client's own, or the one named, or the first."""
        each, known = self.experiment.architectures, self.task.architectures
        if name is not None and name not in known:
            raise InputError(f"the run {self.path} has no {name}: {did_you_mean(name, known)}")
        if client is None:
            return name or known[0]
        if not 0 <= client < len(each):
            raise InputError(f"there is no client {client}: clients are 0 to {len(each) - 1}")
        if name not in (None, each[client]):
            raise InputError(f"client {client} of the run {self.path} has a {each[client]}, and no {name}")
        return each[client]

    def answers(self) -> dict[str, dict[str, Any]]:
        """What became of clients' queries, by client: class counts, classes asked for, recalls; empty without any."""
        return self._folder.artefact("answers")

    def _check_unedited(self, architecture: str) -> None:
        """Refuse weights of a model of the user's own that is no longer what it was: they would mean something else."""
        made_with = self.made.parts.get(f"model {architecture}")
        if isinstance(made_with, str):
            now, _ = parts_of_names([("model", architecture)])
            if now[f"model {architecture}"] != made_with:
                raise InputError(f"the model {architecture} was edited since {self.path} was made: run it again")

    def _accuracy(self, which: str) -> float:
        value = self.result.accuracy.get(which)
        return math.nan if value is None else float(value)

    def _personal(self, client: int, architecture: str) -> nn.Module:
        kind = methods[self.experiment.method.name]
        method = kind(self.experiment.method.settings, self.task, self.experiment.training)
        state = None
        if method.personal:
            store = ClientStore.of(self.path, self.experiment.clients)
            found, _ = candidates(self.path)
            state = method.personalise(found[0].server if found else {}, store.load(client))
        if state is None:
            raise InputError(f"client {client} has no model of its own in {self.path}")
        return method.assemble(architecture, state)

    def _why_not(self, which: str) -> str:
        if not self.finished:
            return "it is not finished"
        if self.result.personal is not None and not self.result.model_last:
            return "its clients have models of their own: name one with --client"
        return "no validation share was set" if which == "selected" else "no round's model was finite"


def load_run(path: str | Path) -> Run:
    """A run by its folder: what `fedstill.run` returned, in another process or on another day."""
    return Run(path)


def run_called(identity: str, folder: Path) -> Run | None:
    """The run of that identity in a folder of runs."""
    found = folder_of(identity, folder)
    return None if found is None else Run(found)
