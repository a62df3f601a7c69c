"""Typed records: a round in the journal, a run's result and what `--json` prints of it, a study's results file.

Writer, reader, report, audit and API use these classes. Slices add sections to a round's record and to what `--json`
prints of a run (`RecordSection`). Earlier formats are translated in `core.earlier_records`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, NonNegativeInt, ValidationError, create_model

from fedstill.core.earlier_records import current_result, current_round
from fedstill.core.metric_records import FurtherMetrics, ModelMetrics
from fedstill.core.record_base import Metrics as Metrics
from fedstill.core.record_base import Number as Number
from fedstill.core.record_base import Record as Record
from fedstill.core.record_base import RecordError as RecordError
from fedstill.core.registry import Registry

RUN_FORMAT = 4  # of a run's folder: its journal, checkpoint and result
RESULTS_FORMAT = 3  # of a study's results file

Reason = Literal["dropped", "battery", "refused", "failed", "abstained"]
_Kind = TypeVar("_Kind", bound="Record")


class RecordSection(Record):
    """A part that a slice adds to some records under its registered name."""

    part_of: ClassVar[frozenset[Literal["round", "result", "printed run"]]]


record_sections: Registry[type[RecordSection]] = Registry("section of a record")


class FailureRecord(Record):
    """A client whose reply does not count."""

    client: int = Field(description="client id")
    reason: Reason = Field(
        description="dropout, empty battery, refused reply, error at the client, or no training step"
    )
    detail: str = Field(description="one sentence")


class TrafficRecord(Record):
    """Measured bytes between server and clients."""

    earlier_names: ClassVar[Mapping[str, str]] = {"once": "first_contact"}

    up: int = Field(description="from clients to the server")
    down: int = Field(description="from the server to clients")
    first_contact: int | None = Field(
        None, description="of `down`, what clients are sent at first contact only; absent: nothing"
    )


class SurveyRecord(Record):
    """An exchange before client sampling in which some client failed."""

    earlier_names: ClassVar[Mapping[str, str]] = {"asked": "sampled", "lost": "failures"}

    name: str = Field(description="of the exchange")
    sampled: int = Field(description="number of clients that were sent a request")
    failures: tuple[FailureRecord, ...] = Field(description="clients without an accepted reply")


class SiteEvaluation(Record):
    """The exchange of an evaluation on site."""

    earlier_names: ClassVar[Mapping[str, str]] = {"asked": "sampled", "heard": "accepted", "lost": "failures"}

    sampled: int = Field(description="number of sites that were sent the models")
    accepted: int = Field(description="number of sites whose scores count")
    up: int = Field(description="bytes from the sites")
    down: int = Field(description="bytes to the sites")
    failures: tuple[FailureRecord, ...] | None = Field(None, description="sites without accepted scores")


class PersonalMetrics(Record):
    """Clients' own models: spread over clients of their test metrics."""

    clients: int = Field(description="number of clients with a model of their own")
    mean: float = Field(description="mean test accuracy")
    std: float = Field(description="sample standard deviation of the test accuracy")
    min: float = Field(description="lowest test accuracy")
    max: float = Field(description="highest test accuracy")
    class_mean: float = Field(description="mean class accuracy")
    own_mean: float = Field(description="mean accuracy on each client's own mix of classes")
    own_std: float = Field(description="sample standard deviation of that")
    loss: float = Field(description="mean test loss")
    non_finite: int = Field(description="number of models with outputs that are not finite")


class BatchNormCheck(Record):
    """What re-estimated BatchNorm statistics would gain: whether those of the last model fit its weights."""

    accuracy: Number | None = Field(None, description="test accuracy of the model as it is")
    recalibrated: Number | None = Field(
        None, description="test accuracy of the same weights with statistics re-estimated; absent: not measured"
    )
    samples: int = Field(description="training samples that the statistics were re-estimated on")
    traffic: TrafficRecord | None = Field(None, description="of the exchanges for it, where sites measure")
    not_measured: str | None = Field(None, description="why it was not measured, and how it can be")

    @property
    def gain(self) -> float | None:
        """Accuracy that re-estimation adds, where both are known."""
        known = self.accuracy is not None and self.recalibrated is not None
        return float(self.recalibrated) - float(self.accuracy) if known else None  # type: ignore[arg-type]


class DataCheck(Record):
    """Samples with the same inputs; only exact repetitions are found."""

    train: int = Field(description="number of training samples")
    test: int = Field(description="number of test samples")
    shared: int | None = Field(None, description="test samples that are also training samples")
    train_repeats: int | None = Field(None, description="training samples that repeat an earlier one")
    test_repeats: int | None = Field(None, description="test samples that repeat an earlier one")
    not_checked: str | None = Field(None, description="why this was not checked")


class RunChecks(Record):
    """What a run's own checks need of its data: checks.json in its folder."""

    class_counts: list[int] = Field(description="test samples of each class; empty where samples have several")
    data: DataCheck | None = Field(None, description="repeated samples; absent: the data was not here")
    notes: list[str] | None = Field(None, description="what was changed or left out while the data was read")
    doubts: list[str] | None = Field(None, description="why results on the data may mislead")


class Evaluation(Record):
    """Metrics of the models after a round."""

    earlier_names: ClassVar[Mapping[str, str]] = {"also": "extra_models"}

    finite: bool = Field(description="whether all evaluated weights and outputs are finite")
    test: Metrics = Field(description="of the shared models on test data; of personal models, the mean")
    validation: Metrics = Field(description="the same on the validation share; empty without one")
    personal: PersonalMetrics | None = Field(None, description="of clients' own models, where the method has any")
    extra_models: dict[str, Metrics] = Field(description="test metrics of further models, by name")
    negative_variances: float = Field(description="share of BatchNorm's running variances that are below zero")
    sites: SiteEvaluation | None = Field(None, description="of an evaluation on site")
    by_site: dict[str, Metrics] | None = Field(
        None, description="by name of a site, on its own test samples: of its own model, else of the shared one"
    )
    further: FurtherMetrics | None = Field(None, description="metrics of classifiers beside these")
    batchnorm: BatchNormCheck | None = Field(
        None, description="after the last round, of shared models with BatchNorm: what re-estimated statistics gain"
    )


class RoundRecord(Record):
    """One round: a line of the journal. Nothing in it depends on time, engine or the order of replies.

    Slices add sections, so instances are of the class that `round_record_class` gives.
    """

    earlier_names: ClassVar[Mapping[str, str]] = {
        "asked": "sampled",
        "lost": "failures",
        "facts": "method_metrics",
        "finite": "evaluation.finite",
        "validation": "evaluation.validation",
        "personal": "evaluation.personal",
        "also": "evaluation.extra_models",
        "negative_variances": "evaluation.negative_variances",
        "sites": "evaluation.sites",
    }

    round: int = Field(description="number of the round, from one")
    sampled: tuple[int, ...] = Field(description="ids of the clients that were sent a request")
    accepted: tuple[int, ...] = Field(description="ids of the clients whose replies were aggregated")
    failures: tuple[FailureRecord, ...] = Field(description="clients whose reply does not count")
    skipped: str | None = Field(None, description="why nothing was aggregated; absent: the round counts")
    bytes: TrafficRecord = Field(description="measured traffic of the round")
    work: float = Field(description="client computation in forward-equivalent sample-passes, of failed clients too")
    loss: Metrics = Field(description="mean training loss by term, weighted by samples")
    surveys: tuple[SurveyRecord, ...] | None = Field(None, description="surveys in which a client failed")
    replacements: dict[int, int] | None = Field(
        None, description="replacement client by failed client, where dropout is set to replace"
    )
    method_metrics: Metrics = Field(description="numbers that the method reports, e.g. the privacy spent")
    evaluation: Evaluation | None = Field(None, description="in rounds that are evaluated")

    @property
    def metrics(self) -> Metrics:
        """Test metrics after the round; empty where it was not evaluated."""
        if self.evaluation is None:
            return {}
        further = self.evaluation.further
        return self.evaluation.test if further is None else {**self.evaluation.test, **further.test}

    @property
    def accuracy(self) -> Number | None:
        """Test accuracy after the round, where it was measured."""
        return self.metrics.get("accuracy")

    def section(self, kind: type[_Kind]) -> _Kind | None:
        """The section of that class, where the round has it."""
        found = getattr(self, record_sections.name_of(kind))
        return found if isinstance(found, kind) else None


class TeacherRecord(Record):
    """A teacher as it was examined before distillation."""

    name: str = Field(description="of the teacher")
    model: str = Field(description="its architecture")
    which: str | None = Field(None, description="which model of its run: last, best or selected")
    metrics: Metrics = Field(description="on test data")
    recalibrated: float | None = Field(
        None, description="test accuracy with BatchNorm statistics re-estimated on the proxy data"
    )


class RunFigures(Record):
    """What is reported of a finished run."""

    earlier_names: ClassVar[Mapping[str, str]] = {
        "lost": "failures",
        "also": "extra_models",
        "facts": "method_metrics",
    }

    method: str = Field(description="name of the method")
    data: str = Field(description="name of the data set")
    model: str | None = Field(None, description="architecture, where all clients have the same")
    partition: str = Field(description="name of the partition")
    clients: int = Field(description="number of clients")
    seed: int = Field(description="of the run")
    rounds: int = Field(description="number of rounds")
    accuracy: dict[str, Number | None] = Field(description="test accuracy by model: last, best, selected")
    class_accuracy: dict[str, Number | None] = Field(description="mean recall by model")
    round_of: dict[str, int] = Field(description="the round that each of these models is of")
    shares: str = Field(description="what the method shares, in words")
    extra_models: dict[str, Number] = Field(description="test accuracy of further models, by name")
    personal: PersonalMetrics | None = Field(None, description="of clients' own models after the last round")
    by_site: dict[str, Metrics] | None = Field(
        None, description="test metrics after the last round, by name of a site, on its own test samples"
    )
    method_metrics: Metrics = Field(description="numbers that the method reports, after the last round")
    batchnorm: BatchNormCheck | None = Field(
        None, description="of shared models with BatchNorm: what re-estimated statistics gain"
    )
    teachers: tuple[TeacherRecord, ...] = Field(description="of a distillation")
    ceiling: float | None = Field(None, description="masking ceiling: accuracy that the teachers leave room for")
    bytes: TrafficRecord = Field(description="traffic of all rounds, evaluation on site not included")
    failures: int = Field(description="number of replies that did not count")
    skipped: int = Field(description="number of rounds in which nothing was aggregated")
    finite: bool = Field(description="whether every evaluated model was finite")
    sha256: str = Field(description="digest of the final models and, where clients have own ones, of client state")


class RunResult(RunFigures):
    """A run's result: result.json in its folder.

    Slices add sections, so what is read is of the class that `run_result_class` gives.
    """

    model_last: str = Field(description="SHA-256 of the file model-last.safetensors; empty without one")


class ReferenceRecord(Record):
    """What a run is to be held against: the same experiment without federation, or without a teacher."""

    kind: Literal["local-only", "labels-only"] = Field(description="each client alone, or a student of labels alone")
    run: str | None = Field(None, description="its folder; absent: there is none beside this run")
    accuracy: Number | None = Field(None, description="its test accuracy after the last round")
    command: str | None = Field(None, description="the command that makes it, where it is not here")


class PrintedRun(RunFigures):
    """A finished run as `--json` prints it.

    Slices add sections, so instances are of the class that `printed_run_class` gives.
    """

    run: str = Field(description="the run's folder")
    seconds: float = Field(description="time of its rounds and checkpoints")
    cautions: list[str] = Field(default_factory=list, description="what the run's own checks warn of")
    checks: RunChecks | None = Field(None, description="what was checked of its data; absent: nothing, as on sites")
    reference: ReferenceRecord | None = Field(None, description="what it is to be held against; absent: nothing")
    metrics: dict[str, ModelMetrics] = Field(
        default_factory=dict, description="by model (last, best, selected), metrics with intervals and of each class"
    )
    measure: str | None = Field(None, description="what its accuracy is called")


class MadeWith(Record):
    """What may change the numbers of a run beside its settings and data."""

    parts: dict[str, int | str] = Field(description="by part, its behaviour version or, from outside, its content")
    torch: str = Field("", description="version")
    cpu: str = Field("", description="kind of processor")


class StudyRecord(Record):
    """A study's results file, or the second stage in it. Lines begin with the labels of a cell, one for each axis."""

    format: int = Field(description="of the file")
    study: str = Field(description="name of the recipe")
    about: str = Field(description="what it compares")
    command: str = Field("", description="the command that makes the results")
    source: dict[str, Any] = Field(description="the experiment that was varied, and settings")
    axes: dict[str, dict[str, Any]] = Field(description="by axis and label, what the label stands for")
    columns: str | None = Field(description="the axis across the table")
    rows: tuple[str, ...] = Field(description="the axes down the table")
    test_counts: dict[str, list[NonNegativeInt]] = Field(
        default_factory=dict, description="by data set, test samples of each class"
    )
    made: list[MadeWith] = Field(default_factory=list, description="what runs were made with; lines give its number")
    figures: list[str] = Field(description="what each value in a line of `runs` is")
    runs: tuple[Any, ...] = Field(description="labels, identity and figures of every run")
    failures: tuple[Any, ...] = Field((), description="labels and error of every run that failed")
    refused: tuple[tuple[str, ...], ...] = Field((), description="labels of cells without a result, and why")
    joint_errors: tuple[tuple[str, ...], ...] = Field(
        (), description="labels of students that were trained separately because joint training failed, and its error"
    )
    pupils: tuple[tuple[str | Number | None, ...], ...] = Field(
        (), description="labels of every student, what it was taught, on what data, and its architecture"
    )
    digests: dict[str, str] = Field(default_factory=dict, description="by field, of what stands beside the runs")
    students: Self | None = Field(None, description="the second stage")


@cache
def round_record_class() -> type[RoundRecord]:
    """The class of round records with every section that slices bring."""
    return _with_sections(RoundRecord, "round")


@cache
def run_result_class() -> type[RunResult]:
    """The class of run results with every section that slices bring."""
    return _with_sections(RunResult, "result")


@cache
def printed_run_class() -> type[PrintedRun]:
    """The class of printed runs with every section that slices bring."""
    return _with_sections(PrintedRun, "printed run")


def read_round(content: Mapping[str, Any]) -> RoundRecord:
    """A line of a journal, also of an earlier format."""
    return _read(round_record_class(), current_round, content)


def read_result(content: Mapping[str, Any]) -> RunResult:
    """A run's result, also of an earlier format."""
    return _read(run_result_class(), current_result, content)


def problem(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors()[0]
    where, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"{where}: {what[0].lower()}{what[1:]}" if where else what


def _read(kind: type[_Kind], current: Callable[[Mapping[str, Any]], Mapping[str, Any]], content: Any) -> _Kind:
    try:
        return kind.model_validate(current(content))
    except ValidationError as error:
        raise RecordError(problem(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"it is not a record of an earlier format either ({error})") from None


def _with_sections(base: type[_Kind], part: str) -> type[_Kind]:
    kinds = {name: record_sections[name] for name in record_sections}
    added: dict[str, Any] = {
        name: (kind | None, Field(None, description=str(kind.__doc__).splitlines()[0]))
        for name, kind in kinds.items()
        if part in kind.part_of
    }
    made: type[_Kind] = create_model(base.__name__, __base__=base, __module__=__name__, **added)
    made.__doc__ = base.__doc__
    return made
