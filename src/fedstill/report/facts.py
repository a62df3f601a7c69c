"""A run as the report sees it: read from disk once, with the numbers that words, table and figures share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from fedstill.core.records import RoundRecord, RunResult
from fedstill.methods import methods
from fedstill.report.command import reference_sentence
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.reference_runs import Reference
from fedstill.runtime.result import Run
from fedstill.runtime.round_ranking import TITLES
from fedstill.runtime.run_checks import skipped_files
from fedstill.tasks.task_choice import ACCURACY, detects, measure_of


@dataclass(frozen=True)
class RunCourse:
    """The rounds of a run, which need not be finished, under the title it has in figures."""

    title: str
    experiment: Experiment
    journal: tuple[RoundRecord, ...]
    shown: str = field(default=ACCURACY, kw_only=True)  # the metric that curves and tables show

    @property
    def quoted(self) -> str:
        return f"“{self.title}”"

    @property
    def pooled(self) -> bool:
        """All data in one place: its messages never leave the machine, so they are not traffic."""
        return methods[self.experiment.method.name].pooled

    @property
    def detects(self) -> bool:
        """Whether boxes were to be found."""
        return detects(self.experiment.architectures[0])

    @property
    def measure(self) -> str:
        """What the metric that is shown is called."""
        return measure_of(self.experiment.architectures[0]) if self.shown == ACCURACY else TITLES[self.shown]

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Test accuracy by round, where it was measured."""
        return [(record.round, accuracy) for record, accuracy in self._evaluated()]

    @property
    def traffic_curve(self) -> list[tuple[int, float]]:
        """Test accuracy by all the bytes that had crossed by then, both ways."""
        total, crossed = 0, {}
        for record in self.journal:
            total += record.bytes.up + record.bytes.down
            crossed[record.round] = total
        return [(crossed[record.round], accuracy) for record, accuracy in self._evaluated()]

    @property
    def broken(self) -> list[int]:
        """The rounds after which the model was not finite."""
        return [
            record.round for record in self.journal if record.evaluation is not None and not record.evaluation.finite
        ]

    def _evaluated(self) -> Iterator[tuple[RoundRecord, float]]:
        for record in self.journal:
            accuracy = number(record.metrics.get(self.shown))
            if accuracy is not None:
                yield record, accuracy


@dataclass(frozen=True)
class Facts(RunCourse):
    """One finished run under the title it has in the report."""

    config: Mapping[str, Any]
    result: RunResult
    seconds: float
    cautions: tuple[str, ...] = ()  # what the run warned of at its end
    reference: Reference | None = None  # what it is to be held against
    missing: str | None = None  # where that is not here: what is not known, and the command for it
    skipped: tuple[str, ...] = ()  # files that could not be read

    @classmethod
    def of(cls, title: str, run: Run) -> Facts:
        reference = run.reference
        missing = None if reference is None or reference.accuracy is not None else reference_sentence(run)
        journal, warned = tuple(run.journal), tuple(run.cautions)
        skipped = tuple(skipped_files(run.checks))
        return cls(
            title, run.experiment, journal, run.config, run.result, run.seconds, warned, reference, missing, skipped
        )

    @property
    def alone(self) -> bool:
        """Every client trained without the others."""
        return self.experiment.method.name == "local-only"

    def accuracy(self, which: str = "last") -> float | None:
        """The metric that is shown, of a model."""
        if self.shown != ACCURACY:
            return self.metric(self.shown, which)
        return number(self.result.accuracy.get(which))

    @property
    def class_accuracy(self) -> float | None:
        """Of the last model."""
        return number(self.result.class_accuracy.get("last"))

    def round_of(self, which: str) -> int:
        """The round a model is of."""
        return self.result.round_of[which]

    def metric(self, name: str, which: str = "last") -> float | None:
        """A further figure of a model, from the round it is of."""
        round = self.result.round_of.get(which)
        found = next((record.metrics for record in self.journal if record.round == round), {})
        return number(found.get(name))

    @property
    def work(self) -> float:
        """All training done, in the journal's unit, by all clients."""
        return float(sum(record.work for record in self.journal))

    @property
    def sampled(self) -> int:
        """Number of sampled clients over all rounds, with those that dropped out before the request."""
        return sum(len({*record.sampled, *(one.client for one in record.failures)}) for record in self.journal)

    @property
    def partial(self) -> bool:
        """Whether some client was missing in some round."""
        return any(len(record.accepted) < self.experiment.clients for record in self.journal)


def measured(runs: Sequence[RunCourse]) -> str:
    """What the accuracies of these runs are called, together."""
    return " or ".join(dict.fromkeys(run.measure for run in runs))


def number(value: Any) -> float | None:
    """A number that can be drawn and written; None for one that is missing or not finite."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
