"""Inputs of methods besides settings, task and training: each by name, with its provider.

A method names its inputs in `wants`; the planner calls the provider of each and passes them to the constructor. No code
tests the class of a method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstill.core.protocols import Method
from fedstill.core.registry import Registry
from fedstill.distillation.teachers import Teacher
from fedstill.methods import methods
from fedstill.runtime.experiment import Experiment
from fedstill.tasks.classification import Classification


@dataclass(frozen=True)
class PlanContext:
    """What is known of an experiment when its method is made."""

    experiment: Experiment
    task: Classification
    kind: str  # of the data
    data_root: Path | None = None
    teachers: Sequence[Teacher] = ()
    made: dict[str, Any] = field(default_factory=dict)  # inputs that experiments on the same data can share
    may_read: Callable[[str], None] | None = None  # refuses further data that must not be read here, by name

    @property
    def method(self) -> type[Method]:
        return methods[self.experiment.method.name]


method_inputs: Registry[Callable[[PlanContext], Any]] = Registry("input of a method")
method_inputs.declare("fedstill.runtime.teaching", "teaching")


def inputs_for(context: PlanContext) -> dict[str, Any]:
    """The inputs that the experiment's method wants."""
    return {name: method_inputs[name](context) for name in sorted(context.method.wants)}
