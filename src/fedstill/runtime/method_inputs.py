"""Inputs of methods besides settings, task and training: each by name, with its provider.

A method names its inputs in `wants`; the planner calls the provider of each and passes them to the constructor. No code
tests the class of a method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.core.dataset import Dataset
from fedstill.core.errors import InputError
from fedstill.core.protocols import Method
from fedstill.core.registry import Registry
from fedstill.distillation import objectives
from fedstill.distillation.teachers import TeacherModel
from fedstill.methods import methods
from fedstill.runtime.experiment import Experiment
from fedstill.tasks.classification import Classification

if TYPE_CHECKING:
    from fedstill.distillation.distill import Teaching


@dataclass(frozen=True)
class PlanContext:
    """What is known of an experiment when its method is made."""

    experiment: Experiment
    task: Classification
    kind: str  # of the data
    data_root: Path | None = None
    teachers: Sequence[TeacherModel] = ()
    made: dict[str, Any] = field(default_factory=dict)  # inputs that experiments on the same data can share
    validation: Dataset | None = None  # of the server; clients have none of it
    may_read: Callable[[str], None] | None = None  # refuses further data that must not be read here, by name
    own_query: tuple[str, ...] | None = None  # classes that the operators of this site ask for; None: as the experiment

    @property
    def method(self) -> type[Method]:
        return methods[self.experiment.method.name]


method_inputs: Registry[Callable[[PlanContext], Any]] = Registry("input of a method")


def inputs_for(context: PlanContext) -> dict[str, Any]:
    """The inputs that the experiment's method wants."""
    return {name: method_inputs[name](context) for name in sorted(context.method.wants)}


@method_inputs.register("teaching")
def teaching(context: PlanContext) -> Teaching:
    """Whom a student learns from, and how: the input of the method `distill`."""
    from fedstill.distillation.distill import Teaching

    chosen = context.experiment.objective
    assert chosen is not None
    kind = objectives[chosen.name]
    if not context.teachers and kind.least_teachers:
        raise InputError('distillation needs a teacher: use `fedstill distill`, or set teachers=[{"run": "FOLDER"}]')
    return Teaching(kind(chosen.settings), context.teachers)


@method_inputs.register("server validation")
def server_validation(context: PlanContext) -> Dataset | None:
    """Validation data on the server; None without a validation share, and where the server has no data."""
    return context.validation
